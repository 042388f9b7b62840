//! The request for a lease, and its answer.

use std::{num::NonZeroU16, sync::Arc, time::Duration};

use chrono::{DateTime, Utc};

use crate::model::{
    Access, Done, Error, Fence, Held, Holder, Key, LeaseId, Permits, Tick, between,
};

/// A request of [`Store::acquire`](crate::Store::acquire).
///
/// [`AcquireRequest::exclusive`] makes one, and the other methods change it:
///
/// ```
/// use std::time::Duration;
/// use leasehold::{Key, store::{AcquireRequest, LeaseId}};
///
/// let (key, lease) = (Key::new("report:42")?, LeaseId::random());
/// let request = AcquireRequest::exclusive(key, lease, "pod-3".into(), Duration::from_secs(30))
///     .shared()
///     .note("nightly run");
/// # Ok::<(), leasehold::Error>(())
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct AcquireRequest {
    /// The key to lock.
    pub key: Key,
    /// The id of the lease. It is new for each acquire, and the same in the retries of that acquire.
    pub lease: LeaseId,
    /// The owner of the lease, which other clients see as the holder.
    pub owner: Arc<str>,
    /// How long the lease lives after the grant, in whole milliseconds.
    pub ttl: Duration,
    /// Whether the lease is to be exclusive, shared, or for some permits of the key.
    pub access: Access,
    /// What the live leases of the same owner mean for this request.
    pub own_leases: OwnLeases,
    /// A remark for people, which the store keeps with the holder.
    pub note: Option<Arc<str>>,
    /// The tick that the holder wants to do under the lease. If this tick or a later one is done, the store refuses the
    /// request, even if the key is free.
    pub tick: Option<Tick>,
    /// What became of the earlier requests with this lease id.
    pub earlier: Earlier,
    /// Whether the key was held a moment ago. The store is then likely to refuse the request, so it may read the
    /// document first, and refuse without a write.
    pub likely_held: bool,
    /// Whether the request waits for its turn among the processes that wait for the key.
    pub turn: Turn,
    /// How many fences in a row a grant takes. The grant has the last of them, so the next grant is above all of them.
    /// The client gives the others to leases that it grants from its memory.
    pub fences: NonZeroU16,
}

/// What the live leases of the owner of a request mean for it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum OwnLeases {
    /// They conflict with it as those of other owners do.
    Conflict,
    /// They do not conflict with it, and it is granted beside them, with the greatest of their fences.
    Beside,
    /// These do not conflict with it, and its grant ends them. It has a new fence. They are named, so that a request that
    /// is carried out late ends no newer lease.
    TakenOver(Arc<[LeaseId]>),
}

/// What became of the earlier requests for the same lease. It does not change what is granted. A store may choose its
/// statement by it: if none of them was granted, and it finds a holder with the id, this request was granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Earlier {
    /// There was none, so the document has neither the lease nor a place of its own.
    None,
    /// Each was refused, and none can be granted any more. The document may have a place of the lease.
    Refused,
    /// One may have been granted, or may still be granted.
    Unclear,
}

/// How a request relates to the processes that wait for its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// The request ignores them: it is granted the key as if no process waited.
    Barging,
    /// The request is not granted the key before them. It does not wait itself, so a refusal writes nothing.
    Behind,
    /// The process of the request waits too. A refusal writes a [place](crate::Place) for it, or keeps the place
    /// that it has.
    InTurn(InTurn),
}

/// A process that waits for a key in turn, and what a request of it says about its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct InTurn {
    /// The process.
    pub waiter: LeaseId,
    /// How long the place counts after this request, at most [`MAX_PLACE_TIME`](crate::limits::MAX_PLACE_TIME). The
    /// process asks again before that time is over.
    pub counts_for: Duration,
}

impl Turn {
    /// The turn of a process that waits, as [`InTurn::new`] makes it.
    pub fn in_turn(waiter: LeaseId, counts_for: Duration) -> Self {
        Self::InTurn(InTurn::new(waiter, counts_for))
    }

    /// The process that waits; `None` unless the turn is [`InTurn`](Turn::InTurn).
    pub fn waiter(self) -> Option<LeaseId> {
        match self {
            Self::Barging | Self::Behind => None,
            Self::InTurn(turn) => Some(turn.waiter),
        }
    }
}

