//! The claims of a process: what becomes of a lease whose answer was lost, of a place that a late request takes, and of
//! a waiter that is silent. None of them keeps a key from others for longer than seconds.

use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use async_trait::async_trait;
use futures::{FutureExt, future::join_all};
use leasehold::{
    Attempt, Error, Key, Lease, Leases, LockState, MemoryStore, Store,
    store::{AcquireAnswer, AcquireRequest, Cause, ReleaseAnswer, ReleaseRequest},
    testing::{Failure, FaultyStore},
};
use leasehold_tests::layer::{Layer, Layered};
use parking_lot::Mutex;
use tokio::{
    runtime,
    time::{Instant, sleep, timeout},
};

use super::{Fate, LIMIT, MOMENT, TTL, setup};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

fn spawned(acquire: leasehold::Acquire) -> tokio::task::JoinHandle<Result<Lease, Error>> {
    tokio::spawn(acquire.into_future())
}

/// Waits until a task has the key, and releases it at once.
async fn released(task: tokio::task::JoinHandle<Result<Lease, Error>>) {
    task.await.unwrap().unwrap().release().await.unwrap();
}

async fn state(store: &MemoryStore) -> LockState {
    let state = store.inspect(&Key::new("key").unwrap()).await;
    state.unwrap().unwrap()
}

/// A memory store whose next acquires take these times, before and after they are carried out.
#[derive(Clone, Debug, Default)]
struct Timed {
    memory: MemoryStore,
    next: Arc<Mutex<VecDeque<(Duration, Duration)>>>,
    acquires: Arc<AtomicUsize>,
}

impl Timed {
    fn next(&self, times: impl IntoIterator<Item = (Duration, Duration)>) {
        self.next.lock().extend(times);
    }
}

#[async_trait]
impl Layer for Timed {
    fn inner(&self) -> &dyn Store {
        &self.memory
    }

    async fn acquire(&self, request: &AcquireRequest) -> Result<AcquireAnswer, Error> {
        self.acquires.fetch_add(1, SeqCst);
        let (before, after) = self.next.lock().pop_front().unwrap_or_default();
        sleep(before).await;
        let answer = self.memory.acquire(request).await;
        sleep(after).await;
        answer
    }
}

/// A reader was granted the key, and its answer was lost. A writer of its own process waits behind it.
#[tokio::test(start_paused = true)]
async fn a_lease_whose_answer_was_lost_does_not_wait_behind_its_own_process() {
    const LONG: Duration = Duration::from_secs(600);
    let memory = MemoryStore::new();
    let store = FaultyStore::new(memory.clone());
    let faults = store.faults();
    let leases = Leases::new(store);
    let start = Instant::now();
    let first = leases.acquire("key", LONG).shared().await.unwrap();
    faults.acquires().delay(5 * MS);
    faults.acquires().fail_next(1, Failure::AnswerLost);
    let reader = spawned(leases.acquire("key", LONG).shared());
    sleep(MS).await;
    let writer = spawned(leases.acquire("key", LONG));
    sleep(100 * MS).await;
    faults.clear();
    first.release().await.unwrap();
    join_all([reader, writer].map(released)).await;
    assert!(start.elapsed() < 5 * SECOND, "{:?}", start.elapsed());
}

/// The same for the request of a reentrant acquire whose connection broke, and that is carried out late.
#[tokio::test(start_paused = true)]
async fn a_late_reentrant_request_does_not_wait_behind_its_own_process() {
    const LONG: Duration = Duration::from_secs(600);
    let (store, leases) = setup();
    let elsewhere = Leases::new(store.memory.clone());
    let elsewhere = elsewhere.acquire("key", LONG).await.unwrap();
    let first = spawned(leases.acquire("key", LONG));
    sleep(MS).await;
    store.fates_now([Fate::CutAndKept]);
    let reentrant = spawned(leases.acquire("key", LONG).reentrant());
    sleep(5 * SECOND).await;
    let start = Instant::now();
    elsewhere.release().await.unwrap();
    let late = store.carry_out_kept().await;
    assert!(matches!(late, AcquireAnswer::Granted(_)), "{late:?}");
    join_all([first, reentrant].map(released)).await;
    assert!(start.elapsed() < 5 * SECOND, "{:?}", start.elapsed());
}

