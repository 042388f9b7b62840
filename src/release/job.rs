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
    /// `None` if the lease never came to a caller.
    pub(crate) fence: Option<Fence>,
    pub(crate) ttl: Duration,
    /// For how long, counted from the grant, the key stays held all the same.
    pub(crate) min_hold: Option<MinHold>,
    /// Whether an acquire that may be granted this lease anew may still be on its way to the server.
    pub(crate) maybe_in_flight: bool,
    /// Whether the lease is exclusive, and so likely to be the only holder of its key.
    pub(crate) alone: bool,
    /// Until when the store may answer before the release is safe from a failover: until the local deadline of the
    /// lease. `None` if a failover must never undo the release: it leaves a minimum hold, or the lease may yet be
    /// granted anew.
    pub(crate) undoable_until: Option<Instant>,
    /// Whether the next waiter may be granted the key in the place of this lease.
    pub(crate) can_hand_off: bool,
    /// How the first request for the release is sent.
    pub(crate) batching: Batching,
}

impl ReleaseJob {
    /// The release of a lease that was held.
    pub(super) fn of(state: &LeaseState) -> Self {
        let (maybe_in_flight, min_hold) = (state.maybe_in_flight(), state.min_hold());
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
            // Only the release of an exclusive lease is sure to free the key. One with a minimum hold has to leave that
            // behind, and one that a late acquire may be granted anew is released more than once.
            can_hand_off: alone && min_hold.is_none() && !maybe_in_flight,
            alone,
            undoable_until: (min_hold.is_none() && !maybe_in_flight).then(|| state.deadline()),
            batching: Batching::Any,
        }
    }

    /// The fields of the events of this release.
    pub(super) fn fields(&self, waited_for: bool) -> ReleaseFields<'_> {
        ReleaseFields {
            key: &self.key,
            lease: self.lease,
            fence: self.fence,
            waited_for,
        }
    }

    /// The next request; `answered` says whether one was answered already. After that no request leaves a minimum hold
    /// behind: it releases what a late acquire was granted, under which nobody has worked.
    pub(crate) fn request(&self, answered: bool, now: Instant) -> ReleaseRequest {
        let mut request = ReleaseRequest::new(self.key.clone(), self.lease);
        request.min_hold = self.min_hold.filter(|_| !answered);
        request.alone = self.alone;
        // After the local deadline the key may have been granted to another by a new primary, while a former one, which
        // still takes itself for the primary, would answer that the lease is released.
        request.undoable = self.undoable_until.is_some_and(|until| now < until);
        request
    }
}
