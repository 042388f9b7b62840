//! The request to release a lease, and its answer.

use std::time::Duration;

use crate::model::{Key, LeaseId};

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
    /// A hint that the lease is likely to be the only holder of its key. A wrong hint costs a second command, and
    /// changes no result.
    pub likely_sole: bool,
    undoable: bool,
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
            likely_sole: false,
            undoable: false,
        }
    }

    /// The same with a time, counted from the grant, for which the key stays held.
    pub fn min_hold(mut self, time: Duration, placeholder: LeaseId) -> Self {
        self.min_hold = Some(MinHold { time, placeholder });
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

    /// Whether a failover may undo the release. A store may acknowledge such a release before other members of a
    /// replica set have it. A release with a minimum hold is none: without it the key would be free too early.
    pub fn is_undoable(&self) -> bool {
        self.undoable && self.min_hold.is_none()
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