/// A writer gives up while its request is under way, and a reader of its process is granted the key. The late request of
/// the writer takes a place.
#[tokio::test(start_paused = true)]
async fn a_place_that_a_writer_takes_after_it_has_given_up_is_given_up() {
    let store = Timed::default();
    let leases = Leases::new(Layered(store.clone()));
    let other = Leases::new(store.memory.clone());
    let elsewhere = other.acquire("key", TTL).shared().await.unwrap();
    // The second request of the writer is carried out 50 ms later.
    store.next([(Duration::ZERO, Duration::ZERO), (50 * MS, 5 * MS)]);
    let waiting = leases.acquire("key", TTL);
    let writer = tokio::spawn(async move { drop(timeout(40 * MS, waiting).await) });
    sleep(13 * MS).await;
    let reader = spawned(leases.acquire("key", TTL).shared());
    sleep(MS).await;
    store.next([(Duration::ZERO, 60 * MS)]);
    writer.await.unwrap();
    let reader = reader.await.unwrap().unwrap();
    sleep(20 * MS).await;
    reader.release().await.unwrap();
    elsewhere.release().await.unwrap();
    let left = state(&store.memory).await;
    assert!(left.holders.is_empty());
    assert!(left.waiters.is_empty(), "{left:?}");
    let start = Instant::now();
    let next = leases.acquire("key", TTL).await.unwrap();
    assert!(start.elapsed() < MOMENT, "{:?}", start.elapsed());
    drop(next);
}

/// A request whose caller has gone reaches the store late, while another task of the process wants the key.
#[tokio::test(start_paused = true)]
async fn a_late_request_whose_caller_has_gone_leaves_no_place() {
    let store = Timed::default();
    let leases = Leases::new(Layered(store.clone()));
    store.next([(40 * MS, Duration::ZERO), (Duration::ZERO, 60 * MS)]);
    let first = spawned(leases.acquire("key", TTL));
    sleep(5 * MS).await;
    let second = spawned(leases.acquire("key", TTL));
    sleep(5 * MS).await;
    first.abort();
    second.await.unwrap().unwrap().release().await.unwrap();
    sleep(20 * MS).await;
    let left = state(&store.memory).await;
    assert!(left.holders.is_empty());
    assert!(left.waiters.is_empty(), "{left:?}");
    match leases.try_acquire("key", TTL).await.unwrap() {
        Attempt::Acquired(lease) => lease.release().await.unwrap(),
        attempt => panic!("{attempt:?}"),
    };
    let (start, before) = (Instant::now(), store.acquires.load(SeqCst));
    let next = leases.acquire("key", TTL).await.unwrap();
    assert!(start.elapsed() < MOMENT, "{:?}", start.elapsed());
    assert_eq!(store.acquires.load(SeqCst) - before, 1);
    drop(next);
}

/// Also when the key begins to stay, and one of the tasks needs its document.
#[tokio::test(start_paused = true)]
async fn a_task_with_a_note_is_served_in_turn() {
    for sticky in [false, true] {
        let leases = Leases::new(MemoryStore::new());
        let order = Arc::new(Mutex::new(Vec::new()));
        let first = leases.acquire("key", TTL).await.unwrap();
        let mut tasks = Vec::new();
        for number in 0..10 {
            let mut acquire = leases.acquire("key", TTL);
            if sticky {
                acquire = acquire.sticky(2 * TTL);
            }
            if number == 8 {
                acquire = acquire.note("nightly");
            }
            let order = order.clone();
            tasks.push(tokio::spawn(async move {
                let lease = acquire.await.unwrap();
                order.lock().push(number);
                sleep(10 * MOMENT).await;
                lease.release().await.unwrap();
            }));
            sleep(MOMENT).await;
        }
        first.release().await.unwrap();
        for task in tasks {
            task.await.unwrap();
        }
        let order = order.lock();
        assert!(order.iter().copied().eq(0..10), "{sticky} {order:?}");
    }
}

