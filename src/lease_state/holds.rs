//! What is set after the caller has got the lease: the maximum hold, and what the release depends on.

use std::time::Duration;

use tokio::time::Instant;

use super::{LeaseState, status::ReleaseTerms};

impl LeaseState {
    /// What the release of the lease depends on.
    pub(crate) fn release_terms(&self) -> ReleaseTerms {
        self.state.borrow().release
    }

    /// Changes what the release of the lease depends on.
    pub(crate) fn set_release_terms(&self, change: impl FnOnce(&mut ReleaseTerms)) {
        self.set(|state| change(&mut state.release));
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