impl InTurn {
    /// A process that waits, and asks again within the time `counts_for`.
    pub fn new(waiter: LeaseId, counts_for: Duration) -> Self {
        Self { waiter, counts_for }
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
            own_leases: OwnLeases::Conflict,
            note: None,
            tick: None,
            earlier: Earlier::Unclear,
            likely_held: false,
            turn: Turn::Behind,
            fences: NonZeroU16::MIN,
        }
    }

    /// The same request for a shared lease.
    pub fn shared(mut self) -> Self {
        self.access = Access::Shared;
        self
    }

    /// The same request for `n` of the `of` permits of the key.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidPermits`] unless `n` is between 1 and `of`.
    pub fn permits(mut self, n: i64, of: i64) -> Result<Self, Error> {
        self.access = Access::Permits(Permits::new(n, of)?);
        Ok(self)
    }

    /// The same request, which does not conflict with holders of the same owner.
    pub fn reentrant(mut self) -> Self {
        self.own_leases = OwnLeases::Beside;
        self
    }

    /// The same request, whose grant ends these leases of the same owner.
    pub fn take_over(mut self, leases: impl Into<Arc<[LeaseId]>>) -> Self {
        self.own_leases = OwnLeases::TakenOver(leases.into());
        self
    }

    /// Whether this holder is one of those of the owner that do not conflict with the request.
    pub fn is_own(&self, holder: &Holder) -> bool {
        match &self.own_leases {
            OwnLeases::Conflict => false,
            OwnLeases::Beside => holder.owner == self.owner,
            OwnLeases::TakenOver(leases) => leases.contains(&holder.lease),
        }
    }

    /// Whether it does not conflict with holders of the same owner, and is granted beside them.
    pub fn is_reentrant(&self) -> bool {
        self.own_leases == OwnLeases::Beside
    }

    /// The same request, with a remark for people.
    pub fn note(mut self, note: impl Into<Arc<str>>) -> Self {
        self.note = Some(note.into());
        self
    }

    /// The same request for a lease to do this [tick](AcquireRequest#structfield.tick).
    pub fn tick(mut self, tick: Tick) -> Self {
        self.tick = Some(tick);
        self
    }

    /// The same request for a key that [was held](AcquireRequest#structfield.likely_held) a moment ago.
    pub fn likely_held(mut self) -> Self {
        self.likely_held = true;
        self
    }

    /// The same request with another [turn](AcquireRequest#structfield.turn).
    pub fn turn(mut self, turn: Turn) -> Self {
        self.turn = turn;
        self
    }

    /// The same request for a grant that takes this many [fences](AcquireRequest#structfield.fences).
    pub fn fences(mut self, fences: NonZeroU16) -> Self {
        self.fences = fences;
        self
    }

    /// Whether the process waits already, and asks so rarely that a refusal is likely to write its place again.
    #[cfg(any(feature = "elasticsearch", feature = "mongodb", feature = "opensearch"))]
    pub(crate) fn is_likely_to_write_place(&self) -> bool {
        /// The place of a process that asks at least twice a second counts for no longer.
        const OFTEN: Duration = Duration::from_secs(1);
        let is_rare = matches!(self.turn, Turn::InTurn(turn) if turn.counts_for > OFTEN);
        is_rare && self.earlier == Earlier::Refused
    }

    /// The same request, whose lease id [was in no request](Earlier::None) before.
    pub fn fresh(mut self) -> Self {
        self.earlier = Earlier::None;
        self
    }
}

/// An answer of [`Store::acquire`](crate::Store::acquire).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AcquireAnswer {
    /// The lease is a live holder. This request was granted it, or an earlier request with the same lease id was.
    Granted(Grant),
    /// The request was refused: live holders conflict with it, the key has [too many holders](crate::rules::is_full),
    /// the lease that it would replace is not among the holders, or other processes come first. Nothing was written,
    /// except perhaps a [place](Turn::InTurn).
    Held(Held),
    /// The newest done tick, which is that of the request or a later one. Nothing was written. Only a request with a
    /// [tick](AcquireRequest#structfield.tick) gets this answer.
    Done(Done),
}

/// A live lease, as the store knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The fencing token.
    pub fence: Fence,
    /// When the lease was granted, on the server's clock.
    pub acquired_at: DateTime<Utc>,
    /// When the lease expires unless it is renewed, on the server's clock.
    pub expires_at: DateTime<Utc>,
    /// The time of the server when it answered.
    pub now: DateTime<Utc>,
    /// Whether other processes wait for the key in turn. `false` in the answer to a renewal or a conversion, which does
    /// not tell.
    pub is_awaited: bool,
}

impl Grant {
    /// How much of the ttl was left when the server answered.
    pub fn expires_in(&self) -> Duration {
        between(self.now, self.expires_at)
    }
}
