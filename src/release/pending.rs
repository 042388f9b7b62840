//! A release that is due.

use std::sync::Arc;

use tokio_util::task::task_tracker::TaskTrackerToken;

use super::{
    job::ReleaseJob,
    worker::{ReleaseReply, Releaser},
};
use crate::{
    coalescer::Batching, lease_state::LeaseState, messages::ReleaseAnswer,
    runtime::in_flight::InFlight, waiters::WaitQueues,
};

/// A release that is due, and counts as work until it is done or given up.
pub(crate) struct PendingRelease {
    state: Arc<LeaseState>,
    queues: Arc<WaitQueues>,
    batching: Batching,
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
            batching: Batching::Any,
            _at_work: at_work,
        }
    }

    /// The same together with the other releases of a set.
    pub(crate) fn in_a_set(mut self) -> Self {
        self.batching = Batching::Set;
        self
    }

    /// The lease, as a request for its release needs it.
    pub(super) fn job(&self) -> ReleaseJob {
        ReleaseJob {
            batching: self.batching,
            ..ReleaseJob::of(&self.state)
        }
    }

    /// The lease.
    pub(crate) fn state(&self) -> &Arc<LeaseState> {
        &self.state
    }

    /// Releases the lease, with a caller that waits for the outcome or without.
    pub(crate) async fn settle(self, releaser: Releaser, reply: Option<ReleaseReply>) {
        let mut calls = InFlight::new();
        self.release(&releaser, reply, &mut calls).await;
        drop(self);
        calls.finish().await;
    }

    /// The same, but for the calls that are left.
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
        // Settled, or gone down with its runtime.
        self.state.mark_released();
        self.queues.ends(self.state.id());
    }
}
