//! `Releaser`: repeats the release of a lease until the store confirms it, for a caller that waits or in the
//! background.

use std::{future::pending, sync::Arc, time::Duration};

use tokio::{
    sync::oneshot,
    time::{Instant, sleep},
};

use super::{in_flight::InFlight, job::ReleaseJob};
use crate::{
    coalescer::{Coalescer, PlannedRelease, TimedAnswer},
    messages::ReleaseAnswer,
    model::{Error, Key, LeaseId},
    random,
    retry::{self, Tries},
    telemetry,
};

/// How a release ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Released {
    pub(crate) answer: ReleaseAnswer,
    /// Whether an earlier try may have been carried out although its answer was lost.
    pub(crate) unclear: bool,
}

pub(crate) type ReleaseReply = oneshot::Sender<Result<Released, Error>>;

/// Who is told that the release of a lease was answered, or given up.
pub(crate) type OnReleased = Arc<dyn Fn(&Key, LeaseId) + Send + Sync>;

#[derive(Clone)]
pub(crate) struct Releaser {
    coalescer: Arc<Coalescer>,
    call_timeout: Duration,
    on_released: OnReleased,
}

impl Releaser {
    pub(crate) fn new(
        coalescer: Arc<Coalescer>,
        call_timeout: Duration,
        on_released: OnReleased,
    ) -> Self {
        Self {
            coalescer,
            call_timeout,
            on_released,
        }
    }

    /// What sends the requests.
    pub(crate) fn coalescer(&self) -> &Arc<Coalescer> {
        &self.coalescer
    }

    /// How long one call may take.
    pub(crate) fn call_timeout(&self) -> Duration {
        self.call_timeout
    }

    /// Runs this work. The releases that its first poll submits are sent in one batch.
    pub(crate) async fn send_together<T>(&self, work: impl Future<Output = T>) -> T {
        self.coalescer.send_together(work).await
    }

    /// Tells that the release of a lease was answered, or given up.
    pub(super) fn tell_released(&self, key: &Key, lease: LeaseId) {
        (self.on_released)(key, lease);
    }

    /// Reports that a lease was released in a batch, without a caller that waits for the outcome.
    pub(crate) fn confirmed(&self, job: &ReleaseJob, answer: ReleaseAnswer) {
        telemetry::released(job.fields(false), answer);
    }

    /// Releases a lease. Tries again until the lease is released, its ttl is over, or an error says that a retry cannot
    /// help. If an acquire request for the lease may be [in flight](ReleaseJob::maybe_in_flight), it is released once
    /// more when no such request can arrive any more.
    ///
    /// A caller that waits for the outcome gets it after [a few tries](retry::TRIES) at the latest. The release then
    /// goes on in the background. The caller must [finish](InFlight::finish) the calls that are left in `calls`. Returns
    /// whether it was told that the release was answered.
    pub(crate) async fn release_until_confirmed(
        &self,
        job: &ReleaseJob,
        mut reply: Option<ReleaseReply>,
        calls: &mut InFlight,
    ) -> bool {
        let mut progress = Progress::begin(job, reply.is_some());
        loop {
            // The caller may have dropped its future.
            reply = reply.filter(|reply| !reply.is_closed());
            let request = progress.next_request(job);
            let pause = match self.send(request, reply.as_mut(), calls).await {
                Ok((sent, answer)) => {
                    // A request that is not answered may have been carried out before this one.
                    progress.unclear |= !calls.is_empty();
                    let unclear = progress.unclear;
                    let is_first = progress.first_answer.is_none();
                    let first = *progress.first_answer.get_or_insert(Instant::now());
                    let told = reply.take();
                    let of = (is_first, progress.has_caller);
                    self.answered(job, Released { answer, unclear }, told, of);
                    // This may be the late answer to an earlier request, after which an acquire request may have been
                    // carried out. So the request that was answered counts, and not the last one.
                    let settled = sent.saturating_duration_since(first) >= self.call_timeout;
                    // An acquire request that reaches the server later may be granted the same lease again.
                    if !job.maybe_in_flight || settled {
                        return true;
                    }
                    // The next release is the last one, if it is answered.
                    (first + self.call_timeout).saturating_duration_since(Instant::now())
                }
                Err(error) => match self.failed(job, &mut progress, &mut reply, &error) {
                    Some(pause) => pause,
                    None => return progress.first_answer.is_some(),
                },
            };
            calls.drive_while(sleep(pause)).await;
            progress.pauses += 1;
        }
    }

