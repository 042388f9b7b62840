//! `PendingRelease`: a release that is due, from the end of its lease until the release is done or given up.

use std::{
    panic::{AssertUnwindSafe, resume_unwind},
    sync::Arc,
};

use futures::FutureExt;
use tokio_util::task::task_tracker::TaskTrackerToken;

use super::{
    in_flight::InFlight,
    job::ReleaseJob,
    releaser::{ReleaseReply, Releaser},
};
use crate::lease_state::LeaseState;

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
