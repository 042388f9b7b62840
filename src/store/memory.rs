//! Locks and limiters in the memory of this process.

use std::{collections::BTreeMap, fmt, ops::Bound, sync::Arc, time::Duration};

use async_trait::async_trait;
use chrono::{DateTime, SubsecRound, Utc};
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::{
    messages::{
        AcquireAnswer, AcquireRequest, ConvertAnswer, ConvertRequest, Eviction, GiveBackRequest,
        ListRequest, Page, PermitAnswer, PermitRequest, ReleaseAnswer, ReleaseRequest,
        RenewAnswers, RenewRequest,
    },
    model::{
        Error, Key, LeaseId, LimiterRecord, LockRecord, LockState, PermitsLeft, Quota, WindowKind,
        after,
    },
    rules::{self, Decision, Write},
    store::Store,
};

/// The clock counts whole milliseconds. A holder counts its lease from a moment within one, and the store from the
/// beginning of that.
const RESOLUTION: Duration = Duration::from_millis(1);

/// Keeps locks in the memory of this process, for tests, examples and programs of a single process.
///
/// A clone shares the locks with the original, like a second client of a database. The locks are dropped with the last
/// clone. Until then each key that was locked keeps its fence, in a hundred bytes or so, unless a
/// [`purge`](crate::Leases::purge) removes it.
///
/// The store uses tokio's clock, so in a test that pauses time (`tokio::time::pause`) leases expire without waiting.
/// There is no second clock, and it counts milliseconds, so the clock margin is 1 ms.
///
/// ```
/// use std::time::Duration;
/// use leasehold::{Leases, MemoryStore};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), leasehold::Error> {
/// tokio::time::pause();
/// let leases = Leases::new(MemoryStore::new());
/// let hour = Duration::from_secs(3600);
/// leases.acquire("nightly", hour).await?.detach()?;
/// // Waits for an hour, which passes at once.
/// let next = leases.acquire("nightly", hour).await?;
/// # next.release().await
/// # }
/// ```
#[derive(Clone)]
pub struct MemoryStore {
    records: Arc<Mutex<BTreeMap<Key, LockRecord>>>,
    limiters: Arc<Mutex<BTreeMap<Series, LimiterRecord>>>,
    /// The time of day when the store was made. Later times are counted from it by tokio's clock, which can be paused
    /// and does not jump.
    started: (Instant, DateTime<Utc>),
}

/// What a limiter is counted by: its key, the length of its windows, and whether it is smooth.
type Series = (Key, Duration, bool);

fn series(key: &Key, quota: &Quota) -> Series {
    let is_smooth = quota.window_kind() != WindowKind::Fixed;
    (key.clone(), quota.window(), is_smooth)
}

impl MemoryStore {
    /// Makes a store without locks.
    pub fn new() -> Self {
        Self {
            records: Arc::default(),
            limiters: Arc::default(),
            started: (Instant::now(), Utc::now().trunc_subsecs(3)),
        }
    }

    fn now(&self) -> DateTime<Utc> {
        let (started, time) = self.started;
        after(time, started.elapsed())
    }

    fn decide<A>(
        &self,
        key: &Key,
        rule: impl FnOnce(Option<&LockRecord>, DateTime<Utc>) -> Decision<A>,
    ) -> A {
        self.decide_in(&self.records, key, rule)
    }

    fn decide_in<K: Clone + Ord, A, R>(
        &self,
        records: &Mutex<BTreeMap<K, R>>,
        key: &K,
        rule: impl FnOnce(Option<&R>, DateTime<Utc>) -> Decision<A, R>,
    ) -> A {
        let mut records = records.lock();
        // The clock is read while the mutex is locked, so that a later write never has an earlier time.
        let decision = rule(records.get(key), self.now());
        match decision.write {
            Write::Keep => {}
            Write::Put(record) => {
                records.insert(key.clone(), record);
            }
            Write::Remove => {
                records.remove(key);
            }
        }
        decision.answer
    }
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for MemoryStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryStore")
            .field("keys", &self.records.lock().len())
            .finish_non_exhaustive()
    }
}

