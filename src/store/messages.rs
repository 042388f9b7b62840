//! The questions to a store and its answers.

use std::{sync::Arc, time::Duration};

use chrono::{DateTime, Utc};

use crate::{
    Error, Fence, Key, MAX_HOLDERS,
    record::{Holder, LeaseId, Mode, between},
};

/// A question of [`Store::acquire`](crate::Store::acquire).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct AcquireRequest {
    /// The key.
    pub key: Key,
    /// The name of the grant, new for each acquire and the same in its retries.
    pub lease: LeaseId,
    /// Who asks.
    pub owner: Arc<str>,
    /// How long the grant lives, in whole milliseconds.
    pub ttl: Duration,
    /// What the holder allows beside itself.
    pub mode: Mode,
    /// How many permits it takes; 1 unless the mode is [`Mode::Permits`].
    pub permits: i64,
    /// How many permits there are; 1 unless the mode is [`Mode::Permits`].
    pub capacity: i64,
    /// Whether holders of the same owner do not count.
    pub reentrant: bool,
    /// How many live holders the key may have with this one: [`MAX_HOLDERS`] of a lease, fewer where a
    /// test wants to see the end.
    pub max_holders: usize,
    /// A remark for people.
    pub note: Option<Arc<str>>,
    /// A lease that makes way: its holder hands the key on. It is dropped in the same step, and does
    /// not conflict. If it is not among the holders, nothing is granted, be the key free or not; a lease
    /// that was granted before is told as granted.
    pub in_place_of: Option<LeaseId>,
    /// Whether no earlier request with this lease id can have been granted, or can be yet. A store may
    /// then take a lease that it finds for one that was granted just now.
    pub fresh: bool,
}

impl AcquireRequest {
    /// A request for an exclusive grant.
    pub fn exclusive(key: Key, lease: LeaseId, owner: Arc<str>, ttl: Duration) -> Self {
        Self {
            key,
            lease,
            owner,
            ttl,
            mode: Mode::Exclusive,
            permits: 1,
            capacity: 1,
            reentrant: false,
            max_holders: MAX_HOLDERS,
            note: None,
            in_place_of: None,
            fresh: false,
        }
    }

    /// The same for a grant that other shared holders may stand beside.
    pub fn shared(mut self) -> Self {
        self.mode = Mode::Shared;
        self
    }

    /// The same for so many permits of those that there are.
    pub fn permits(mut self, permits: i64, capacity: i64) -> Self {
        (self.mode, self.permits, self.capacity) = (Mode::Permits, permits, capacity);
        self
    }

    /// The same, beside other holders of the same owner.
    pub fn reentrant(mut self) -> Self {
        self.reentrant = true;
        self
    }

    /// The same on a key that may have so many live holders.
    pub fn max_holders(mut self, holders: usize) -> Self {
        self.max_holders = holders;
        self
    }

    /// The same with a remark for people.
    pub fn note(mut self, note: impl Into<Arc<str>>) -> Self {
        self.note = Some(note.into());
        self
    }

    /// The same in the place of this lease, which goes.
    pub fn in_place_of(mut self, lease: LeaseId) -> Self {
        self.in_place_of = Some(lease);
        self
    }

    /// The same for a lease id that nobody has asked for before.
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
    /// Other holders are live, and in conflict or [too many](crate::rules::is_full); or the lease in
    /// whose place it was to be granted is not among the holders.
    Held(Held),
}

/// A lease as its store knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The fencing token.
    pub fence: Fence,
    /// When it was granted, on the server's clock.
    pub acquired_at: DateTime<Utc>,
    /// When it ends unless it is renewed, on the server's clock.
    pub expires_at: DateTime<Utc>,
    /// The server's time as it answered.
    pub now: DateTime<Utc>,
}

impl Grant {
    /// How long the lease had to live when the server answered.
    pub fn expires_in(&self) -> Duration {
        between(self.now, self.expires_at)
    }
}

/// Who holds a lock that could not be granted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    key: Key,
    holders: Vec<Holder>,
    now: DateTime<Utc>,
}

impl Held {
    /// Puts an answer together from the live holders and the server's time.
    pub fn new(key: Key, holders: Vec<Holder>, now: DateTime<Utc>) -> Self {
        Self { key, holders, now }
    }

    /// The answer to a request for the place of a lease on a key that has no document: there is nobody,
    /// and the time is of no use.
    #[cfg(any(feature = "mongodb", feature = "elasticsearch", feature = "opensearch"))]
    pub(crate) fn by_nobody(key: Key) -> Self {
        Self::new(key, Vec::new(), DateTime::UNIX_EPOCH)
    }

    /// The key that is held.
    pub fn key(&self) -> &Key {
        &self.key
    }

    /// The live holders, oldest first.
    pub fn holders(&self) -> &[Holder] {
        &self.holders
    }

    /// The owner of the oldest live holder.
    pub fn owner(&self) -> &str {
        self.holders
            .first()
            .map_or("nobody", |holder| &holder.owner)
    }

    /// How long until the earliest of the holders expires, on the server's clock as it answered.
    /// A holder may release earlier, or renew and stay longer.
    pub fn expires_in(&self) -> Duration {
        first_expiry(&self.holders, self.now)
    }
}

