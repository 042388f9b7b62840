//! The request to release a lease, and its answer.

use std::time::Duration;

use crate::model::{Key, LeaseId, Tick};

/// A request of [`Store::release`](crate::Store::release).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ReleaseRequest {
    /// The key.
    pub key: Key,
    /// The id of the lease.
    pub lease: LeaseId,
    /// How long after the grant the key stays held in spite of the release; `None` to free it at once.
    pub min_hold: Option<MinHold>,
    /// The tick that was done under the lease. The store releases the lease and writes the tick in one step, and only
    /// if the lease is live: nothing is done under a lease that was lost. The store ignores a minimum hold then.
    pub done: Option<DoneTick>,
    /// A hint that the lease is likely to be the only holder of its key. A wrong hint costs a second command, and does
    /// not change the result.
    pub likely_sole: bool,
    undoable: bool,
}

/// A tick that was done under a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DoneTick {
    /// The tick.
    pub tick: Tick,
    /// How long the store keeps that the tick is done, in whole milliseconds.
    pub kept_for: Duration,
}

/// A minimum hold: how long the key stays held after an early release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MinHold {
    /// How long after the grant the key stays held, in whole milliseconds.
    pub time: Duration,
    /// The lease id under which the key stays held. No request has this id, so nobody can release it.
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

    /// The same request, with a minimum hold of `time` after the grant, under the id `placeholder`.
    pub fn min_hold(mut self, time: Duration, placeholder: LeaseId) -> Self {
        self.min_hold = Some(MinHold { time, placeholder });
        self
    }

    /// The same request, with a tick that was done under the lease and that the store keeps for `kept_for`.
    pub fn done(mut self, tick: Tick, kept_for: Duration) -> Self {
        self.done = Some(DoneTick { tick, kept_for });
        self
    }

    /// The same request for a lease that is likely to be the only holder of its key.
    pub fn likely_sole(mut self) -> Self {
        self.likely_sole = true;
        self
    }

    /// The same request for a release that a failover may undo. The key then stays taken until the ttl is over.
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
    /// replica set have it.
    ///
    /// A release with a minimum hold must not be undone, because the key could be free too early. Nor must one with a
    /// done tick, because the job would run again.
    pub fn is_undoable(&self) -> bool {
        self.undoable && self.min_hold.is_none() && self.done.is_none()
    }
}

/// An answer of [`Store::release`](crate::Store::release).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReleaseAnswer {
    /// The lease was a holder, and is none any more. It may have expired, but no other lease was granted the key after
    /// it.
    Released,
    /// The lease was not a holder: it was released or evicted before, or it expired and another lease was granted the
    /// key. Nothing was written.
    NotHeld,
}
