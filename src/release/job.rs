//! A lease that is to be released, and the requests for it.

use std::time::Duration;

use tokio::time::Instant;

use crate::{
    coalescer::PlannedRelease,
    lease_state::LeaseState,
    messages::{DoneTick, MinHold, ReleaseRequest},
    model::{Fence, Key, LeaseId, Mode},
    telemetry::ReleaseFields,
};

/// A lease that is, or may be, in the store, and is to be released: given up by its holder, or never taken.
#[derive(Clone, Debug)]
pub(crate) struct ReleaseJob {
    pub(crate) key: Key,
    pub(crate) lease: LeaseId,
    pub(crate) ttl: Duration,
    /// Whether the lease is exclusive, and so likely to be the only holder of its key.
    pub(crate) is_exclusive: bool,
    /// Whether an acquire that may be granted this lease anew may still be on its way to the server.
    pub(crate) maybe_in_flight: bool,
    /// `None` if the lease never came to a caller.
    pub(crate) held: Option<HeldLease>,
}

/// What its holder knew of the lease.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HeldLease {
    pub(super) fence: Fence,
    /// The local deadline.
    pub(super) deadline: Instant,
    /// For how long, counted from the grant, the key stays held all the same.
    pub(super) min_hold: Option<MinHold>,
    /// The tick that was done under it.
    pub(super) done: Option<DoneTick>,
    /// Whether others wait to hear of the release.
    pub(super) is_awaited: bool,
}

impl ReleaseJob {
    /// The release of a lease that was held.
    pub(super) fn of(state: &LeaseState) -> Self {
        let (mode, fence) = state.mode_and_fence();
        Self {
            key: state.key().clone(),
            lease: state.id(),
            ttl: state.ttl(),
            is_exclusive: mode == Mode::Exclusive,
            maybe_in_flight: state.maybe_in_flight(),
            held: Some(HeldLease {
                fence,
                deadline: state.deadline(),
                min_hold: state.min_hold().map(|time| MinHold {
                    time,
                    placeholder: LeaseId::random(),
                }),
                done: state.done(),
                is_awaited: state.is_awaited(),
            }),
        }
    }

    /// The fields of the events of this release.
    pub(super) fn fields(&self, waited_for: bool) -> ReleaseFields<'_> {
        ReleaseFields {
            key: &self.key,
            lease: self.lease,
            fence: self.held.map(|held| held.fence),
            waited_for,
        }
    }

    /// Whether the next waiter may be granted the key in the place of this lease.
    ///
    /// Only the release of an exclusive lease is sure to free the key. One with a minimum hold, or with a tick that was
    /// done, has to leave that behind, and one that a late acquire may be granted anew is released more than once.
    pub(super) fn can_hand_off(&self) -> bool {
        self.is_exclusive && self.undoable_until().is_some()
    }

    /// Until when a failover may undo the release, so that a store need not confirm it by a majority: until the local
    /// deadline of the lease. The key then stays taken until the ttl is over, which the lease promises anyway.
    ///
    /// After the deadline another may have been granted the key by a new primary, while a former one, which still takes
    /// itself for the primary, would answer that the lease is released. `None`, so never, for a lease that leaves a
    /// minimum hold or a tick that was done, that a late acquire may be granted anew, or that never came to a caller: then it is not known how
    /// long the key would stay taken, or the minimum hold would be lost.
    fn undoable_until(&self) -> Option<Instant> {
        let held = self
            .held
            .filter(|held| held.min_hold.is_none() && held.done.is_none())?;
        (!self.maybe_in_flight).then_some(held.deadline)
    }

    /// The first request.
    pub(crate) fn first_request(&self) -> PlannedRelease {
        let mut request = ReleaseRequest::new(self.key.clone(), self.lease);
        request.min_hold = self.held.and_then(|held| held.min_hold);
        request.done = self.held.and_then(|held| held.done);
        request.likely_sole = self.is_exclusive;
        let is_awaited = self.held.is_some_and(|held| held.is_awaited);
        PlannedRelease {
            request,
            undoable_until: self.undoable_until().filter(|_| !is_awaited),
            is_repeated: false,
        }
    }

    /// A later request; `answered` says whether one was answered already. After that no request leaves a minimum hold or
    /// a tick behind: it releases what a late acquire was granted, under which no work was done.
    pub(super) fn repeated_request(&self, answered: bool) -> PlannedRelease {
        let mut again = self.first_request();
        again.request.min_hold = again.request.min_hold.filter(|_| !answered);
        again.request.done = again.request.done.filter(|_| !answered);
        again.is_repeated = true;
        again
    }
}
