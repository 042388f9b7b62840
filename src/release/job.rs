//! A lease that is to be released, and the request for it.

use std::time::Duration;

use tokio::time::Instant;

use crate::{
    coalescer::Batching,
    lease_state::LeaseState,
    messages::{MinHold, ReleaseRequest},
    model::{Fence, Key, LeaseId, Mode},
    telemetry::ReleaseFields,
};

/// A lease that is, or may be, in the store, and is to be released: given up by its holder, or never taken.
#[derive(Clone, Debug)]
pub(crate) struct ReleaseJob {
    pub(crate) key: Key,
    pub(crate) lease: LeaseId,
    /// `None` if no caller ever had it.
    pub(crate) fence: Option<Fence>,
    pub(crate) ttl: Duration,
    /// For how long, counted from the grant, the key stays held all the same.
    pub(crate) min_hold: Option<MinHold>,
    /// Whether a request for it may still be on its way to the server.
    pub(crate) maybe_in_flight: bool,
    /// Whether it is exclusive, and so likely to be the only one of its key.
    pub(crate) alone: bool,
    /// Until when a failover may undo the release: the local deadline of a lease without a minimum hold. `None` if it
    /// must not be undone, as that of a lease that may yet be granted.
    pub(crate) undoable_until: Option<Instant>,
    /// Whether the next waiter may be granted the key in the place of this lease.
    pub(crate) can_hand_off: bool,
    /// How the first request for it is sent.
    pub(crate) batching: Batching,
}

impl ReleaseJob {
    /// The release of a lease that was held.
    pub(super) fn of(state: &LeaseState) -> Self {
        let (maybe_in_flight, min_hold) = (state.may_be_in_flight(), state.min_hold());
        let (mode, fence) = state.mode_and_fence();
        let alone = mode == Mode::Exclusive;
        Self {
            key: state.key().clone(),
            lease: state.id(),
            fence: Some(fence),
            ttl: state.ttl(),
            min_hold: min_hold.map(|time| MinHold {
                time,
                placeholder: LeaseId::random(),
            }),
            maybe_in_flight,
            // Beside others it would free nothing, and one that may be in flight is released more than once.
            can_hand_off: alone && min_hold.is_none() && !maybe_in_flight,
            alone,
            undoable_until: (min_hold.is_none() && !maybe_in_flight).then(|| state.deadline()),
            batching: Batching::Any,
        }
    }

    /// The fields of its events.
    pub(super) fn fields(&self, waited_for: bool) -> ReleaseFields<'_> {
        ReleaseFields {
            key: &self.key,
            lease: self.lease,
            fence: self.fence,
            waited_for,
        }
    }

    /// The next request, after one that was answered or before that. Only the first one leaves a
    /// minimum hold behind: what comes later is not the work of a holder.
    pub(crate) fn request(&self, answered: bool, now: Instant) -> ReleaseRequest {
        let mut request = ReleaseRequest::new(self.key.clone(), self.lease);
        request.min_hold = self.min_hold.filter(|_| !answered);
        request.alone = self.alone;
        // After the local deadline it may go to a server that was the primary once, and still takes itself for it.
        request.undoable = self.undoable_until.is_some_and(|until| now < until);
        request
    }
}