    /// Tells of a failed try. Returns the pause before the next one; `None` if there is none.
    fn failed(
        &self,
        job: &ReleaseJob,
        progress: &mut Progress,
        reply: &mut Option<ReleaseReply>,
        error: &Error,
    ) -> Option<Duration> {
        // If the caller has dropped its future, that ended the wait for the answer, and the store did not fail.
        if !reply.as_ref().is_some_and(ReleaseReply::is_closed) {
            let about = (&job.key, job.lease);
            telemetry::store_failed("release", Some(about), error);
        }
        progress.unclear |= error.is_ambiguous();
        let over = progress.is_over() || !error.is_retryable();
        let mut pause = retry::pause(progress.pauses, retry::BACKGROUND, random::fraction());
        match progress.tries.pause_after(error) {
            Some(short) if reply.is_some() && !over => pause = short,
            _ => drop(reply.take().map(|reply| reply.send(Err(error.clone())))),
        }
        if over {
            telemetry::release_failed(job.fields(progress.has_caller), error);
            return None;
        }
        Some(pause)
    }

    /// Tells of an answer to a release.
    fn answered(
        &self,
        job: &ReleaseJob,
        released: Released,
        reply: Option<ReleaseReply>,
        (is_first, has_caller): (bool, bool),
    ) {
        let answer = released.answer;
        if is_first || answer == ReleaseAnswer::Released {
            self.tell_released(&job.key, job.lease);
        }
        if is_first {
            telemetry::released(job.fields(has_caller), answer);
        }
        if let Some(reply) = reply {
            // This fails if the caller has dropped its future meanwhile.
            let _ = reply.send(Ok(released));
        }
    }

    /// Sends a request, and waits for the next answer to it or to an earlier one. Returns the instant before the request
    /// was sent that is answered.
    async fn send(
        &self,
        request: PlannedRelease,
        reply: Option<&mut ReleaseReply>,
        calls: &mut InFlight,
    ) -> Result<(Instant, ReleaseAnswer), Error> {
        let again = PlannedRelease {
            is_repeated: true,
            ..request.clone()
        };
        calls.start(self.coalescer.release(request));
        let caller_leaves = async {
            match reply {
                // If the caller drops its future, the release is tried again in the background, after a short pause.
                Some(reply) => reply.closed().await,
                None => pending().await,
            }
        };
        let answer = tokio::select! {
            answer = self.next_answer(again, calls) => answer,
            () = caller_leaves => None,
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
        again: PlannedRelease,
        calls: &mut InFlight,
    ) -> Option<TimedAnswer<ReleaseAnswer>> {
        let end = retry::wait_end(Instant::now(), self.call_timeout);
        let mut again = Some(again);
        loop {
            let now = Instant::now();
            let overdue = calls.batch_sent().map(|sent| sent + retry::OVERDUE);
            if overdue.is_some_and(|at| at <= now)
                && let Some(again) = again.take()
            {
                let about = (&again.request.key, again.request.lease);
                let late = self.timed_out(retry::OVERDUE);
                telemetry::store_failed("release", Some(about), &late);
                calls.start(self.coalescer.release(again));
            }
            let next = match &again {
                // It may be sent in a batch later.
                Some(_) => overdue.unwrap_or(now + retry::OVERDUE).min(end),
                None => end,
            };
            let answer = calls.next(next.saturating_duration_since(now)).await;
            if answer.is_some() || next >= end {
                return answer;
            }
        }
    }

    fn timed_out(&self, limit: Duration) -> Error {
        Error::TimedOut {
            store: self.coalescer.store_name(),
            operation: "release",
            limit,
        }
    }
}

/// How far the release of a lease has come.
struct Progress {
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
    has_caller: bool,
}

impl Progress {
    fn begin(job: &ReleaseJob, has_caller: bool) -> Self {
        Self {
            expired: Instant::now().checked_add(job.ttl),
            first_answer: None,
            tries: Tries::default(),
            unclear: false,
            pauses: 0,
            has_caller,
        }
    }

    fn next_request(&self, job: &ReleaseJob) -> PlannedRelease {
        if self.pauses == 0 {
            job.first_request()
        } else {
            job.repeated_request(self.first_answer.is_some())
        }
    }

    fn is_over(&self) -> bool {
        self.expired.is_none_or(|at| Instant::now() >= at)
    }
}
