//! `PendingRelease`: a release that is due, from the end of its lease until the release is done or given up; and
//! `Releaser`, which repeats a release until the store confirms it, for a caller that waits or in the background.

use std::{
    panic::{AssertUnwindSafe, resume_unwind},
    sync::Arc,
    time::Duration,
};

use futures::{FutureExt, future::OptionFuture};
use tokio::{sync::oneshot, time::Instant};
use tokio_util::task::task_tracker::TaskTrackerToken;

use super::{in_flight::InFlight, job::ReleaseJob};
use crate::{
    coalescer::{Coalescer, PlannedRelease, TimedAnswer},
    lease_state::LeaseState,
    messages::{ReleaseAnswer, ReleaseKind},
    model::{Error, Key, LeaseId},
    random,
    retry::{self, Tries},
    runtime,
    telemetry::{self, ReleaseFields},
};

/// A release that is due. It is dropped when it is done or given up, and a close waits until then.
pub(crate) struct PendingRelease {
    pub(super) state: Arc<LeaseState>,
    releaser: Releaser,
    /// Whether it was told that the release was answered.
    is_told: bool,
    _at_work: TaskTrackerToken,
}

impl PendingRelease {
    pub(crate) fn new(
        state: Arc<LeaseState>,
        releaser: Releaser,
        at_work: TaskTrackerToken,
    ) -> Self {
        Self {
            state,
            releaser,
            is_told: false,
            _at_work: at_work,
        }
    }

    /// Releases the lease without a caller that waits for the outcome. Calls that are still under way after that run to
    /// their end, but a close does not wait for them.
    pub(crate) async fn settle(mut self) {
        let mut calls = InFlight::default();
        self.release(None, &mut calls).await;
        drop(self);
        calls.finish().await;
    }

    /// Releases the lease, and sends the outcome to the caller, who polls this. If it panics, `again` gets the release,
    /// because a second try may succeed: a subscriber of the application may panic only once.
    pub(crate) async fn release_with_caller(
        mut self,
        reply: ReleaseReply,
        again: impl FnOnce(Self),
    ) {
        let mut calls = InFlight::default();
        let release = AssertUnwindSafe(self.release(Some(reply), &mut calls));
        if let Err(panic) = release.catch_unwind().await {
            again(self);
            resume_unwind(panic);
        }
        drop(self);
        calls.finish().await;
    }

    /// Releases the lease, and sends the outcome to the caller if one waits. Calls that are still under way after that
    /// are left in `calls`.
    async fn release(&mut self, reply: Option<ReleaseReply>, calls: &mut InFlight) {
        let job = ReleaseJob::of(&self.state);
        let releasing = self.releaser.release_until_confirmed(&job, reply, calls);
        self.is_told = releasing.await;
    }
}

impl Drop for PendingRelease {
    fn drop(&mut self) {
        // The release is done or given up, or was dropped with its runtime.
        if !self.is_told {
            (self.releaser.on_released)(self.state.key(), self.state.id());
        }
    }
}

/// How a release ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Released {
    pub(crate) answer: ReleaseAnswer,
    /// Whether an earlier try may have been carried out although its answer was lost.
    pub(crate) unclear: bool,
}

pub(crate) type ReleaseReply = oneshot::Sender<Result<Released, Error>>;

/// Is told that the release of a lease was answered, or given up.
type OnReleased = dyn Fn(&Key, LeaseId) + Send + Sync;

#[derive(Clone)]
pub(crate) struct Releaser {
    /// What sends the requests.
    pub(crate) coalescer: Arc<Coalescer>,
    /// How long one call may take.
    pub(crate) call_timeout: Duration,
    pub(crate) on_released: Arc<OnReleased>,
}

impl Releaser {
    /// Releases a lease without a caller that waits for the outcome, and then drops `done`. Calls that are still under way
    /// after that run to their end.
    pub(crate) async fn settle(self, job: ReleaseJob, done: impl Send) {
        let mut calls = InFlight::default();
        self.release_until_confirmed(&job, None, &mut calls).await;
        drop(done);
        calls.finish().await;
    }

    /// Releases a lease. Tries again until the lease is released, its ttl is over, or an error says that a retry cannot
    /// help. If an acquire request for the lease may be [in flight](ReleaseJob::maybe_in_flight), it is released once
    /// more when no such request can arrive any more.
    ///
    /// A caller that waits for the outcome gets it after [a few tries](retry::TRIES) at the latest. The release then
    /// goes on in the background. The caller must [finish](InFlight::finish) the calls that are left in `calls`. Returns
    /// whether it was told that the release was answered.
    async fn release_until_confirmed(
        &self,
        job: &ReleaseJob,
        reply: Option<ReleaseReply>,
        calls: &mut InFlight,
    ) -> bool {
        let mut progress = Progress {
            releaser: self,
            job,
            of: job.fields(reply.is_some()),
            expired: Instant::now().checked_add(job.ttl),
            first_answer: None,
            tries: Tries::default(),
            unclear: false,
            pauses: 0,
            reply,
        };
        let mut request = job.first.clone();
        let about = (&job.first.request.key, job.first.request.lease);
        loop {
            // The caller may have dropped its future.
            progress.reply.take_if(|reply| reply.is_closed());
            let reply = progress.reply.as_mut();
            let mut tried = self.send(&mut request, reply, calls).await;
            // If the caller has dropped its future, that ended the wait for the answer, and the store did not fail.
            if !progress.reply.as_ref().is_some_and(ReleaseReply::is_closed) {
                tried = runtime::report("release", Some(about), tried).await;
            }
            let pause = match tried {
                Ok((sent, answer)) => {
                    // A request that is not answered may have been carried out before this one.
                    progress.unclear |= !calls.is_empty();
                    progress.answered(sent, answer)
                }
                Err(error) => progress.failed(&error),
            };
            let Some(pause) = pause else {
                return progress.first_answer.is_some();
            };
            calls.pause(pause).await;
            progress.pauses += 1;
            request.is_single = true;
            if progress.first_answer.is_some() {
                // It only releases what a late acquire request was granted, and no work was done under that grant. So it
                // writes no minimum hold and no tick.
                request.request.kind = ReleaseKind::Plain { undoable: false };
            }
        }
    }

