//! `LockState` and `Held`: the holders of a key, as other clients see them.

use std::time::Duration;

use chrono::{DateTime, Utc};

use super::{fence::Fence, key::Key, record::Holder, time::between};

/// The live holders of a key that could not be granted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    key: Key,
    holders: Vec<Holder>,
    now: DateTime<Utc>,
}

impl Held {
    /// An answer with these live holders, at this time of the server.
    pub fn new(key: Key, holders: Vec<Holder>, now: DateTime<Utc>) -> Self {
        Self { key, holders, now }
    }

    /// The answer to a request to replace a lease on a key that has no document. It has no holders, and no caller uses
    /// its time.
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

    /// The owner of the oldest live holder; "nobody" if there is none.
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
    /// Whether the key has no live holder.
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
