//! `Releaser`: repeats the release of a lease until the store confirms it, for a caller that waits or in the
//! background.

use std::{fmt, future::pending, sync::Arc, time::Duration};

use tokio::{
    sync::{Semaphore, oneshot},
    time::{Instant, sleep},
};

use super::job::ReleaseJob;
use crate::{
    coalescer::{Coalescer, PlannedRelease, Repeats},
    messages::ReleaseAnswer,
    model::{Error, Key, LeaseId},
    random,
    retry::{self, Tries},
    runtime::in_flight::InFlight,
    telemetry,
};

/// The greatest number of background releases that are under way.
const MAX_CONCURRENT: usize = 64;

/// How long a background release without an answer counts for [`MAX_CONCURRENT`].
const SLOT_TIME: Duration = Duration::from_millis(200);

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
    /// Each background release that is under way has one permit of this semaphore.
    slots: Arc<Semaphore>,
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
            slots: Arc::new(Semaphore::new(MAX_CONCURRENT)),
        }
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

    /// Records that a lease was released in a batch, without a caller that waits for the outcome.
    pub(crate) fn confirmed(&self, job: &ReleaseJob, answer: ReleaseAnswer) {
        self.tell_released(&job.key, job.lease);
        telemetry::released(job.fields(false), answer.into());
    }

    /// Releases a lease. Tries again until the lease is released, its ttl is over, or an error says that a retry cannot
    /// help. If an acquire request for the lease may be [in flight](ReleaseJob::maybe_in_flight), it is released once
    /// more when no such request can arrive any more.
    ///
    /// A caller that waits for the outcome gets it after [a few tries](retry::TRIES) at the latest. The release then
    /// goes on in the background. The caller must [finish](InFlight::finish) the calls that are left in `calls`.
    pub(crate) async fn release_until_confirmed(
        &self,
        job: &ReleaseJob,
        mut reply: Option<ReleaseReply>,
        calls: &mut InFlight<ReleaseAnswer>,
    ) {
        let start = Instant::now();
        // No renewal is sent any more, so at this instant the lease has expired on the server. An error after this
        // instant ends the release.
        let expired = start.checked_add(job.ttl);
        // When the first of the release requests was answered. Until a call timeout later, an acquire request may still
        // be on its way to the server. That time does not begin with the start of the release: a server that stood
        // still for long carries out the waiting requests in any order, also the acquire request of a connection that
        // broke.
        let mut first_answer = None;
        let mut tries = Tries::default();
        let mut unclear = false;
        let mut pauses = 0;
        let has_caller = reply.is_some();
        loop {
            // The caller may have dropped its future.
            reply = reply.filter(|reply| !reply.is_closed());
            let request = if pauses == 0 {
                job.first_request()
            } else {
                job.repeated_request(first_answer.is_some())
            };
            let outcome = self.send(request, reply.as_mut(), calls).await;
            let error = match outcome {
                Ok((sent, answer)) => {
                    // A request that is not answered may have been carried out before this one.
                    unclear |= !calls.is_empty();
                    let is_first = first_answer.is_none();
                    let first = *first_answer.get_or_insert(Instant::now());
                    let told = reply.take();
                    self.answered(
                        job,
                        Released { answer, unclear },
                        told,
                        (is_first, has_caller),
                    );
                    // This may be the late answer to an earlier request, after which an acquire request may have been
                    // carried out. So the request that was answered counts, and not the last one.
                    let settled = sent.saturating_duration_since(first) >= self.call_timeout;
                    // An acquire request that reaches the server later may be granted the same lease again.
                    if !job.maybe_in_flight || settled {
                        return;
                    }
                    None
                }
                Err(error) => Some(error),
            };
            let mut pause = match first_answer {
                // The next release is the last one, if it is answered.
                Some(first) if error.is_none() => {
                    (first + self.call_timeout).saturating_duration_since(Instant::now())
                }
                _ => retry::pause(pauses, retry::BACKGROUND, random::fraction()),
            };
            if let Some(error) = error {
                // If the caller has dropped its future, that ended the wait for the answer, and the store did not fail.
                if !reply.as_ref().is_some_and(ReleaseReply::is_closed) {
                    let about = (&job.key, job.lease);
                    telemetry::store_failed("release", Some(about), &error);
                }
                unclear |= error.is_ambiguous();
                let over = expired.is_none_or(|at| Instant::now() >= at) || !error.is_retryable();
                match tries.pause_after(&error) {
                    Some(short) if reply.is_some() && !over => pause = short,
                    _ => drop(reply.take().map(|reply| reply.send(Err(error.clone())))),
                }
                if over {
                    telemetry::release_failed(job.fields(has_caller), &error);
                    return;
                }
            }
            calls.drive_while(sleep(pause)).await;
            pauses += 1;
        }
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
            telemetry::released(job.fields(has_caller), answer.into());
        }
        if let Some(reply) = reply {
            // This fails if the caller has dropped its future meanwhile.
            let _ = reply.send(Ok(released));
        }
        if is_first {
            // The caller is woken before the tasks that wait for the release: it may have released the lease because it
            // comes before them.
            job.held.iter().for_each(|held| held.state.mark_released());
        }
    }

    /// Sends a request, and waits for the next answer to it or to an earlier one. Returns the instant before the request
    /// was sent that is answered.
    async fn send(
        &self,
        request: PlannedRelease,
        reply: Option<&mut ReleaseReply>,
        calls: &mut InFlight<ReleaseAnswer>,
    ) -> Result<(Instant, ReleaseAnswer), Error> {
        // The semaphore is never closed, so there is always a permit.
        let slot = match reply {
            None => calls.drive_while(self.slots.acquire()).await.ok(),
            Some(_) => None,
        };
        calls.start(self.coalescer.release(request, Repeats::Once));
        let limit = self.call_timeout;
        let answer = match reply {
            None => {
                // A release that hangs returns its permit, so that other releases can be sent.
                let slot_ends = async {
                    sleep(SLOT_TIME).await;
                    drop(slot);
                    pending().await
                };
                tokio::select! {
                    answer = calls.next(limit) => answer,
                    () = slot_ends => None,
                }
            }
            // If the caller drops its future, the release is tried again in the background, after a short pause.
            Some(reply) => tokio::select! {
                answer = calls.next(limit) => answer,
                () = reply.closed() => None,
            },
        };
        // A request that waits to be sent is dropped, because the next try sends the same request.
        calls.stop_sending();
        answer.map_or_else(
            || {
                Err(Error::TimedOut {
                    store: self.coalescer.store_name(),
                    operation: "release",
                    limit,
                })
            },
            |(sent, answer)| answer.map(|answer| (sent, answer)),
        )
    }
}

impl fmt::Debug for Releaser {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Releaser").finish_non_exhaustive()
    }
}
