//! A server whose clock is set back and forward while leases are held.

use std::{collections::HashMap, sync::Arc, time::Duration};

use async_trait::async_trait;
use chrono::{DateTime, TimeDelta, Utc};
use leasehold::{
    Attempt, Error, Key, Lease, Leases, MemoryStore, Resumed, Store,
    rules::{self, Decision, Write},
    store::{
        AcquireAnswer, AcquireRequest, LockRecord, ReleaseAnswer, ReleaseRequest, RenewAnswers,
        RenewRequest,
    },
};
use leasehold_tests::layer::{Layer, Layered};
use parking_lot::Mutex;
use tokio::time::{Instant, sleep};

/// How far the clock is set back.
const STEP: Duration = Duration::from_secs(100);
const TTL: Duration = Duration::from_secs(10);

/// A store with a clock that the test sets. The documents of the inner store are not used.
#[derive(Clone, Debug)]
struct SteppingStore {
    inner: MemoryStore,
    records: Arc<Mutex<HashMap<Key, LockRecord>>>,
    started: (Instant, DateTime<Utc>),
    ahead: Arc<Mutex<TimeDelta>>,
}

impl SteppingStore {
    fn new() -> Self {
        Self {
            inner: MemoryStore::new(),
            records: Arc::default(),
            started: (Instant::now(), Utc::now()),
            ahead: Arc::default(),
        }
    }

    fn set_back(&self) {
        *self.ahead.lock() -= TimeDelta::from_std(STEP).unwrap();
    }

    fn set_right(&self) {
        *self.ahead.lock() = TimeDelta::zero();
    }

    fn decide<A>(
        &self,
        key: &Key,
        rule: impl FnOnce(Option<&LockRecord>, DateTime<Utc>) -> Decision<A>,
    ) -> A {
        let now = self.started.1 + self.started.0.elapsed() + *self.ahead.lock();
        let mut records = self.records.lock();
        let decision = rule(records.get(key), now);
        match decision.write {
            Write::Keep => {}
            Write::Put(record) => drop(records.insert(key.clone(), record)),
            Write::Remove => drop(records.remove(key)),
        }
        decision.answer
    }
}

#[async_trait]
impl Layer for SteppingStore {
    fn inner(&self) -> &dyn Store {
        &self.inner
    }

    async fn acquire(&self, request: &AcquireRequest) -> Result<AcquireAnswer, Error> {
        self.decide(&request.key, |record, now| {
            rules::acquire(record, request, now)
        })
    }

    async fn renew(&self, requests: &[RenewRequest]) -> Result<RenewAnswers, Error> {
        let renew = |request: &RenewRequest| {
            self.decide(&request.key, |record, now| {
                rules::renew(record, request, now)
            })
        };
        Ok(requests.iter().map(renew).map(Ok).collect())
    }

    async fn release(&self, request: &ReleaseRequest) -> Result<ReleaseAnswer, Error> {
        Ok(self.decide(&request.key, |record, now| {
            rules::release(record, request, now)
        }))
    }
}

fn of(store: &SteppingStore) -> Leases {
    Leases::new(Layered(store.clone()))
}

/// The clock is right again. The lease is over when another process is granted the key.
async fn is_over_for_its_holder_first(store: &SteppingStore, lease: &Lease) {
    assert!(lease.is_live() && lease.remaining() <= TTL, "{lease:?}");
    store.set_right();
    let other = of(store);
    loop {
        let was_live = lease.is_live();
        if let Attempt::Acquired(next) = other.try_acquire("key", TTL).await.unwrap() {
            assert!(!was_live, "two holders: {lease:?} and {next:?}");
            return;
        }
        sleep(TTL / 100).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_is_renewed_by_a_clock_that_was_set_back_counts_for_its_ttl() {
    let store = SteppingStore::new();
    let lease = of(&store).acquire("key", TTL).await.unwrap();
    store.set_back();
    lease.renew().await.unwrap();
    is_over_for_its_holder_first(&store, &lease).await;
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_is_resumed_by_a_clock_that_was_set_back_counts_for_its_ttl() {
    let store = SteppingStore::new();
    let lease = of(&store).acquire("key", TTL).await.unwrap();
    let ticket = lease.into_ticket();
    store.set_back();
    let resumed = of(&store).resume(&ticket).await.unwrap();
    let Resumed::Live(lease) = resumed else {
        panic!("{resumed:?}");
    };
    is_over_for_its_holder_first(&store, &lease).await;
}

/// What the client renews by itself: a lease that is kept alive, and one that stays behind a guard from memory.
#[tokio::test(start_paused = true)]
async fn the_renewals_of_the_client_count_for_the_ttl_too() {
    let store = SteppingStore::new();
    let leases = of(&store);
    let kept = leases.acquire("key", TTL).keep_alive().await.unwrap();
    let acquire = leases.acquire("another", TTL).sticky(TTL).keep_alive();
    let stays = acquire.await.unwrap();
    store.set_back();
    for _ in 0..10 {
        sleep(TTL / 2).await;
        for lease in [&kept, &stays] {
            assert!(lease.is_live() && lease.remaining() <= TTL, "{lease:?}");
        }
    }
}
