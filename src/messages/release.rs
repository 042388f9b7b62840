//! The request to release a lease, and its answer.

use std::time::Duration;

use crate::model::{Key, LeaseId, Tick};

/// A request for [`Store::release`](crate::Store::release).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ReleaseRequest {
    /// The key.
    pub key: Key,
    /// The id of the lease.
    pub lease: LeaseId,
    /// For how long, counted from the grant, the key stays held all the same.
    pub min_hold: Option<MinHold>,
    /// The tick that was done under the lease. The store writes it in the step that releases a live lease, and releases no
    /// other: nothing is done under a lease that was lost. There is no minimum hold then.
    pub done: Option<DoneTick>,
    /// A hint that the lease is likely to be the only holder of its key. A wrong hint costs a second command, and
    /// changes no result.
    pub likely_sole: bool,
    undoable: bool,
}

/// A tick that was done under a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DoneTick {
    /// The tick.
    pub tick: Tick,
    /// For how long the store keeps that it is done, in whole milliseconds.
    pub kept_for: Duration,
}

/// A minimum hold: the holder that stays after an early release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MinHold {
    /// For how long after the grant the key stays held, in whole milliseconds.
    pub time: Duration,
    /// The lease id under which the key stays held, which no request has.
    pub placeholder: LeaseId,
}

impl ReleaseRequest {
    /// A request to release a lease.
    pub fn new(key: Key, lease: LeaseId) -> Self {
        Self {
            key,
            lease,
            min_hold: None,
            done: None,
            likely_sole: false,
            undoable: false,
        }
    }

    /// The same with a time, counted from the grant, for which the key stays held.
    pub fn min_hold(mut self, time: Duration, placeholder: LeaseId) -> Self {
        self.min_hold = Some(MinHold { time, placeholder });
        self
    }

    /// The same with a tick that was done under the lease, which the store keeps for so long.
    pub fn done(mut self, tick: Tick, kept_for: Duration) -> Self {
        self.done = Some(DoneTick { tick, kept_for });
        self
    }

    /// The same for a lease that is likely to be the only holder of its key.
    pub fn likely_sole(mut self) -> Self {
        self.likely_sole = true;
        self
    }

    /// The same for a release that a failover may undo: the key then stays taken until the ttl is over.
    pub fn undoable(mut self) -> Self {
        self.undoable = true;
        self
    }

    /// Whether a store may look for a sole holder only: the lease is likely to be that, and leaves nothing behind.
    #[cfg(feature = "mongodb")]
    pub(crate) fn is_of_a_sole_lease(&self) -> bool {
        self.likely_sole && self.min_hold.is_none() && self.done.is_none()
    }

    /// Whether a failover may undo the release. A store may acknowledge such a release before other members of a
    /// replica set have it. A release with a minimum hold is none: without it the key would be free too early. Nor is one with
    /// a tick that was done: it would be done again.
    pub fn is_undoable(&self) -> bool {
        self.undoable && self.min_hold.is_none() && self.done.is_none()
    }
}

/// An answer of [`Store::release`](crate::Store::release).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReleaseAnswer {
    /// The lease was a holder, and is none now. It may have expired, but no other lease was granted the key in its
    /// place.
    Released,
    /// The lease was not a holder: it was released or evicted, or another was granted the key after its
    /// expiry. Nothing was written.
    NotHeld,
}
