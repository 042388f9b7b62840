//! The rest of an acquire that is over: requests that were sent and not answered, and the leases that they
//! may have been granted.

use std::{pin::pin, sync::Arc, time::Duration};

use tokio::time::{Instant, timeout_at};
use tokio_util::task::task_tracker::TaskTrackerToken;

use super::context::AcquireContext;
use crate::{
    coalescer::Batching,
    lease_state::{EndReason, LeaseState},
    messages::{AcquireAnswer, AcquireRequest},
    model::{Access, Error, Fence},
    release::ReleaseJob,
    runtime::{
        self,
        in_flight::{Answer, InFlight},
    },
};

/// The rest of an acquire that is over.
pub(super) struct Cleanup {
    pub(super) context: Arc<AcquireContext>,
    pub(super) request: Arc<AcquireRequest>,
    pub(super) calls: InFlight<AcquireAnswer>,
    pub(super) left: Leftover,
}

/// What the requests that have ended left in the store, of no use to the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Leftover {
    Nothing,
    /// A grant.
    Granted,
    /// Perhaps a grant: a request ended without telling its outcome. It may have been granted, or may still be on
    /// its way to the server.
    Unclear,
}

impl Leftover {
    /// What a request leaves that was answered so, if it is granted nothing that its caller takes.
    fn of(answer: &Result<AcquireAnswer, Error>) -> Self {
        match answer {
            Ok(AcquireAnswer::Granted(_)) => Self::Granted,
            Ok(AcquireAnswer::Held(_)) => Self::Nothing,
            Err(error) => Self::of_error(error),
        }
    }

    /// What a request leaves that ended with this error. An error counts unless it says for certain that nothing
    /// was changed: a release too many costs nothing.
    pub(super) fn of_error(error: &Error) -> Self {
        match error {
            // The last of the nodes that were asked said so, and perhaps not the first.
            Error::Store { .. } | Error::Overloaded { .. } => Self::Unclear,
            error if error.is_ambiguous() => Self::Unclear,
            _ => Self::Nothing,
        }
    }
}

impl Cleanup {
    /// A grant of an earlier request has no effect while the lease is held, and has to be
    /// released after it.
    pub(super) async fn outlive(mut self, state: Arc<LeaseState>, at_work: TaskTrackerToken) {
        self.left = Leftover::Nothing;
        let end = self.calls.drive_while(state.ended()).await;
        if end == EndReason::Detached {
            return self.leave(state.fence()).await;
        }
        // These requests were carried out before the release, but for those whose outcome is not known.
        let unclear = |(_, answer): &Answer<_>| Leftover::of(answer) == Leftover::Unclear;
        if self.calls.answered().iter().any(unclear) {
            self.left = Leftover::Unclear;
        }
        // A release of ours must not come before the holder's own, which would be told of a loss.
        self.calls.drive_while(state.released()).await;
        self.run(at_work).await;
    }

    /// A detached lease must not be released any more; but what a late request is granted after it is
    /// over is another.
    async fn leave(mut self, fence: Fence) {
        while let Some((_, answer)) = self.calls.next_at_last().await {
            if matches!(answer, Ok(AcquireAnswer::Granted(grant)) if grant.fence != fence) {
                self.release().await;
            }
        }
    }

    /// Releases what was granted and is of no use, now and whenever a request ends that was not
    /// waited for.
    pub(super) async fn run(self, at_work: TaskTrackerToken) {
        if self.calls.is_empty() && self.left == Leftover::Nothing {
            return;
        }
        let limit = self.context.registry.call_timeout;
        let end = Instant::now().checked_add(limit.saturating_add(self.request.ttl));
        at_work_until(end, at_work, self.until_answered(limit, end)).await;
    }

    async fn until_answered(mut self, limit: Duration, end: Option<Instant>) {
        let mut silent = false;
        loop {
            if self.left != Leftover::Nothing {
                self.release().await;
            }
            if self.calls.is_empty() {
                return;
            }
            // A release that overtakes its acquire would free nothing, hence this order.
            let answer = if silent {
                self.calls.next_at_last().await
            } else {
                self.calls.next(limit).await
            };
            match answer {
                Some((_, answer)) => self.left = Leftover::of(&answer),
                // The request may have been carried out long ago, on a connection that has died unnoticed.
                None => {
                    silent = true;
                    self.release_aside(end);
                }
            }
        }
    }

    /// Releases what may have been granted, and does not wait for it: an answer that comes after all
    /// is released at once.
    fn release_aside(&self, end: Option<Instant>) {
        let at_work = self.context.registry.lifecycle.at_work();
        let releases = self.context.registry.releaser.clone();
        let unused = ReleaseJob {
            maybe_in_flight: true,
            ..self.unused()
        };
        // This task runs, so there is a runtime.
        let _ = runtime::spawn(async move {
            let mut calls = InFlight::new();
            let release = releases.release_until_confirmed(&unused, None, &mut calls);
            at_work_until(end, at_work, release).await;
            calls.finish().await;
        });
    }

    async fn release(&mut self) {
        let (context, unused) = (self.context.clone(), self.unused());
        let mut calls = InFlight::new();
        let release = context
            .registry
            .releaser
            .release_until_confirmed(&unused, None, &mut calls);
        self.calls.drive_while(release).await;
        self.left = Leftover::Nothing;
        // A request of it that still hangs has been given up: a close does not wait for its answer.
        if !calls.is_empty() {
            // This task runs, so there is a runtime.
            let _ = runtime::spawn(calls.finish());
        }
    }

    fn unused(&self) -> ReleaseJob {
        ReleaseJob {
            key: self.request.key.clone(),
            lease: self.request.lease,
            fence: None,
            ttl: self.request.ttl,
            // The work has not begun.
            min_hold: None,
            maybe_in_flight: self.left == Leftover::Unclear,
            alone: self.request.access == Access::Exclusive,
            can_hand_off: false,
            undoable_until: None,
            batching: Batching::Any,
        }
    }
}

/// Carries this out to its end, and counts it until this instant at the most as work that a close waits for.
async fn at_work_until(
    end: Option<Instant>,
    at_work: TaskTrackerToken,
    work: impl Future<Output = ()>,
) {
    let mut work = pin!(work);
    if let Some(end) = end {
        if timeout_at(end, &mut work).await.is_ok() {
            return;
        }
        drop(at_work);
        work.await;
    } else {
        work.await;
        drop(at_work);
    }
}
