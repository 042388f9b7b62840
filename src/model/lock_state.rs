//! `LockState` and `Held`: the holders of a key, as other clients see them.

use std::{fmt, time::Duration};

use chrono::{DateTime, SecondsFormat, Utc};

use super::{
    brief::quoted, fence::Fence, key::Key, place::Place, record::Holder, tick::Done, time::between,
};

/// The answer that a key could not be granted, with its live holders. As text it says who holds the key or, if the key
/// is free, how many wait for it. It also says if a holder
/// [is from a clock that was ahead](Holder::is_from_a_clock_ahead).
///
/// ```
/// use std::time::Duration;
/// use leasehold::{Attempt, Leases, MemoryStore};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), leasehold::Error> {
/// let leases = Leases::new(MemoryStore::new());
/// let lease = leases.acquire("report:42", Duration::from_secs(30)).await?;
/// if let Attempt::Held(held) = leases.try_acquire("report:42", Duration::from_secs(30)).await? {
///     println!("{held}, for {:?} or longer, and {} wait", held.expires_in(), held.ahead());
/// }
/// # lease.release().await
/// # }
/// ```
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
    /// For authors of stores: an answer with these live holders, at this time of the server.
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

    /// For authors of stores: the same answer, with `ahead` processes that come first. While nobody holds the key, they
    /// keep it from others for `binds_for`.
    pub fn behind(mut self, ahead: usize, binds_for: Duration) -> Self {
        let ahead = u32::try_from(ahead).unwrap_or(u32::MAX);
        (self.ahead, self.turns, self.binds_for) = (ahead, ahead, binds_for);
        self
    }

    /// The same answer, if the processes ahead take only this many turns, because some of them share the key with each
    /// other or with the request.
    pub(crate) fn in_turns(mut self, turns: usize) -> Self {
        self.turns = u32::try_from(turns).unwrap_or(u32::MAX);
        self
    }

    /// The key that is held.
    pub fn key(&self) -> &Key {
        &self.key
    }

    /// The live holders, oldest first.
    pub fn holders(&self) -> &[Holder] {
        &self.holders
    }

    /// The owner of the oldest live holder; `"nobody"` if there is none.
    pub fn owner(&self) -> &str {
        self.holders
            .first()
            .map_or("nobody", |holder| &holder.owner)
    }

    /// How many places are ahead in the queue of the key. For a request that does not wait those are all places, also
    /// that of its own process. Not all of them need come first: readers share the key.
    pub fn ahead(&self) -> usize {
        self.ahead as usize
    }

    /// How many times the key changes hands until all processes ahead that do not share it with the request have had
    /// it.
    pub(crate) fn turns_ahead(&self) -> usize {
        self.turns as usize
    }

    /// How long the processes [ahead](Self::ahead) come first although nobody holds the key, counted from the server's
    /// answer. Zero if somebody holds it.
    pub fn binds_for(&self) -> Duration {
        self.binds_for
    }

    /// How long ago the newest of the holders was granted the key; `None` if there is no holder.
    pub(crate) fn held_for(&self) -> Option<Duration> {
        let newest = self.holders.iter().map(|holder| holder.acquired_at).max();
        newest.map(|at| between(at, self.now))
    }

    /// How long it takes until the earliest of the holders expires, counted from the server's time when it answered. A
    /// holder may release earlier, or renew and stay longer. Zero if the key is free and kept for others that wait: then
    /// see [`binds_for`](Self::binds_for).
    pub fn expires_in(&self) -> Duration {
        first_expiry(&self.holders, self.now)
    }
}

impl fmt::Display for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (key, ahead) = (quoted(&self.key), self.ahead);
        if self.holders.is_empty() && ahead > 0 {
            return write!(f, "{key} is free, but kept for {ahead} that wait");
        }
        let mut holders = self.holders.iter();
        match holders.find(|holder| holder.is_from_a_clock_ahead(self.now)) {
            None => write!(f, "{key} is held by {}", quoted(self.owner())),
            Some(holder) => write!(
                f,
                "{key} is held by {} until {}, a time that no ttl explains: the server's clock was ahead; if that holder \
                 is dead, evict the key",
                quoted(&holder.owner),
                holder.expires_at.to_rfc3339_opts(SecondsFormat::Secs, true)
            ),
        }
    }
}