/// The first waiter is on a runtime that nothing drives. The others pass it.
#[tokio::test(start_paused = true)]
async fn a_first_waiter_on_a_runtime_that_is_not_driven_is_passed_over() {
    let (store, leases) = setup();
    let holder = leases.acquire("key", TTL).await.unwrap();
    let mut idle = runtime::Builder::new_current_thread();
    let idle = idle.enable_all().build().unwrap();
    let mut silent = leases.acquire("key", TTL).into_future();
    {
        let _there = idle.enter();
        assert!((&mut silent).now_or_never().is_none());
    }
    let waiting = spawned(leases.acquire("key", TTL));
    sleep(MOMENT).await;
    holder.release().await.unwrap();
    timeout(2 * SECOND, released(waiting)).await.unwrap();
    // Later ones do not wait for it either.
    let late = leases.acquire("key", TTL).wait_for(2 * SECOND).await;
    late.unwrap().release().await.unwrap();
    drop(silent);
    idle.shutdown_background();
    sleep(SECOND).await;
    assert!(state(&store.memory).await.is_free());
}

/// The answer to the request of the first task never comes.
#[tokio::test(start_paused = true)]
async fn an_answer_that_never_comes_stalls_those_who_wait_for_it_for_a_second() {
    let (store, leases) = setup();
    store.next([Fate::LateWithoutAnswer(Duration::ZERO)]);
    let start = Instant::now();
    let both = [(); 2].map(|()| released(spawned(leases.acquire("key", TTL))));
    join_all(both).await;
    assert!(start.elapsed() < 2 * SECOND, "{:?}", start.elapsed());
}

/// A memory store that cannot be reached during an outage. What is asked then ends without an answer.
#[derive(Clone, Debug, Default)]
struct Outage {
    memory: MemoryStore,
    is_down: Arc<std::sync::atomic::AtomicBool>,
    releases: Arc<AtomicUsize>,
}

#[async_trait]
impl Layer for Outage {
    fn inner(&self) -> &dyn Store {
        &self.memory
    }

    async fn acquire(&self, request: &AcquireRequest) -> Result<AcquireAnswer, Error> {
        self.reached()?;
        self.memory.acquire(request).await
    }

    async fn release(&self, request: &ReleaseRequest) -> Result<ReleaseAnswer, Error> {
        self.reached()?;
        self.releases.fetch_add(1, SeqCst);
        self.memory.release(request).await
    }
}

impl Outage {
    fn reached(&self) -> Result<(), Error> {
        if self.is_down.load(SeqCst) {
            return Err(Error::Interrupted {
                store: "the store",
                source: Cause::text("cut"),
            });
        }
        Ok(())
    }
}

#[tokio::test(start_paused = true)]
async fn after_an_outage_each_acquire_that_was_given_up_is_released_twice_at_most() {
    const GIVEN_UP: usize = 100;
    let store = Outage::default();
    let leases = Leases::new(Layered(store.clone()));
    store.is_down.store(true, SeqCst);
    let give_up = async |number| {
        let asked = leases.try_acquire(format!("key {number}"), TTL).await;
        assert!(asked.is_err(), "{asked:?}");
    };
    join_all((0..GIVEN_UP).map(give_up)).await;
    store.is_down.store(false, SeqCst);
    sleep(2 * LIMIT + SECOND).await;
    let releases = store.releases.load(SeqCst);
    assert!((GIVEN_UP..=2 * GIVEN_UP).contains(&releases), "{releases}");
}

/// A key stays with another process. A task waits in turn behind one of its own process that goes to the front, and
/// therefore takes no place in the document. The other process learns that the key is awaited all the same.
#[tokio::test(start_paused = true)]
async fn a_key_that_stays_elsewhere_is_recalled_although_the_first_waiter_takes_no_place() {
    const IDLE: Duration = Duration::from_secs(20);
    let (store, leases) = setup();
    let other = Leases::new(store.memory.clone());
    let stays = other.acquire("key", TTL * 1_000).sticky(IDLE);
    stays.await.unwrap().release().await.unwrap();
    let front = spawned(leases.acquire("key", TTL).barging());
    sleep(MOMENT).await;
    let (waiting, began) = (spawned(leases.acquire("key", TTL)), Instant::now());
    join_all([front, waiting].map(released)).await;
    // As for a task that waits alone.
    assert!(began.elapsed() < 2 * SECOND, "{:?}", began.elapsed());
}