/// A question of [`Store::renew`](crate::Store::renew).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RenewRequest {
    /// The key.
    pub key: Key,
    /// The name of the grant.
    pub lease: LeaseId,
    /// How long the grant lives from now at least, in whole milliseconds.
    pub ttl: Duration,
    /// What the holder knows of an exclusive grant whose acquire was sent only once. No other grant can then
    /// have the same lease id, and a store may answer that this one was renewed without reading its document.
    pub known: Option<KnownGrant>,
}

/// What the holder of a lease knows of its grant. No two keys have a lease of the same id, so that the id alone
/// tells which document is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KnownGrant {
    /// The fencing token.
    pub fence: Fence,
    /// When it was granted, on the server's clock.
    pub acquired_at: DateTime<Utc>,
}

impl RenewRequest {
    /// A request to renew.
    pub fn new(key: Key, lease: LeaseId, ttl: Duration) -> Self {
        Self {
            key,
            lease,
            ttl,
            known: None,
        }
    }

    /// The same for an exclusive grant that is [known](RenewRequest::known).
    pub fn known(mut self, grant: KnownGrant) -> Self {
        self.known = Some(grant);
        self
    }
}

/// The answers of [`Store::renew`](crate::Store::renew), in the order of the requests.
pub type RenewAnswers = Vec<Result<RenewAnswer, Error>>;

/// An answer of [`Store::renew`](crate::Store::renew).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RenewAnswer {
    /// The lease lives on, until the expiry that the grant tells: later than a ttl from now if it had
    /// been renewed for longer before.
    Renewed(Grant),
    /// The lease is over: it was not renewed in time. Nothing was written.
    Expired,
    /// The lease was evicted, or is not among the holders of its key. Nothing was written.
    TakenOver,
}

/// A question of [`Store::convert`](crate::Store::convert).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ConvertRequest {
    /// The key.
    pub key: Key,
    /// The name of the grant.
    pub lease: LeaseId,
    /// What it becomes: [`Mode::Exclusive`] or [`Mode::Shared`].
    pub mode: Mode,
}

impl ConvertRequest {
    /// A request to make a shared grant exclusive.
    pub fn upgrade(key: Key, lease: LeaseId) -> Self {
        let mode = Mode::Exclusive;
        Self { key, lease, mode }
    }

    /// A request to make an exclusive grant shared.
    pub fn downgrade(key: Key, lease: LeaseId) -> Self {
        let mode = Mode::Shared;
        Self { key, lease, mode }
    }
}

/// An answer of [`Store::convert`](crate::Store::convert).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConvertAnswer {
    /// The lease has the mode that was asked for: now, or since an earlier request.
    Converted(Grant),
    /// Others are live, so it stays as it is. Nothing was written.
    Held(Held),
    /// The lease is over: it was not renewed in time. Nothing was written.
    Expired,
    /// The lease was evicted, or is not among the holders of its key. Nothing was written.
    TakenOver,
}

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
}

/// What stays of a grant that is released early.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MinHold {
    /// For how long after the grant the key stays held, in whole milliseconds.
    pub time: Duration,
    /// The name under which it stays, which is nobody's.
    pub under: LeaseId,
}

impl ReleaseRequest {
    /// A request to release.
    pub fn new(key: Key, lease: LeaseId) -> Self {
        Self {
            key,
            lease,
            min_hold: None,
            alone: false,
        }
    }

    /// The same with a time, counted from the grant, for which the key stays held.
    pub fn min_hold(mut self, time: Duration, under: LeaseId) -> Self {
        self.min_hold = Some(MinHold { time, under });
        self
    }

    /// The same for a lease that is likely to be the only one of its key.
    pub fn alone(mut self) -> Self {
        self.alone = true;
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

/// The state of a key, as [`Leases::inspect`](crate::Leases::inspect) shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockState {
    /// The key.
    pub key: Key,
    /// The fencing token of the newest grant.
    pub fence: Fence,
    /// The live holders, oldest first; none if the key is free.
    pub holders: Vec<Holder>,
    /// The server's time as it answered.
    pub now: DateTime<Utc>,
}

impl LockState {
    /// Whether nobody holds the key.
    pub fn is_free(&self) -> bool {
        self.holders.is_empty()
    }

    /// The owner of the oldest live holder; `None` if the key is free.
    pub fn owner(&self) -> Option<&str> {
        self.holders.first().map(|holder| &*holder.owner)
    }

    /// How long until the earliest of the holders expires, on the server's clock as it answered;
    /// zero if the key is free.
    pub fn expires_in(&self) -> Duration {
        first_expiry(&self.holders, self.now)
    }
}

fn first_expiry(holders: &[Holder], now: DateTime<Utc>) -> Duration {
    let earliest = holders.iter().map(|holder| holder.expires_at).min();
    earliest.map_or(Duration::ZERO, |at| between(now, at))
}

/// What [`Leases::evict`](crate::Leases::evict) did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Eviction {
    /// The key's fence after the eviction, greater than that of any evicted holder.
    pub fence: Fence,
    /// The holders that were live and lost their lease, oldest first, as they were: each would have ended
    /// at its `expires_at`.
    pub evicted: Vec<Holder>,
}
