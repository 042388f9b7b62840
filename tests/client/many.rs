//! Very many leases that are kept alive, on a store that answers slowly.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use async_trait::async_trait;
use futures::{StreamExt, future::select_all, stream};
use leasehold::{
    Error, Key, Lease, Leases, LockState, LossReason, MemoryStore, PermitsLeft, Store,
    store::{
        AcquireAnswer, AcquireRequest, BatchAnswers, BatchRequest, ConvertAnswer, ConvertRequest,
        Eviction, GiveBackRequest, LeaseId, ListRequest, LookAnswer, LookRequest, Page,
        PermitAnswer, PermitRequest, Quota, ReleaseAnswer, ReleaseRequest, RenewAnswers,
        RenewRequest,
    },
};
use tokio::{
    runtime::Handle,
    sync::Mutex,
    time::{Instant, sleep, timeout},
};

use super::{LIMIT, TTL};

/// A store that carries out renewals one after the other. Each takes some time.
#[derive(Clone, Debug)]
pub struct SlowStore {
    memory: MemoryStore,
    /// How long the renewal of one lease takes.
    renewal: Duration,
    turn: Arc<Mutex<()>>,
    under_way: Arc<AtomicUsize>,
    most_under_way: Arc<AtomicUsize>,
    /// How many leases the store was asked to renew, and in how many calls.
    renewals: Arc<AtomicUsize>,
    calls: Arc<AtomicUsize>,
    /// How many calls of other kinds there were.
    others: Arc<AtomicUsize>,
}

impl SlowStore {
    pub fn new(renewal: Duration) -> Self {
        Self {
            memory: MemoryStore::new(),
            renewal,
            turn: Arc::default(),
            under_way: Arc::default(),
            most_under_way: Arc::default(),
            renewals: Arc::default(),
            calls: Arc::default(),
            others: Arc::default(),
        }
    }
}

#[async_trait]
impl Store for SlowStore {
    fn clock_margin(&self) -> Duration {
        Duration::from_millis(100)
    }

    fn max_concurrent(&self) -> usize {
        16
    }

    async fn acquire(&self, request: &AcquireRequest) -> Result<AcquireAnswer, Error> {
        self.others.fetch_add(1, Relaxed);
        self.memory.acquire(request).await
    }

    async fn leave(&self, key: &Key, waiter: LeaseId) -> Result<(), Error> {
        self.others.fetch_add(1, Relaxed);
        self.memory.leave(key, waiter).await
    }

    async fn renew(&self, requests: &[RenewRequest]) -> Result<RenewAnswers, Error> {
        self.calls.fetch_add(1, Relaxed);
        self.renewals.fetch_add(requests.len(), Relaxed);
        let under_way = self.under_way.fetch_add(1, Relaxed) + 1;
        self.most_under_way.fetch_max(under_way, Relaxed);
        let turn = self.turn.lock().await;
        sleep(self.renewal * requests.len() as u32).await;
        let answers = self.memory.renew(requests).await;
        drop(turn);
        self.under_way.fetch_sub(1, Relaxed);
        answers
    }

    async fn convert(&self, request: &ConvertRequest) -> Result<ConvertAnswer, Error> {
        self.memory.convert(request).await
    }

    async fn release(&self, request: &ReleaseRequest) -> Result<ReleaseAnswer, Error> {
        self.others.fetch_add(1, Relaxed);
        self.memory.release(request).await
    }

    async fn batch(&self, requests: &[BatchRequest]) -> Result<BatchAnswers, Error> {
        self.others.fetch_add(1, Relaxed);
        self.memory.batch(requests).await
    }

    async fn inspect(&self, key: &Key) -> Result<Option<LockState>, Error> {
        self.memory.inspect(key).await
    }

    async fn look(&self, leases: &[LookRequest]) -> Result<Vec<LookAnswer>, Error> {
        self.memory.look(leases).await
    }

    async fn list(&self, request: &ListRequest) -> Result<Page, Error> {
        self.memory.list(request).await
    }

    async fn evict(&self, key: &Key) -> Result<Option<Eviction>, Error> {
        self.memory.evict(key).await
    }

    async fn remove_expired(&self, key: &Key) -> Result<bool, Error> {
        self.memory.remove_expired(key).await
    }

    async fn permit(&self, request: &PermitRequest) -> Result<PermitAnswer, Error> {
        self.memory.permit(request).await
    }

    async fn peek(&self, key: &Key, quota: &Quota) -> Result<PermitsLeft, Error> {
        self.memory.peek(key, quota).await
    }

    async fn give_back(&self, request: &GiveBackRequest) -> Result<(), Error> {
        self.memory.give_back(request).await
    }

    async fn purge(&self, retention: Duration) -> Result<u64, Error> {
        self.memory.purge(retention).await
    }
}

