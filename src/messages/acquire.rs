//! The request for a lease, and its answer.

use std::{sync::Arc, time::Duration};

use chrono::{DateTime, Utc};

use crate::model::{Access, Done, Fence, Held, Key, LeaseId, Tick, WaiterId, between};

/// A request of [`Store::acquire`](crate::Store::acquire).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct AcquireRequest {
    /// The key to lock.
    pub key: Key,
    /// The id of the lease: new for each acquire, and the same in its retries.
    pub lease: LeaseId,
    /// The owner of the lease, which other clients see as the holder.
    pub owner: Arc<str>,
    /// How long the lease lives after the grant, in whole milliseconds.
    pub ttl: Duration,
    /// Whether the lease is to be exclusive, shared, or for some permits of the key.
    pub access: Access,
    /// Whether holders with the same owner never conflict with this request.
    pub reentrant: bool,
    /// A remark for people, which the store keeps with the holder.
    pub note: Option<Arc<str>>,
    /// The tick that is to be done under the lease. If it is done, or a later one is, the store refuses, whoever has the key.
    pub tick: Option<Tick>,
    /// The lease to replace in one step, another one than that of this request. If it is not among the holders, the store refuses, even if the key is free,
    /// unless this request's own lease was granted before.
    pub in_place_of: Option<LeaseId>,
    /// Whether no earlier request with this lease id was or can still be granted. If the store then finds a holder with
    /// the id, this request has granted it.
    pub fresh: bool,
    /// Whether the key was held a moment ago, so that this request is likely to be refused. A store may then read the
    /// document first, and refuse without a write.
    pub likely_held: bool,
    /// How the request stands to other processes that wait for the key.
    pub turn: Turn,
    /// What the client knows of the [place](crate::store::Place) of its process. It makes no difference to what is granted:
    /// a store may choose its statement by it.
    pub place: KnownPlace,
    /// Whether a grant leaves the place of its process where it is, because other tasks of that process wait in it, and
    /// the lease lets them in beside it. An exclusive lease does not, so its grant ends the place all the same.
    pub keeps_place: bool,
}

/// How a request stands to the processes that wait for its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// It is granted the key before all of them.
    Barging,
    /// It is not granted the key before them, and does not wait itself: a refusal writes nothing.
    Behind,
    /// Its process waits too. A refusal takes a [place](crate::store::Place) for it, or keeps the place that it has.
    InTurn {
        /// The process.
        waiter: WaiterId,
        /// For how long the place counts after this request, at most
        /// [`MAX_PLACE_TIME`](crate::limits::MAX_PLACE_TIME). The process asks again before that.
        stays: Duration,
    },
}

/// What a client knows of the place of its process in the queue of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KnownPlace {
    /// No request has taken it.
    None,
    /// It may be there, so that the key may be kept for it.
    Taken,
    /// The same, and a refusal is going to write it again, because some of its time is over.
    Due,
}

impl Turn {
    /// The process that waits, if it does.
    pub fn waiter(self) -> Option<WaiterId> {
        match self {
            Self::Barging | Self::Behind => None,
            Self::InTurn { waiter, .. } => Some(waiter),
        }
    }
}

impl AcquireRequest {
    /// A request for an exclusive lease, [behind](Turn::Behind) all processes that wait for the key.
    pub fn exclusive(key: Key, lease: LeaseId, owner: Arc<str>, ttl: Duration) -> Self {
        Self {
            key,
            lease,
            owner,
            ttl,
            access: Access::Exclusive,
            reentrant: false,
            note: None,
            tick: None,
            in_place_of: None,
            fresh: false,
            likely_held: false,
            turn: Turn::Behind,
            place: KnownPlace::None,
            keeps_place: false,
        }
    }

    /// The same for a shared lease.
    pub fn shared(mut self) -> Self {
        self.access = Access::Shared;
        self
    }

    /// The same for `permits` of the `capacity` permits of the key.
    pub fn permits(mut self, permits: i64, capacity: i64) -> Self {
        self.access = Access::Permits {
            n: permits,
            of: capacity,
        };
        self
    }

    /// The same, without conflicts with holders of the same owner.
    pub fn reentrant(mut self) -> Self {
        self.reentrant = true;
        self
    }

    /// The same with a remark for people.
    pub fn note(mut self, note: impl Into<Arc<str>>) -> Self {
        self.note = Some(note.into());
        self
    }

    /// The same for a [tick](AcquireRequest#structfield.tick).
    pub fn tick(mut self, tick: Tick) -> Self {
        self.tick = Some(tick);
        self
    }

    /// The same, [in the place of](AcquireRequest#structfield.in_place_of) this lease.
    pub fn in_place_of(mut self, lease: LeaseId) -> Self {
        self.in_place_of = Some(lease);
        self
    }

    /// The same for a key that [was held](AcquireRequest#structfield.likely_held) a moment ago.
    pub fn likely_held(mut self) -> Self {
        self.likely_held = true;
        self
    }

    /// The same with another [turn](AcquireRequest#structfield.turn).
    pub fn turn(mut self, turn: Turn) -> Self {
        self.turn = turn;
        self
    }

    /// The same for a process that [knows](AcquireRequest#structfield.place) this of its place.
    pub fn place(mut self, place: KnownPlace) -> Self {
        self.place = place;
        self
    }

    /// The same for a process that [keeps its place](AcquireRequest#structfield.keeps_place) after a grant.
    pub fn keeping_place(mut self) -> Self {
        self.keeps_place = true;
        self
    }

    /// The place that a grant ends.
    pub(crate) fn ended_place(&self) -> Option<WaiterId> {
        let stays = self.keeps_place && self.access != Access::Exclusive;
        self.turn.waiter().filter(|_| !stays)
    }

    /// The same for a lease id that [was in no request](AcquireRequest#structfield.fresh) before.
    pub fn fresh(mut self) -> Self {
        self.fresh = true;
        self
    }
}

/// An answer of [`Store::acquire`](crate::Store::acquire).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AcquireAnswer {
    /// The lease is a live holder: granted now, or by an earlier request with the same lease id.
    Granted(Grant),
    /// The request was refused: live holders conflict with it or are [too many](crate::rules::is_full), the lease that
    /// it would replace is not among the holders, or other processes come first. Nothing but a
    /// [place](Turn::InTurn) was written.
    Held(Held),
    /// The tick of the request is done, or a later one is. Nothing was written. Only a request for a
    /// [tick](AcquireRequest#structfield.tick) has this answer.
    Done(Done),
}

/// A live lease, as the store has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The fencing token.
    pub fence: Fence,
    /// When the lease was granted, on the server's clock.
    pub acquired_at: DateTime<Utc>,
    /// When the lease expires unless it is renewed, on the server's clock.
    pub expires_at: DateTime<Utc>,
    /// The server's time as it answered.
    pub now: DateTime<Utc>,
}

impl Grant {
    /// How much of the ttl was left when the server answered.
    pub fn expires_in(&self) -> Duration {
        between(self.now, self.expires_at)
    }
}
