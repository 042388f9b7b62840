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
    /// What the release writes besides removing the lease.
    pub kind: ReleaseKind,
    /// A hint that the lease is likely to be the only holder of its key. A wrong hint costs a second command, and does
    /// not change the result.
    pub likely_sole: bool,
}

/// What a release writes besides removing its lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ReleaseKind {
    /// Nothing.
    Plain {
        /// Whether a failover may undo the release. The key then stays held until the ttl is over. A store may
        /// acknowledge such a release before other members of a replica set have it.
        undoable: bool,
    },
    /// The key stays held for some time after the grant, in spite of the release. A failover must not undo that,
    /// because the key could be free too early.
    MinHold(MinHold),
    /// A tick was done under the lease. The store releases the lease and writes the tick in one step, and only if the
    /// lease is live: nothing is done under a lease that was lost. A failover must not undo that, because the job would
    /// run again.
    Done(DoneTick),
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
            kind: ReleaseKind::Plain { undoable: false },
            likely_sole: false,
        }
    }

    /// The same request, with a minimum hold of `time` after the grant, under the id `placeholder`, in place of any
    /// other kind.
    pub fn min_hold(mut self, time: Duration, placeholder: LeaseId) -> Self {
        self.kind = ReleaseKind::MinHold(MinHold { time, placeholder });
        self
    }

    /// The same request, with a tick that was done under the lease and that the store keeps for `kept_for`, in place of
    /// any other kind.
    pub fn done(mut self, tick: Tick, kept_for: Duration) -> Self {
        self.kind = ReleaseKind::Done(DoneTick { tick, kept_for });
        self
    }

    /// The same request for a lease that is likely to be the only holder of its key.
    pub fn likely_sole(mut self) -> Self {
        self.likely_sole = true;
        self
    }

    /// The same request, [which a failover may undo](ReleaseKind::Plain), unless its kind forbids that.
    pub fn undoable(mut self) -> Self {
        if let ReleaseKind::Plain { undoable } = &mut self.kind {
            *undoable = true;
        }
        self
    }

    /// Whether a store may look for a sole holder only: the lease is likely to be that, and leaves nothing behind.
    #[cfg(feature = "mongodb")]
    pub(crate) fn is_of_a_sole_lease(&self) -> bool {
        self.likely_sole && matches!(self.kind, ReleaseKind::Plain { .. })
    }

    /// Whether [a failover may undo](ReleaseKind::Plain) the release.
    pub fn is_undoable(&self) -> bool {
        self.kind == ReleaseKind::Plain { undoable: true }
    }

    /// The minimum hold of the request.
    pub(crate) fn minimum_hold(&self) -> Option<MinHold> {
        match self.kind {
            ReleaseKind::MinHold(hold) => Some(hold),
            ReleaseKind::Plain { .. } | ReleaseKind::Done(_) => None,
        }
    }

    /// The tick that was done under the lease.
    pub(crate) fn done_tick(&self) -> Option<DoneTick> {
        match self.kind {
            ReleaseKind::Done(done) => Some(done),
            ReleaseKind::Plain { .. } | ReleaseKind::MinHold(_) => None,
        }
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
