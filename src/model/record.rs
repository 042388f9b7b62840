//! Locks and limiters as stores keep them: one document for each key, with the same fields in every store.

use std::{sync::Arc, time::Duration};

use chrono::{DateTime, Utc};

use super::{
    fence::Fence,
    ids::{LeaseId, PermitId},
    key::Key,
    limits::MAX_TTL,
    mode::Mode,
    place::Place,
    tick::LastDone,
    time::after,
};

/// How far the clocks of the servers of one database may differ while that is nothing to tell. After a failover another
/// server's clock decides.
const MAX_CLOCK_DIFFERENCE: Duration = Duration::from_secs(60);

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
        }
    }

    /// Whether the lease is live at this time of the server's clock: it has not expired.
    pub fn is_live(&self, now: DateTime<Utc>) -> bool {
        self.expires_at > now
    }

    /// Whether no ttl explains until when the lease is live: at this time of the server's clock it was granted in the
    /// future, by more than a minute, or it is live for longer than [`MAX_TTL`](crate::limits::MAX_TTL). So the server's
    /// clock was ahead when it granted or renewed the lease, and has gone back since.
    ///
    /// Nothing ends such a lease early, because its holder may be at work. If the holder is dead,
    /// [`Leases::evict`](crate::Leases::evict) frees the key. A lease that was granted before the clock went ahead, and
    /// renewed before it went back, looks like one with a long ttl.
    pub fn is_from_a_clock_ahead(&self, now: DateTime<Utc>) -> bool {
        let latest = after(now, MAX_CLOCK_DIFFERENCE);
        self.is_live(now) && (self.acquired_at > latest || self.expires_at > after(latest, MAX_TTL))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_that_no_ttl_explains_is_from_a_clock_that_was_ahead() {
        let (second, day) = (Duration::from_secs(1), Duration::from_secs(24 * 60 * 60));
        let now = after(DateTime::UNIX_EPOCH, 20_000 * day);
        let granted = |at, ttl| {
            let until = after(at, ttl);
            Holder::exclusive(LeaseId::random(), "host-7".into(), Fence::new(1), at, until)
        };
        // The clock has gone back by a day.
        assert!(granted(after(now, day), 10 * second).is_from_a_clock_ahead(now));
        assert!(granted(after(now, 61 * second), 10 * second).is_from_a_clock_ahead(now));
        // It was renewed with a clock that was two years ahead.
        assert!(granted(now, 730 * day).is_from_a_clock_ahead(now));
        // The clock of another server, and the longest ttl.
        assert!(!granted(after(now, 60 * second), 10 * second).is_from_a_clock_ahead(now));
        assert!(!granted(after(now, 60 * second), MAX_TTL).is_from_a_clock_ahead(now));
        assert!(!granted(now, 10 * second).is_from_a_clock_ahead(now));
        // It has expired, and keeps nobody from the key.
        assert!(!granted(now, Duration::ZERO).is_from_a_clock_ahead(now));
    }
}
