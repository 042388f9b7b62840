//! Locks and limiters as stores keep them: one document for each key, with the same fields in every store.

use std::sync::Arc;

use chrono::{DateTime, Utc};

use super::{
    fence::Fence,
    ids::{LeaseId, PermitId},
    key::Key,
    mode::Mode,
    place::Place,
    tick::LastDone,
};

/// One holder of a key, as the lock's document contains it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Holder {
    /// The id of the lease.
    pub lease: LeaseId,
    /// The owner: the text given to [`LeasesBuilder::owner`](crate::LeasesBuilder::owner).
    pub owner: Arc<str>,
    /// Which other holders the lease allows beside it.
    pub mode: Mode,
    /// How many permits the lease takes; 1 unless the mode is [`Mode::Permits`].
    pub permits: i64,
    /// The fencing token of the lease.
    pub fence: Fence,
    /// When the lease was granted, on the server's clock.
    pub acquired_at: DateTime<Utc>,
    /// When the lease expires unless it is renewed, on the server's clock. It is live before this instant.
    pub expires_at: DateTime<Utc>,
    /// A remark for people.
    pub note: Option<Arc<str>>,
    /// Since when the holder has not used the key, on the server's clock. It keeps the lease until another process
    /// waits for the key. `None` if it uses the key, or does not say.
    pub idle_since: Option<DateTime<Utc>>,
}

impl Holder {
    /// An exclusive holder without a note. Other fields can be set afterwards.
    pub fn exclusive(
        lease: LeaseId,
        owner: Arc<str>,
        fence: Fence,
        acquired_at: DateTime<Utc>,
        expires_at: DateTime<Utc>,
    ) -> Self {
        Self {
            lease,
            owner,
            mode: Mode::Exclusive,
            permits: 1,
            fence,
            acquired_at,
            expires_at,
            note: None,
            idle_since: None,
        }
    }

    /// Whether the lease is live at this time of the server's clock: it has not expired.
    pub fn is_live(&self, now: DateTime<Utc>) -> bool {
        self.expires_at > now
    }
}

/// The document of one lock.
///
/// A released lock keeps its document, without holders, so that its fence is not lost.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LockRecord {
    /// The key.
    pub key: Key,
    /// The newest fencing token of the key: of a grant, an upgrade or an eviction. It never decreases.
    pub fence: Fence,
    /// The holders, oldest first. Expired holders stay until the next grant.
    pub holders: Vec<Holder>,
    /// The latest expiry of a holder. Without holders, it is the time of the release or the eviction. From this time on
    /// the key is free, and the retention of the document counts from here.
    pub expires_at: DateTime<Utc>,
    /// The holders that the last eviction ended; empty after any grant. Only the answer to an eviction reads them, so a
    /// store may leave this empty when it reads the document for another operation.
    pub evicted: Vec<Holder>,
    /// The processes that wait for the key, in the order in which they are granted it. Places that no longer count stay
    /// until the list changes.
    pub waiters: Vec<Place>,
    /// The newest done tick.
    pub done: LastDone,
}

impl LockRecord {
    /// A record without evicted holders, for which no process waits.
    pub fn new(key: Key, fence: Fence, holders: Vec<Holder>, expires_at: DateTime<Utc>) -> Self {
        Self {
            key,
            fence,
            holders,
            expires_at,
            evicted: Vec::new(),
            waiters: Vec::new(),
            done: LastDone::Nothing,
        }
    }

    /// The holders that are live at this time of the server's clock.
    pub fn live_holders(&self, now: DateTime<Utc>) -> impl Iterator<Item = &Holder> {
        self.holders
            .iter()
            .filter(move |holder| holder.is_live(now))
    }

    /// The places that count at this time of the server's clock.
    pub fn live_places(&self, now: DateTime<Utc>) -> impl Iterator<Item = &Place> {
        self.waiters.iter().filter(move |place| place.is_live(now))
    }
}

/// The document of one limiter: of one key, for windows of one length and kind. It counts the granted permits, and does
/// not contain the limit.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LimiterRecord {
    /// The key.
    pub key: Key,
    /// When the newest grant was made, on the server's clock.
    pub granted_at: DateTime<Utc>,
    /// What is used. With fixed windows: how many permits were granted in the window of the newest grant. With smooth
    /// ones: how long it takes, counted from the newest grant, until all permits are back, in nanoseconds.
    pub used: i64,
    /// The id of the newest grant.
    pub last: PermitId,
    /// How many permits the newest grant gave.
    pub granted: i64,
    /// From when on the count limits no request any more. The retention of the document counts from here.
    pub over_at: DateTime<Utc>,
}

impl LimiterRecord {
    /// A record with these values.
    pub fn new(
        key: Key,
        granted_at: DateTime<Utc>,
        used: i64,
        (last, granted): (PermitId, i64),
        over_at: DateTime<Utc>,
    ) -> Self {
        Self {
            key,
            granted_at,
            used,
            last,
            granted,
            over_at,
        }
    }
}
