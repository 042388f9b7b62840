//! What is left to do when an acquire is over: the requests that were sent and not answered, and what they
//! may have been granted.

use std::sync::Arc;

use tokio::time::Instant;
use tokio_util::task::task_tracker::TaskTrackerToken;

use super::context::AcquireContext;
use crate::{
    lease_state::{EndReason, LeaseState},
    messages::{AcquireAnswer, AcquireRequest},
    model::{Access, Error, Fence},
    release::ReleaseJob,
    runtime::{
        self,
        in_flight::{Answer, InFlight},
    },
};

/// What an acquire leaves behind.
pub(super) struct Cleanup {
    pub(super) context: Arc<AcquireContext>,
    pub(super) request: Arc<AcquireRequest>,
    pub(super) calls: InFlight<AcquireAnswer>,
    /// Whether there is a grant that is of no use.
    pub(super) granted: bool,
    /// Whether a request ended without telling its outcome: it may have been granted, or may still
    /// be on its way to the server.
    pub(super) open: bool,
}

impl Cleanup {
    /// A grant of an earlier request has no effect while the lease is held, and has to be
    /// released after it.
    pub(super) async fn outlive(mut self, state: Arc<LeaseState>, at_work: TaskTrackerToken) {
        (self.granted, self.open) = (false, false);
        let end = self.calls.drive_while(state.ended()).await;
        if end == EndReason::Detached {
            return self.leave(state.fence()).await;
        }
        // These requests were carried out before the release, but for those whose outcome is not known.
        let open = |(_, answer): &Answer<_>| leaves_open(answer);
        self.open = self.calls.answered().iter().any(open);
        // A release of ours must not come before the holder's own, which would be told of a loss.
        self.calls.drive_while(state.released()).await;
        self.run(at_work).await;
    }

    /// Nobody may release a detached lease any more; but what a late request is granted after it is
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
    pub(super) async fn run(mut self, at_work: TaskTrackerToken) {
        if self.calls.is_empty() && !self.granted && !self.open {
            return;
        }
        let limit = self.context.registry.call_timeout;
        // After that nobody waits for a request that hangs; this task still does.
        let waited_for = Instant::now().checked_add(limit.saturating_add(self.request.ttl));
        let (mut at_work, mut silent) = (Some(at_work), false);
        loop {
            if self.granted || self.open {
                self.release().await;
            }
            if self.calls.is_empty() {
                return;
            }
            // A release that overtakes its acquire would free nothing, hence this order.
            let answer = match (silent, waited_for.filter(|_| at_work.is_some())) {
                (false, _) => self.calls.next(limit).await,
                (true, Some(end)) => self.calls.next(end - Instant::now()).await,
                (true, None) => self.calls.next_at_last().await,
            };
            match answer {
                Some((_, answer)) => {
                    self.granted = matches!(answer, Ok(AcquireAnswer::Granted(_)));
                    self.open = leaves_open(&answer);
                }
                // The request may have been carried out long ago, on a connection that has died unnoticed.
                None if !silent => {
                    silent = true;
                    self.release_aside();
                }
                None => drop(at_work.take()),
            }
        }
    }

    /// Releases what may have been granted, and does not wait for it: an answer that comes after all
    /// is released at once.
    fn release_aside(&self) {
        let at_work = self.context.registry.lifecycle.at_work();
        let releases = self.context.registry.releaser.clone();
        let unused = ReleaseJob {
            open: true,
            ..self.unused()
        };
        // This task runs, so there is a runtime.
        let _ = runtime::spawn(async move {
            let mut calls = InFlight::new();
            releases
                .release_until_confirmed(&unused, None, &mut calls)
                .await;
            drop(at_work);
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
        (self.granted, self.open) = (false, false);
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
            open: self.open,
            alone: self.request.access == Access::Exclusive,
            makes_way: false,
        }
    }
}

/// Whether the lease may be granted although the answer does not say so. An error counts unless it
/// says for certain that nothing was changed: a release too many costs nothing.
pub(super) fn leaves_open(answer: &Result<AcquireAnswer, Error>) -> bool {
    match answer {
        Ok(_) => false,
        // The last of the nodes that were asked said so, and perhaps not the first.
        Err(Error::Store { .. } | Error::Overloaded { .. }) => true,
        Err(error) => error.is_ambiguous(),
    }
}
