//! What can be waited for: the loss of a lease, and the risk of its loss.

use tokio::time::{Instant, timeout_at};

use super::{
    BackingLease, LeaseState,
    watcher::{self, LossWatcher},
};
use crate::model::LossReason;

impl LeaseState {
    /// Whether the holder has given up the lease.
    pub(crate) fn has_ended(&self) -> bool {
        self.state.borrow().has_ended
    }

    /// Waits until the lease is lost.
    pub(crate) async fn lost(&self) -> LossReason {
        let reason = self.watch().lost().await;
        self.check_loss();
        reason.unwrap_or(LossReason::Closed)
    }

    /// Waits until the lease is at risk, or lost.
    pub(crate) async fn at_risk(&self) {
        let mut states = self.state.subscribe();
        let mut backing = self.backing.as_ref().map(BackingLease::subscribe);
        loop {
            if !self.is_live(Instant::now()) {
                return;
            }
            let (risk, deadline) = {
                let state = &*states.borrow_and_update();
                let risk = state.validity.risk(self.ttl(), self.unrenewed(state));
                (risk, state.validity.deadline())
            };
            let backing_at = self.backing.as_ref().map(|backing| {
                let risk = backing.risk();
                risk.unwrap_or_else(|| backing.deadline())
            });
            let at = risk.unwrap_or(deadline);
            let at = backing_at.map_or(at, |backing| at.min(backing));
            if Instant::now() >= at {
                return;
            }
            let _ = timeout_at(at, watcher::changed(&mut states, backing.as_mut())).await;
            if let Some(backing) = &mut backing {
                backing.mark_unchanged();
            }
        }
    }

    /// Returns a watcher, which does not keep the state of the lease in memory.
    pub(crate) fn watch(&self) -> LossWatcher {
        LossWatcher {
            lease: self.state.subscribe(),
            backing: self.backing.as_ref().map(BackingLease::subscribe),
        }
    }
}
