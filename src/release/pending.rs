//! `PendingRelease`: a release that is due, from the end of its lease until the release is done or given up.

use std::sync::Arc;

use tokio_util::task::task_tracker::TaskTrackerToken;

use super::{
    job::ReleaseJob,
    releaser::{ReleaseReply, Releaser},
};
use crate::{lease_state::LeaseState, messages::ReleaseAnswer, runtime::in_flight::InFlight};

/// A release that is due. It is dropped when it is done or given up, and a close waits until then.
pub(crate) struct PendingRelease {
    state: Arc<LeaseState>,
    releaser: Releaser,
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
            _at_work: at_work,
        }
    }

    /// The job for the requests of this release.
    pub(super) fn job(&self) -> ReleaseJob {
        ReleaseJob::of(&self.state)
    }

    /// Releases the lease without a caller that waits for the outcome. Calls that are still under way after that run to
    /// their end, but a close does not wait for them.
    pub(super) async fn settle(self, releaser: Releaser) {
        let mut calls = InFlight::new();
        self.release(&releaser, None, &mut calls).await;
        drop(self);
        calls.finish().await;
    }

    /// Releases the lease, and sends the outcome to the caller if one waits. Calls that are still under way after that
    /// are left in `calls`.
    pub(crate) async fn release(
        &self,
        releaser: &Releaser,
        reply: Option<ReleaseReply>,
        calls: &mut InFlight<ReleaseAnswer>,
    ) {
        let job = self.job();
        releaser.release_until_confirmed(&job, reply, calls).await;
    }
}

impl Drop for PendingRelease {
    fn drop(&mut self) {
        // The release is done or given up, or was dropped with its runtime.
        self.state.mark_released();
        self.releaser
            .tell_released(self.state.key(), self.state.id());
    }
}
