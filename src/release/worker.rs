//! Releases a lease until that is confirmed: with somebody waiting for the outcome, or in the background.

use std::{sync::Arc, time::Duration};

use tokio::{
    sync::{Semaphore, oneshot},
    time::Instant,
};

use super::job::ReleaseJob;
use crate::{
    coalescer::{BATCH_RESPONSE_TIMEOUT, Coalescer},
    messages::{ReleaseAnswer, ReleaseRequest},
    model::Error,
    retry::{self, Tries},
    runtime::in_flight::InFlight,
    telemetry::{self, Outcome},
    waiters::{HandoffOutcome, WaitQueues},
};

/// How many background releases are sent at the same time.
const RELEASES_AT_ONCE: usize = 64;

/// How long a release without an answer counts as one of them.
const SLOT: Duration = Duration::from_millis(200);

/// How a release ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Released {
    pub(crate) answer: ReleaseAnswer,
    /// Whether an earlier try may have been carried out, and its answer lost.
    pub(crate) unclear: bool,
}

pub(crate) type ReleaseReply = oneshot::Sender<Result<Released, Error>>;

#[derive(Clone, Debug)]
pub(crate) struct Releaser {
    coalescer: Arc<Coalescer>,
    call_timeout: Duration,
    queues: Arc<WaitQueues>,
    /// One for each background release that is sent.
    slots: Arc<Semaphore>,
}

impl Releaser {
    pub(crate) fn new(
        coalescer: Arc<Coalescer>,
        call_timeout: Duration,
        queues: Arc<WaitQueues>,
    ) -> Self {
        Self {
            coalescer,
            call_timeout,
            queues,
            slots: Arc::new(Semaphore::new(RELEASES_AT_ONCE)),
        }
    }

    /// How long one call may take.
    pub(crate) fn call_timeout(&self) -> Duration {
        self.call_timeout
    }

    /// Takes in that a lease was released in the background, by one request.
    pub(crate) fn confirmed(&self, unused: &ReleaseJob, answer: ReleaseAnswer) {
        self.queues.released(&unused.key, unused.lease);
        telemetry::released(unused.fields(false), answer.into());
    }

    /// Releases a lease, and tries again until it is released or its ttl is over.
    ///
    /// Somebody who waits for the outcome gets it after a few tries at the latest, whatever it is. The
    /// calls that are left have to be [finished](InFlight::finish).
    pub(crate) async fn release_until_confirmed(
        &self,
        unused: &ReleaseJob,
        mut report: Option<ReleaseReply>,
        calls: &mut InFlight<ReleaseAnswer>,
    ) {
        let start = Instant::now();
        // Nobody renews it any more, so the server has forgotten it by then.
        let forgotten = start.checked_add(unused.ttl);
        // What may still be on its way to the server gets the time that a call has.
        let settled = start.checked_add(self.call_timeout);
        let mut tries = Tries::default();
        let mut unclear = false;
        let mut released = false;
        let mut pauses = 0;
        let waited_for = report.is_some();
        if unused.makes_way {
            let handed = self.queues.hand_over(&unused.key, unused.lease);
            match calls.drive_while(handed).await {
                HandoffOutcome::Over => {
                    let answer = ReleaseAnswer::Released;
                    telemetry::released(unused.fields(waited_for), Outcome::HandedOver);
                    drop(report.map(|report| report.send(Ok(Released { answer, unclear }))));
                    return;
                }
                HandoffOutcome::NotOver => {}
                HandoffOutcome::Unclear => unclear = true,
            }
        }
        loop {
            let now = Instant::now();
            // Nobody waits any more.
            report = report.filter(|report| !report.is_closed());
            let request = unused.request(released);
            let outcome = self.send(request, pauses > 0, report.as_mut(), calls).await;
            let error = match outcome {
                Ok(answer) => {
                    if !released || answer == ReleaseAnswer::Released {
                        self.queues.released(&unused.key, unused.lease);
                    }
                    if !released {
                        telemetry::released(unused.fields(waited_for), answer.into());
                    }
                    released = true;
                    if let Some(report) = report.take() {
                        // Who has gone meanwhile does not want to know.
                        let _ = report.send(Ok(Released { answer, unclear }));
                    }
                    let over = settled.is_none_or(|at| now >= at);
                    // A request that comes yet may be granted the same lease anew.
                    if !unused.open || over {
                        return;
                    }
                    None
                }
                Err(error) => Some(error),
            };
            let mut pause = retry::pause(pauses, retry::BACKGROUND, fastrand::f64());
            if let Some(error) = error {
                // Who has gone waits for no answer, which is no fault of the store.
                if !report.as_ref().is_some_and(ReleaseReply::is_closed) {
                    let about = (&unused.key, unused.lease);
                    telemetry::store_failed("release", Some(about), &error);
                }
                unclear |= error.is_ambiguous();
                let over = forgotten.is_none_or(|at| now >= at) || !error.is_retryable();
                if report.is_some() {
                    match tries.pause_after(&error) {
                        Some(short) => pause = short,
                        None => drop(report.take().map(|report| report.send(Err(error.clone())))),
                    }
                }
                if over && report.is_none() {
                    telemetry::release_failed(unused.fields(waited_for), &error);
                    return;
                }
            }
            calls.drive_while(tokio::time::sleep(pause)).await;
            pauses += 1;
        }
    }

    async fn send(
        &self,
        request: ReleaseRequest,
        alone: bool,
        report: Option<&mut ReleaseReply>,
        calls: &mut InFlight<ReleaseAnswer>,
    ) -> Result<ReleaseAnswer, Error> {
        // The semaphore is never closed; without a slot there is only less order.
        let slot = match report {
            None => calls.drive_while(self.slots.acquire()).await.ok(),
            Some(_) => None,
        };
        let submission = self.coalescer.release(request, alone);
        let limit = match submission.together {
            true => BATCH_RESPONSE_TIMEOUT.min(self.call_timeout),
            false => self.call_timeout,
        };
        calls.start(submission.answer);
        let answer = match report {
            // One that hangs does not keep the slot from others.
            None => match calls.next(SLOT.min(limit)).await {
                None => {
                    drop(slot);
                    calls.next(limit.saturating_sub(SLOT)).await
                }
                answer => answer,
            },
            // Who gives up waiting has it tried again at once.
            Some(report) => tokio::select! {
                answer = calls.next(limit) => answer,
                () = report.closed() => None,
            },
        };
        answer.map_or_else(
            || {
                Err(Error::TimedOut {
                    operation: "release",
                    limit,
                })
            },
            |(_, answer)| answer,
        )
    }
}
