//! What is set after the caller has got the lease: the minimum hold and the maximum hold, the tick that was done under
//! the lease, and whether others wait for its release.

use std::time::Duration;

use tokio::time::Instant;

use super::{LeaseState, status::ReleaseTerms};
use crate::messages::DoneTick;

impl LeaseState {
    /// What the release of the lease depends on.
    pub(crate) fn release_terms(&self) -> ReleaseTerms {
        self.state.borrow().release
    }

    pub(super) fn set_release_terms(&self, change: impl FnOnce(&mut ReleaseTerms)) {
        self.set(|state| change(&mut state.release));
    }

    /// Sets the minimum hold that the caller requested. This is called when the caller gets the lease.
    pub(crate) fn set_min_hold(&self, min_hold: Option<Duration>) {
        self.set_release_terms(|terms| terms.min_hold = min_hold);
    }

    /// Records that a tick was done under the lease. The release of the lease writes it.
    pub(crate) fn set_done(&self, done: DoneTick) {
        self.set_release_terms(|terms| terms.done = Some(done));
    }

    /// Records that other processes wait for the release, as followers wait for the release of a leader. A majority
    /// then confirms the release. If a failover undid it, there would be no leader until the ttl is over. And a change
    /// stream reports a change only when a majority has it.
    pub(crate) fn set_awaited(&self) {
        self.set_release_terms(|terms| terms.is_awaited = true);
    }

    /// Passes what the release depends on from a guard, which is given up, to its lease.
    pub(crate) fn pass_release_terms(&self) {
        let terms = self.release_terms();
        if let Some(backing) = &self.backing {
            backing.lease().set_release_terms(|of_lease| {
                of_lease.min_hold = of_lease.min_hold.or(terms.min_hold);
                of_lease.done = of_lease.done.or(terms.done);
                of_lease.is_awaited |= terms.is_awaited;
            });
        }
    }

    /// When the lease was granted, on the clock of this process.
    pub(crate) fn granted_at(&self) -> Instant {
        self.granted.granted_at
    }

    /// Sets the maximum hold that the caller requested, counted from `from`. This is called when the caller gets the
    /// lease.
    pub(crate) fn set_max_hold(&self, max_hold: Option<Duration>, from: Instant) {
        // If an `Instant` cannot express the end, the lease has no maximum hold.
        if let Some(end) = max_hold.and_then(|time| from.checked_add(time)) {
            self.state
                .send_modify(|state| state.validity.limit(end, Instant::now()));
        }
    }

    /// When the maximum hold is over. `None` if the lease has none.
    pub(crate) fn max_hold_deadline(&self) -> Option<Instant> {
        self.state.borrow().validity.end()
    }

    /// The maximum hold, counted from this instant, when the lease in the store was granted.
    pub(crate) fn max_hold_from(&self, granted_at: Instant) -> Option<Duration> {
        let end = self.max_hold_deadline()?;
        Some(end.saturating_duration_since(granted_at))
    }
}
