//! A release that is due, from the end of its lease until it is settled.

use std::sync::Arc;

use tokio_util::task::task_tracker::TaskTrackerToken;

use super::{
    job::ReleaseJob,
    worker::{ReleaseReply, Releaser},
};
use crate::{
    lease_state::LeaseState, messages::ReleaseAnswer, runtime::in_flight::InFlight,
    waiters::WaitQueues,
};

/// A release that is due. A close waits until it is dropped, which it is when it is done or given up.
pub(crate) struct PendingRelease {
    state: Arc<LeaseState>,
    queues: Arc<WaitQueues>,
    _at_work: TaskTrackerToken,
}

impl PendingRelease {
    pub(crate) fn new(
        state: Arc<LeaseState>,
        queues: Arc<WaitQueues>,
        at_work: TaskTrackerToken,
    ) -> Self {
        Self {
            state,
            queues,
            _at_work: at_work,
        }
    }

    /// What the requests for this release need to know of the lease.
    pub(super) fn job(&self) -> ReleaseJob {
        ReleaseJob::of(&self.state)
    }

    /// Releases the lease without a caller that waits for the outcome. Calls that are still under way then run to their
    /// end, but the release is settled, and a close does not wait for them.
    pub(super) async fn settle(self, releaser: Releaser) {
        let mut calls = InFlight::new();
        self.release(&releaser, None, &mut calls).await;
        drop(self);
        calls.finish().await;
    }

    /// Releases the lease, and tells the caller the outcome if one waits for it. The calls that are still under way then
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
        self.queues.forget_lease(self.state.id());
    }
}
