//! What can be waited for: the end of a lease, its release, its loss, and the risk of its loss.

use std::pin::pin;

use tokio::time::{Instant, timeout_at};

use super::{
    BackingLease, LeaseState,
    status::{EndReason, Phase},
    watcher::{self, LossWatcher},
};
use crate::model::LossReason;

impl LeaseState {
    /// Waits until the lease has ended, and returns how.
    pub(crate) async fn ended(&self) -> EndReason {
        let mut states = self.state.subscribe();
        loop {
            if let Some(end) = states.borrow_and_update().phase.end() {
                return end;
            }
            // The sender is part of `self`, so this cannot fail.
            let _ = states.changed().await;
        }
    }

    /// Whether the release of the lease was answered, or given up, or the lease was detached.
    pub(crate) fn is_given_back(&self) -> bool {
        matches!(self.state.borrow().phase, Phase::Released | Phase::Detached)
    }

    /// Waits until the release of the lease was answered, or given up, or the lease was detached. Wakes those that wait
    /// in the order in which they began to.
    pub(crate) async fn given_back(&self) {
        let mut woken = pin!(self.given_back.notified());
        // From here on the end wakes it, also before it is polled.
        woken.as_mut().enable();
        if !self.is_given_back() {
            woken.await;
        }
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
