//! A release that is due.

use std::sync::Arc;

use tokio_util::task::task_tracker::TaskTrackerToken;

use super::{
    job::ReleaseJob,
    worker::{ReleaseReply, Releaser},
};
use crate::{lease_state::LeaseState, runtime::in_flight::InFlight, waiters::WaitQueues};

/// A release that is due, and counts as work until it is done or given up.
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

    /// What there is to be released.
    pub(super) fn job(&self) -> ReleaseJob {
        ReleaseJob::of(&self.state)
    }

    /// The lease.
    pub(crate) fn state(&self) -> &Arc<LeaseState> {
        &self.state
    }

    /// Releases the lease, with somebody waiting for the outcome or not.
    pub(crate) async fn settle(self, releases: Releaser, report: Option<ReleaseReply>) {
        let mut calls = InFlight::new();
        let unused = self.job();
        releases
            .release_until_confirmed(&unused, report, &mut calls)
            .await;
        drop(self);
        calls.finish().await;
    }
}

impl Drop for PendingRelease {
    fn drop(&mut self) {
        // Settled, or gone down with its runtime.
        self.state.mark_released();
        self.queues.ends(self.state.id());
    }
}