    /// Sends a request, and waits for the next answer to it or to an earlier one. Returns the instant before the request
    /// was sent that is answered.
    async fn send(
        &self,
        request: &mut PlannedRelease,
        reply: Option<&mut ReleaseReply>,
        calls: &mut InFlight,
    ) -> Result<(Instant, ReleaseAnswer), Error> {
        calls.running.push(self.coalescer.release(request.clone()));
        let caller_leaves = OptionFuture::from(reply.map(ReleaseReply::closed));
        let answer = tokio::select! {
            answer = self.next_answer(request, calls) => answer,
            // If the caller drops its future, the release is tried again in the background, after a short pause.
            Some(()) = caller_leaves => None,
        };
        // A request that waits to be sent is dropped, because the next try sends the same request.
        calls.withdraw_unsent();
        let (sent, answer) = answer.ok_or_else(|| self.timed_out(self.call_timeout))?;
        Ok((sent, answer?))
    }

    /// The next answer within the call timeout. If the batch of the request that is under way is not answered in time,
    /// another request of it may delay the answer, so this one is sent once more, alone.
    async fn next_answer(
        &self,
        request: &mut PlannedRelease,
        calls: &mut InFlight,
    ) -> Option<TimedAnswer<ReleaseAnswer>> {
        let end = retry::wait_end(Instant::now(), self.call_timeout);
        loop {
            let now = Instant::now();
            let overdue = calls.batch_sent().map(|sent| sent + retry::OVERDUE);
            if !request.is_single && overdue.is_some_and(|at| at <= now) {
                let about = (&request.request.key, request.request.lease);
                let late: Result<(), _> = Err(self.timed_out(retry::OVERDUE));
                let _ = runtime::report("release", Some(about), late).await;
                request.is_single = true;
                calls.running.push(self.coalescer.release(request.clone()));
            }
            let next = if request.is_single {
                end
            } else {
                // It may be sent in a batch later.
                overdue.unwrap_or(now + retry::OVERDUE).min(end)
            };
            let answer = calls.next(next.saturating_duration_since(now)).await;
            if answer.is_some() || next >= end {
                return answer;
            }
        }
    }

    fn timed_out(&self, limit: Duration) -> Error {
        runtime::timed_out(self.coalescer.store.name(), "release", limit)
    }
}

/// The release of a lease, and how far it has come.
struct Progress<'a> {
    releaser: &'a Releaser,
    job: &'a ReleaseJob,
    of: ReleaseFields<'a>,
    /// When the lease has expired on the server, because no renewal is sent any more. An error after this instant ends
    /// the release.
    expired: Option<Instant>,
    /// When the first of the requests was answered. Until a call timeout later, an acquire request may still be on its
    /// way to the server. That time does not begin with the start of the release: a server that stood still for long
    /// carries out the waiting requests in any order, also the acquire request of a connection that broke.
    first_answer: Option<Instant>,
    tries: Tries,
    /// Whether an earlier try may have been carried out although its answer was lost.
    unclear: bool,
    pauses: u32,
    /// The caller, while it waits.
    reply: Option<ReleaseReply>,
}

impl Progress<'_> {
    /// Tells of an answer to the request that was sent after this instant. Returns the pause before the next request;
    /// `None` if there is none.
    fn answered(&mut self, sent: Instant, answer: ReleaseAnswer) -> Option<Duration> {
        let (job, call_timeout) = (self.job, self.releaser.call_timeout);
        let is_first = self.first_answer.is_none();
        let first = *self.first_answer.get_or_insert(Instant::now());
        if is_first || answer == ReleaseAnswer::Released {
            (self.releaser.on_released)(self.of.key, self.of.lease);
        }
        if is_first {
            telemetry::released(self.of, answer);
        }
        if let Some(reply) = self.reply.take() {
            let unclear = self.unclear;
            // This fails if the caller has dropped its future meanwhile.
            let _ = reply.send(Ok(Released { answer, unclear }));
        }
        // This may be the late answer to an earlier request, after which an acquire request may have been carried out.
        // So the request that was answered counts, and not the last one.
        let settled = sent.saturating_duration_since(first) >= call_timeout;
        // An acquire request that reaches the server later may be granted the same lease again. The next release is the
        // last one, if it is answered.
        let again = job.maybe_in_flight && !settled;
        again.then(|| (first + call_timeout).saturating_duration_since(Instant::now()))
    }

    /// Tells of a failed try. Returns the pause before the next one; `None` if there is none.
    fn failed(&mut self, error: &Error) -> Option<Duration> {
        self.unclear |= error.is_ambiguous();
        let is_expired = self.expired.is_none_or(|at| Instant::now() >= at);
        let over = is_expired || !error.is_retryable();
        let mut pause = retry::pause(self.pauses, retry::BACKGROUND, random::fraction());
        match self.tries.pause_after(error) {
            Some(short) if self.reply.is_some() && !over => pause = short,
            _ => drop(self.reply.take().map(|it| it.send(Err(error.clone())))),
        }
        if over {
            telemetry::release_failed(self.of, error);
        }
        (!over).then_some(pause)
    }
}
