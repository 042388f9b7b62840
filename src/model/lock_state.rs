//! `LockState` and `Held`: the holders of a key, as other clients see them.

use std::time::Duration;

use chrono::{DateTime, Utc};

use super::{fence::Fence, key::Key, place::Place, record::Holder, tick::Done, time::between};

/// The live holders of a key that could not be granted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    key: Key,
    holders: Vec<Holder>,
    now: DateTime<Utc>,
    ahead: u32,
    turns: u32,
    binds_for: Duration,
}

impl Held {
    /// An answer with these live holders, at this time of the server.
    pub fn new(key: Key, holders: Vec<Holder>, now: DateTime<Utc>) -> Self {
        Self {
            key,
            holders,
            now,
            ahead: 0,
            turns: 0,
            binds_for: Duration::ZERO,
        }
    }

    /// The same with so many processes ahead, which keep a free key from others for so long.
    pub fn behind(mut self, ahead: usize, binds_for: Duration) -> Self {
        let ahead = u32::try_from(ahead).unwrap_or(u32::MAX);
        (self.ahead, self.turns, self.binds_for) = (ahead, ahead, binds_for);
        self
    }

    /// The same if some of those ahead share the key with each other or with the request, so that they take so many turns.
    pub(crate) fn in_turns(mut self, turns: usize) -> Self {
        self.turns = u32::try_from(turns).unwrap_or(u32::MAX);
        self
    }

    /// The answer to a request to replace a lease on a key that has no document. It has no holders, and no caller uses
    /// its time.
    #[cfg(feature = "mongodb")]
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

    /// How many other processes wait for the key, and come first.
    pub fn ahead(&self) -> usize {
        self.ahead as usize
    }

    /// How many times the key changes hands until all those ahead have had it who do not share it with the request.
    pub(crate) fn turns_ahead(&self) -> usize {
        self.turns as usize
    }

    /// For how long those [ahead](Self::ahead) come first although nobody has the key, counted from the server's answer.
    /// Zero if somebody has the key.
    pub fn binds_for(&self) -> Duration {
        self.binds_for
    }

    /// For how long the key has had the newest of its holders; `None` if it has no holder.
    pub(crate) fn held_for(&self) -> Option<Duration> {
        let newest = self.holders.iter().map(|holder| holder.acquired_at).max();
        newest.map(|at| between(at, self.now))
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
    /// The processes that wait for the key, in the order in which they are to have it.
    pub waiters: Vec<Place>,
    /// The newest tick of a job that is done; `None` if none is.
    pub done: Option<Done>,
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