/// The state of a key, as [`Leases::inspect`](crate::Leases::inspect) shows it.
///
/// ```
/// use std::time::Duration;
/// use leasehold::{Leases, MemoryStore};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), leasehold::Error> {
/// let leases = Leases::new(MemoryStore::new());
/// let lease = leases.acquire("report:42", Duration::from_secs(30)).note("nightly run").await?;
/// let state = leases.inspect("report:42").await?.expect("the key was locked");
/// for holder in &state.holders {
///     println!("{} since {}: {:?}", holder.owner, holder.acquired_at, holder.note);
/// }
/// assert!(!state.is_free());
/// # lease.release().await
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockState {
    /// The key.
    pub key: Key,
    /// The fencing token of the newest grant.
    pub fence: Fence,
    /// The live holders, oldest first; none if the key is free.
    pub holders: Vec<Holder>,
    /// The processes that wait for the key, in the order in which they came.
    pub waiters: Vec<Place>,
    /// The newest done tick of a job; `None` if no tick is done.
    pub done: Option<Done>,
    /// The time of the server when it answered.
    pub now: DateTime<Utc>,
}

impl LockState {
    /// Whether the key has no live holder. A free key may be kept for the processes that wait, for 4 s at most: until
    /// one of them is granted it, other requests are refused.
    pub fn is_free(&self) -> bool {
        self.holders.is_empty()
    }

    /// The live holders whose expiry no ttl explains: they
    /// [are from a clock that was ahead](Holder::is_from_a_clock_ahead).
    pub fn from_a_clock_ahead(&self) -> impl Iterator<Item = &Holder> {
        let from_ahead = |holder: &&Holder| holder.is_from_a_clock_ahead(self.now);
        self.holders.iter().filter(from_ahead)
    }

    /// The owner of the oldest live holder; `None` if the key is free.
    pub fn owner(&self) -> Option<&str> {
        self.holders.first().map(|holder| &*holder.owner)
    }

    /// How long it takes until the earliest of the holders expires, counted from the server's time when it answered.
    /// Zero if the key is free.
    pub fn expires_in(&self) -> Duration {
        first_expiry(&self.holders, self.now)
    }
}

fn first_expiry(holders: &[Holder], now: DateTime<Utc>) -> Duration {
    let earliest = holders.iter().map(|holder| holder.expires_at).min();
    earliest.map_or(Duration::ZERO, |at| between(now, at))
}

#[cfg(test)]
mod tests {
    use chrono::TimeDelta;

    use super::*;
    use crate::model::{Error, LeaseId};

    #[test]
    fn held_says_who_holds_the_key_or_how_many_it_is_kept_for() {
        let (key, now) = (Key::new("report:42").unwrap(), DateTime::UNIX_EPOCH);
        let free = Held::new(key.clone(), Vec::new(), now).behind(3, Duration::from_secs(4));
        assert_eq!(
            free.to_string(),
            "report:42 is free, but kept for 3 that wait"
        );
        let lease = LeaseId::random();
        let holder = Holder::exclusive(lease, "host-7".into(), Fence::new(1), now, now);
        let held = Held::new(key.clone(), vec![holder], now).behind(3, Duration::ZERO);
        assert_eq!(held.to_string(), "report:42 is held by host-7");
        let waited = Duration::from_secs(5);
        let error = Error::WaitTimedOut { waited, held };
        assert_eq!(
            error.to_string(),
            "after a wait of 5s, report:42 is held by host-7"
        );
        // The server's clock has gone back by a day.
        let granted = now + TimeDelta::days(1);
        let until = granted + TimeDelta::seconds(10);
        let holder = Holder::exclusive(lease, "host-7".into(), Fence::new(1), granted, until);
        let held = Held::new(key.clone(), vec![holder], now);
        assert_eq!(
            held.to_string(),
            "report:42 is held by host-7 until 1970-01-02T00:00:10Z, a time that no ttl explains: the server's clock \
             was ahead; if that holder is dead, evict the key"
        );
        // The store had no document of the key any more when it answered.
        let nobody = Held::new(key, Vec::new(), now);
        assert_eq!(nobody.to_string(), "report:42 is held by nobody");
    }
}