#[async_trait]
impl Store for MemoryStore {
    fn clock_margin(&self) -> Duration {
        RESOLUTION
    }

    fn name(&self) -> String {
        "the memory store".to_owned()
    }

    async fn acquire(&self, request: &AcquireRequest) -> Result<AcquireAnswer, Error> {
        self.decide(&request.key, |lock, now| rules::acquire(lock, request, now))
    }

    async fn leave(&self, key: &Key, waiter: LeaseId) -> Result<(), Error> {
        self.decide(key, |record, now| rules::leave(record, waiter, now));
        Ok(())
    }

    async fn renew(&self, requests: &[RenewRequest]) -> Result<RenewAnswers, Error> {
        let renew = |request: &RenewRequest| {
            self.decide(&request.key, |lock, now| rules::renew(lock, request, now))
        };
        Ok(requests.iter().map(renew).map(Ok).collect())
    }

    async fn convert(&self, request: &ConvertRequest) -> Result<ConvertAnswer, Error> {
        self.decide(&request.key, |lock, now| rules::convert(lock, request, now))
    }

    async fn release(&self, request: &ReleaseRequest) -> Result<ReleaseAnswer, Error> {
        Ok(self.decide(&request.key, |lock, now| rules::release(lock, request, now)))
    }

    async fn inspect(&self, key: &Key) -> Result<Option<LockState>, Error> {
        let now = self.now();
        let records = self.records.lock();
        Ok(records.get(key).map(|record| rules::inspect(record, now)))
    }

    async fn list(&self, request: &ListRequest) -> Result<Page, Error> {
        let now = self.now();
        let records = self.records.lock();
        let after = request.after.as_ref();
        let start = after.map_or(Bound::Unbounded, Bound::Excluded);
        let rest = records.range((start, Bound::Unbounded));
        let looked_at: Vec<_> = rest.take(request.limit).collect();
        let states = looked_at.iter().map(|(_, it)| rules::inspect(it, now));
        let last = looked_at.last().map(|(key, _)| (*key).clone());
        Ok(Page {
            locks: states
                .filter(|state| rules::matches(state, &request.filter))
                .collect(),
            next: last.filter(|_| looked_at.len() == request.limit),
        })
    }

    async fn evict(&self, key: &Key) -> Result<Option<Eviction>, Error> {
        self.decide(key, rules::evict)
    }

    async fn remove_expired(&self, key: &Key) -> Result<bool, Error> {
        Ok(self.decide(key, |lock, now| {
            rules::remove_expired(lock, Duration::ZERO, now)
        }))
    }

    async fn permit(&self, request: &PermitRequest) -> Result<PermitAnswer, Error> {
        let series = series(&request.key, &request.quota);
        Ok(self.decide_in(&self.limiters, &series, |limiter, now| {
            rules::permit(limiter, request, now)
        }))
    }

    async fn peek(&self, key: &Key, quota: &Quota) -> Result<PermitsLeft, Error> {
        let limiters = self.limiters.lock();
        let limiter = limiters.get(&series(key, quota));
        Ok(rules::peek(limiter, quota, self.now()))
    }

    async fn give_back(&self, request: &GiveBackRequest) -> Result<(), Error> {
        let series = series(&request.key, &request.quota);
        self.decide_in(&self.limiters, &series, |limiter, now| {
            rules::give_back(limiter, request, now)
        });
        Ok(())
    }

    async fn purge(&self, retention: Duration) -> Result<u64, Error> {
        let now = self.now();
        let mut records = self.records.lock();
        let mut limiters = self.limiters.lock();
        let before = records.len() + limiters.len();
        records.retain(|_, record| !rules::remove_expired(Some(record), retention, now).answer);
        limiters.retain(|_, record| !rules::is_over(record, retention, now));
        Ok((before - records.len() - limiters.len()) as u64)
    }
}
