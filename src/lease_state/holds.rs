//! What is set once its caller has a lease: for how long the key is held at least and at most, and what was done under it.

use std::{sync::atomic::Ordering, time::Duration};

use tokio::time::Instant;

use super::LeaseState;
use crate::messages::DoneTick;

impl LeaseState {
    pub(crate) fn min_hold(&self) -> Option<Duration> {
        self.min_hold.get().copied()
    }

    /// Sets the minimum hold that the caller asked for. To be called when the lease has come to its caller.
    pub(crate) fn set_min_hold(&self, min_hold: Option<Duration>) {
        if let Some(min_hold) = min_hold {
            // A lease comes to its caller once, so the value is not set yet.
            let _ = self.min_hold.set(min_hold);
        }
    }

    pub(crate) fn done(&self) -> Option<DoneTick> {
        self.done.get().copied()
    }

    /// Records that a tick was done under the lease, for its release to write.
    pub(crate) fn set_done(&self, done: DoneTick) {
        // The caller releases the lease at once, so this is called once.
        let _ = self.done.set(done);
    }

    /// Whether others wait to hear of the release.
    pub(crate) fn is_awaited(&self) -> bool {
        self.is_awaited.load(Ordering::Relaxed)
    }

    /// Records that others wait to hear of the release, as of that of a leader. A majority confirms it then: if a failover
    /// undid it, the key would be without a leader until the ttl is over, and a change stream tells only of what a majority
    /// has.
    pub(crate) fn set_awaited(&self) {
        self.is_awaited.store(true, Ordering::Relaxed);
    }

    /// When the lease was granted, on the clock of this process.
    pub(crate) fn granted_at(&self) -> Instant {
        self.granted_at
    }

    /// Sets the maximum hold that the caller asked for, counted from this instant. To be called when the lease has come
    /// to its caller.
    pub(crate) fn set_max_hold(&self, max_hold: Option<Duration>, from: Instant) {
        // If the clock cannot express so late an instant, the lease has no end.
        if let Some(end) = max_hold.and_then(|time| from.checked_add(time)) {
            self.state
                .send_modify(|state| state.validity.limit(end, Instant::now()));
        }
    }

    /// When the maximum hold is over; `None` if the lease has none.
    pub(crate) fn max_hold_deadline(&self) -> Option<Instant> {
        self.state.borrow().validity.end()
    }

    /// The maximum hold, counted from the grant.
    pub(crate) fn max_hold(&self) -> Option<Duration> {
        let end = self.max_hold_deadline()?;
        Some(end.saturating_duration_since(self.granted_at))
    }
}
