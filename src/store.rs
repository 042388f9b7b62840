//! What a store does: the trait, its requests and its answers.
//!
//! A store carries out the rules of [`rules`](crate::rules) on one document a key, each operation
//! atomic and in one round trip, on the clock of its server. It never sleeps, never retries
//! (but for a race that the database reports instead of resolving), and knows nothing of guards.

#[cfg(any(feature = "elasticsearch", feature = "opensearch"))]
pub(crate) mod elasticsearch;
pub(crate) mod list;
pub(crate) mod memory;
#[cfg(feature = "mongodb")]
pub(crate) mod mongodb;

use std::{fmt, sync::Arc, time::Duration};

use async_trait::async_trait;
use chrono::{DateTime, Utc};
use futures::stream::BoxStream;

use crate::{
    Error, Fence, Key, ListRequest, Page,
    record::{Holder, LeaseId, between},
};

/// How many renewals are asked for in one call: as many as go into one command of a database without
/// holding up others.
pub const MAX_RENEWALS: usize = 1_000;

/// A place that keeps locks.
///
/// The conformance suite (feature `conformance`) tells whether an implementation keeps the rules. Until
/// version 1.0 methods may be added.
///
/// # Cancel safety
///
/// The futures need not be cancel safe: [`Leases`](crate::Leases) runs each of them to its end in
/// a task of its own.
#[async_trait]
pub trait Store: fmt::Debug + Send + Sync + 'static {
    /// How far the clock that decides expiry may jump forward, when another server takes over for
    /// example. A holder stops counting on its lease this much before the expiry.
    fn clock_margin(&self) -> Duration;

    /// Grants the key if no other holder is live; otherwise writes nothing.
    async fn acquire(&self, request: &AcquireRequest) -> Result<AcquireAnswer, Error>;

    /// Gives each of these leases its ttl anew, counted from now, if it is live.
    ///
    /// The answers stand in the order of the requests; one that fails stops no other. An error of the
    /// whole call says nothing about any of them. There are at most [`MAX_RENEWALS`] requests.
    async fn renew(&self, requests: &[RenewRequest]) -> Result<RenewAnswers, Error>;

    /// Drops this lease from the holders of its key, and nobody else's.
    async fn release(&self, request: &ReleaseRequest) -> Result<ReleaseAnswer, Error>;

    /// The state of a key; `None` if it was never locked or has been cleaned up.
    async fn inspect(&self, key: &Key) -> Result<Option<LockState>, Error>;

    /// A page of the locks that [match](crate::rules::matches) a filter, in the order of their keys.
    ///
    /// Locks that come and go meanwhile may be missed or shown, but none is shown twice, and one
    /// that stays is not missed.
    async fn list(&self, request: &ListRequest) -> Result<Page, Error>;

    /// Ends every live lease on the key and raises its fence; `None` if it has no document.
    async fn evict(&self, key: &Key) -> Result<Option<Eviction>, Error>;

    /// Removes the document of this key if no holder is live. Returns whether it did.
    ///
    /// The check and the removal are one step on the server's clock, so this can never remove a
    /// lock that was just taken over.
    async fn remove_expired(&self, key: &Key) -> Result<bool, Error>;

    /// Removes every document without a live holder since this long. Returns how many it removed.
    async fn purge(&self, retention: Duration) -> Result<u64, Error>;

    /// Opens a stream of the keys whose lock is freed from now on (released or evicted; not those that
    /// expire), for a database that can tell as it happens.
    ///
    /// `None`, which is what the provided method says, where it cannot: those who wait then only ask from
    /// time to time. A key that is told is a hint: someone else may have it by now, and one that is freed
    /// need not be told.
    ///
    /// Each item is what came since the one before; as long as the server answers there is one at least
    /// every few seconds, empty if need be, so that whoever reads the stream can stop between two items
    /// without cutting a request. After an error, or its end, the stream is of no use any more; another
    /// one may be opened.
    async fn freed(&self) -> Result<Option<FreedKeys>, Error> {
        Ok(None)
    }
}

/// Keys that became free, as [`Store::freed`] tells of them: one item for each look, which may be
/// empty.
pub type FreedKeys = BoxStream<'static, Result<Vec<Key>, Error>>;

/// A question of [`Store::acquire`].
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
}

impl AcquireRequest {
    /// A request for an exclusive grant.
    pub fn exclusive(key: Key, lease: LeaseId, owner: Arc<str>, ttl: Duration) -> Self {
        Self {
            key,
            lease,
            owner,
            ttl,
        }
    }
}

/// An answer of [`Store::acquire`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AcquireAnswer {
    /// The lease is a live holder: granted now, or by an earlier request with the same lease id.
    Granted(Grant),
    /// Other holders are live.
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

/// A question of [`Store::renew`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RenewRequest {
    /// The key.
    pub key: Key,
    /// The name of the grant.
    pub lease: LeaseId,
    /// How long the grant lives from now, in whole milliseconds.
    pub ttl: Duration,
}

impl RenewRequest {
    /// A request to renew.
    pub fn new(key: Key, lease: LeaseId, ttl: Duration) -> Self {
        Self { key, lease, ttl }
    }
}

/// The answers of [`Store::renew`], in the order of the requests.
pub type RenewAnswers = Vec<Result<RenewAnswer, Error>>;

/// An answer of [`Store::renew`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RenewAnswer {
    /// The lease lives on.
    Renewed(Grant),
    /// The lease is over: it was not renewed in time. Nothing was written.
    Expired,
    /// The lease was evicted, or is not among the holders of its key. Nothing was written.
    TakenOver,
}

/// A question of [`Store::release`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ReleaseRequest {
    /// The key.
    pub key: Key,
    /// The name of the grant.
    pub lease: LeaseId,
}

impl ReleaseRequest {
    /// A request to release.
    pub fn new(key: Key, lease: LeaseId) -> Self {
        Self { key, lease }
    }
}

/// An answer of [`Store::release`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReleaseAnswer {
    /// The lease was a holder, and is none now. It may have been past its expiry, or evicted, but
    /// nobody was granted the key since.
    Released,
    /// The lease was not a holder. Nothing was written.
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
    /// The holders that were live and lost their lease, oldest first. They end at the eviction.
    pub evicted: Vec<Holder>,
}

#[async_trait]
impl<S: Store + ?Sized> Store for Arc<S> {
    fn clock_margin(&self) -> Duration {
        (**self).clock_margin()
    }

    async fn acquire(&self, request: &AcquireRequest) -> Result<AcquireAnswer, Error> {
        (**self).acquire(request).await
    }

    async fn renew(&self, requests: &[RenewRequest]) -> Result<RenewAnswers, Error> {
        (**self).renew(requests).await
    }

    async fn release(&self, request: &ReleaseRequest) -> Result<ReleaseAnswer, Error> {
        (**self).release(request).await
    }

    async fn inspect(&self, key: &Key) -> Result<Option<LockState>, Error> {
        (**self).inspect(key).await
    }

    async fn list(&self, request: &ListRequest) -> Result<Page, Error> {
        (**self).list(request).await
    }

    async fn evict(&self, key: &Key) -> Result<Option<Eviction>, Error> {
        (**self).evict(key).await
    }

    async fn remove_expired(&self, key: &Key) -> Result<bool, Error> {
        (**self).remove_expired(key).await
    }

    async fn purge(&self, retention: Duration) -> Result<u64, Error> {
        (**self).purge(retention).await
    }

    async fn freed(&self) -> Result<Option<FreedKeys>, Error> {
        (**self).freed().await
    }
}