pub async fn kept(leases: &Leases, number: usize) -> Vec<Lease> {
    stream::iter(0..number)
        .map(|number| leases.acquire(format!("key {number}"), TTL).keep_alive())
        .then(|acquire| async { acquire.await.unwrap() })
        .collect()
        .await
}

pub fn live(kept: &[Lease]) -> usize {
    kept.iter().filter(|lease| lease.is_live()).count()
}

/// To renew all of them takes four fifths of a period. No lease is asked for twice, and none is lost.
#[tokio::test(start_paused = true)]
async fn a_slow_store_is_not_asked_again_while_it_works() {
    let store = SlowStore::new(TTL / 3 * 4 / 5 / 2_000);
    let leases = Leases::new(store.clone());
    let kept = kept(&leases, 2_000).await;
    let periods = 30;
    sleep(TTL / 3 * periods).await;
    assert_eq!(live(&kept), 2_000);
    let renewals = store.renewals.load(Relaxed);
    assert!(renewals <= 2_000 * periods as usize * 9 / 8, "{renewals}");
    assert!(store.most_under_way.load(Relaxed) <= 4);
}

/// The store can renew 4,000 leases in a ttl, and has to keep 12,000 alive.
#[tokio::test(start_paused = true)]
async fn of_too_many_as_many_are_kept_as_the_store_renews() {
    let store = SlowStore::new(TTL / 4_000);
    let leases = Leases::new(store.clone());
    let kept = kept(&leases, 12_000).await;
    // It is chance which leases the slow store does not renew in time. It is certain that there are some.
    let risks = kept.iter().map(|lease| Box::pin(lease.at_risk()));
    let ((), first, _) = timeout(TTL, select_all(risks)).await.unwrap();
    assert!(kept[first].is_live(), "the warning comes before the loss");
    sleep(TTL * 10).await;
    // The first renewal is due a third of the ttl after the grant, and each lease needs one before the ttl is over.
    let live = live(&kept);
    assert!(live >= 4_000 * 2 / 3 * 8 / 10, "{live}");
    assert!(store.most_under_way.load(Relaxed) <= 24);
    // The reason of the loss says that the store did not answer in time.
    let lost = kept.iter().find(|lease| !lease.is_live()).unwrap();
    let reason = lost.lost().await;
    assert!(matches!(reason, LossReason::Unreachable(_)), "{reason:?}");
    // All tasks that were started for the leases end with them.
    drop(kept);
    leases.close().await;
    sleep(TTL * 2).await;
    let tasks = Handle::current().metrics().num_alive_tasks();
    assert!(
        tasks <= 2,
        "{tasks} tasks are left: one renews, and one has the timers"
    );
}

/// Leases that are kept alive are renewed before one more is acquired. An acquire without keep-alive is not delayed.
#[tokio::test(start_paused = true)]
async fn an_acquire_waits_while_renewals_are_late() {
    let store = SlowStore::new(TTL / 2_000);
    let leases = Leases::new(store.clone());
    let kept = kept(&leases, 4_000).await;
    sleep(TTL / 3 + TTL / 10).await;
    let start = Instant::now();
    let plain = leases.try_acquire("plain", TTL).await.unwrap();
    assert!(start.elapsed() < LIMIT, "{:?}", start.elapsed());
    let acquire = leases.acquire("one more", TTL).wait_for(TTL / 10);
    let slowed = acquire.keep_alive().await.unwrap();
    let waited = start.elapsed();
    assert!(waited >= TTL / 10, "{waited:?}, the control");
    // A set is delayed once for all of its keys.
    let start = Instant::now();
    let set = leases.acquire_all(["a", "b"], TTL).wait_for(TTL / 10);
    let set = set.keep_alive().await.unwrap();
    let waited = start.elapsed();
    assert!(waited >= TTL / 10 && waited < TTL / 5, "{waited:?}");
    drop((plain, slowed, set, kept));
    sleep(TTL).await;
    let start = Instant::now();
    let acquire = leases.acquire("one more", TTL);
    let _lease = acquire.keep_alive().await.unwrap();
    assert!(start.elapsed() < LIMIT, "{:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn ten_thousand_leases_are_released_by_a_few_calls() {
    let store = SlowStore::new(Duration::ZERO);
    let leases = Leases::new(store.clone());
    let kept = kept(&leases, 10_000).await;
    store.others.store(0, Relaxed);
    leases.close().await;
    let calls = store.others.load(Relaxed);
    assert!(calls <= 63, "{calls}");
    assert_eq!(live(&kept), 0);
    let other = Leases::new(store.memory);
    let mut held = other.list(leasehold::Filter::new().live());
    assert!(held.next().await.is_none());
}
