//! The question to release a lease, and its answer.

use std::time::Duration;

use crate::model::{Key, LeaseId};

/// A question of [`Store::release`](crate::Store::release).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ReleaseRequest {
    /// The key.
    pub key: Key,
    /// The name of the grant.
    pub lease: LeaseId,
    /// For how long, counted from the grant, the key stays held all the same.
    pub min_hold: Option<MinHold>,
    /// Whether the lease is likely to be the only one of its key. It is right to say so of one that is
    /// not, and slower.
    pub alone: bool,
    /// Whether a failover may undo the release: the key then stays taken until the ttl is over. A store may
    /// acknowledge such a release before other members of a replica set have it.
    pub undoable: bool,
}

/// A minimum hold: the holder that stays after an early release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MinHold {
    /// For how long after the grant the key stays held, in whole milliseconds.
    pub time: Duration,
    /// The lease id under which it stays, which no request has.
    pub placeholder: LeaseId,
}

impl ReleaseRequest {
    /// A request to release.
    pub fn new(key: Key, lease: LeaseId) -> Self {
        Self {
            key,
            lease,
            min_hold: None,
            alone: false,
            undoable: false,
        }
    }

    /// The same with a time, counted from the grant, for which the key stays held.
    pub fn min_hold(mut self, time: Duration, placeholder: LeaseId) -> Self {
        self.min_hold = Some(MinHold { time, placeholder });
        self
    }

    /// The same for a lease that is likely to be the only one of its key.
    pub fn alone(mut self) -> Self {
        self.alone = true;
        self
    }

    /// The same for a release that a failover [may undo](Self::undoable).
    pub fn undoable(mut self) -> Self {
        self.undoable = true;
        self
    }
}

/// An answer of [`Store::release`](crate::Store::release).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReleaseAnswer {
    /// The lease was a holder, and is none now. It may have been past its expiry, but nobody was granted
    /// the key in its place.
    Released,
    /// The lease was not a holder: it was released or evicted, or another was granted the key after its
    /// expiry. Nothing was written.
    NotHeld,
}
