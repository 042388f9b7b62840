//! Defects that are known, and that no small change mends. Each test asserts the WRONG outcome of today, and has the right
//! one beside it. Whoever mends a defect turns its test, and gives it a name without `wrong`.

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

use super::{Fate, LIMIT, MOMENT, PATIENCE, TTL, setup};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

fn spawned(acquire: leasehold::Acquire) -> tokio::task::JoinHandle<Result<Lease, Error>> {
    tokio::spawn(acquire.into_future())
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

/// A reader was granted the key, and its answer was lost. A writer of its own process waits for that lease, and the
/// reader waits behind the writer, so that it does not ask again.
#[tokio::test(start_paused = true)]
async fn wrong_a_lease_whose_answer_was_lost_waits_behind_its_own_process_for_its_ttl() {
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
    let others = timeout(2 * LONG, async {
        writer.await.unwrap().unwrap().release().await.unwrap();
        reader.await.unwrap().unwrap().release().await.unwrap();
    });
    others.await.unwrap();
    // Right: within seconds.
    assert!(start.elapsed() >= LONG, "{:?}", start.elapsed());
}

/// The same for the request of a reentrant acquire whose connection broke, and that is carried out late.
#[tokio::test(start_paused = true)]
async fn wrong_a_late_reentrant_request_waits_behind_its_own_process_for_its_ttl() {
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
    let both = timeout(2 * LONG, async {
        first.await.unwrap().unwrap().release().await.unwrap();
        reentrant.await.unwrap().unwrap().release().await.unwrap();
    });
    both.await.unwrap();
    // Right: within seconds.
    assert!(start.elapsed() >= LONG, "{:?}", start.elapsed());
}

/// A writer gives up while its request is under way, and a reader of its process is granted the key. The late request of
/// the writer takes the place of the process, and nobody gives that up.
#[tokio::test(start_paused = true)]
async fn wrong_a_place_that_nobody_gives_up_keeps_the_free_key() {
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
    // Right: no place.
    assert_eq!(left.waiters.len(), 1);
    let start = Instant::now();
    let next = leases.acquire("key", TTL).await.unwrap();
    // Right: at once.
    assert!(start.elapsed() >= SECOND / 10, "{:?}", start.elapsed());
    drop(next);
}

/// A request whose caller has gone reaches the store after that of another task, is refused, and takes the place of the
/// process. Its answer comes before that of the other task.
#[tokio::test(start_paused = true)]
async fn wrong_a_place_that_a_late_request_takes_is_given_up_by_nobody() {
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
    // Right: no place.
    assert_eq!(left.waiters.len(), 1);
    // Right: acquired.
    let attempt = leases.try_acquire("key", TTL).await.unwrap();
    assert!(matches!(attempt, Attempt::Held(_)), "{attempt:?}");
    let (start, before) = (Instant::now(), store.acquires.load(SeqCst));
    let next = leases.acquire("key", TTL).await.unwrap();
    // Right: at once, with one request.
    assert!(start.elapsed() >= SECOND / 10, "{:?}", start.elapsed());
    assert!(store.acquires.load(SeqCst) - before > 1);
    drop(next);
}

/// When a key begins to stay, a task that needs its document passes all tasks that asked before it.
#[tokio::test(start_paused = true)]
async fn wrong_a_task_with_a_note_passes_those_before_it_when_a_key_begins_to_stay() {
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
        // Right: always in the order in which they asked.
        assert_eq!(order.iter().copied().eq(0..10), !sticky, "{order:?}");
    }
}

/// The first waiter is on a runtime that nothing drives. All waiters of the key in the process wait for it, although the
/// key is free in the store, and the error of one that gives up names a holder that is gone.
#[tokio::test(start_paused = true)]
async fn wrong_a_first_waiter_on_a_runtime_that_is_not_driven_starves_all_of_its_process() {
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
    sleep(SECOND).await;
    assert!(state(&store.memory).await.is_free());
    // Right: granted, or at least told that nobody holds the key.
    let late = leases.acquire("key", TTL).wait_for(10 * SECOND).await;
    let Err(Error::WaitTimedOut { held, .. }) = late else {
        panic!("{late:?}");
    };
    assert_eq!(held.owner(), leases.owner());
    // Right: granted within a second or two.
    sleep(PATIENCE).await;
    assert!(!waiting.is_finished());
    drop(silent);
    idle.shutdown_background();
    let next = timeout(PATIENCE, waiting).await.unwrap().unwrap().unwrap();
    next.release().await.unwrap();
}

/// The answer to a request that was sent alone never comes. In a batch it would be sent again after a second.
#[tokio::test(start_paused = true)]
async fn wrong_one_answer_that_never_comes_stalls_a_key_for_the_call_timeout() {
    let (store, leases) = setup();
    store.next([Fate::LateWithoutAnswer(Duration::ZERO)]);
    let start = Instant::now();
    let lease = leases.acquire("key", TTL).await.unwrap();
    // Right: a second, as in a batch.
    assert!(start.elapsed() >= LIMIT, "{:?}", start.elapsed());
    drop(lease);
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

/// Each acquire that was given up in an outage is released again and again when that is over.
#[tokio::test(start_paused = true)]
async fn wrong_after_an_outage_each_acquire_that_was_given_up_is_released_many_times() {
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
    // Right: a number that does not grow with what was given up, or at most two for each.
    assert!(releases > 5 * GIVEN_UP, "{releases}");
}

/// A key stays with another process. A task waits in turn behind one of its own process that goes to the front, and
/// therefore takes no place in the document. So nobody learns that the key is awaited, and it is not recalled.
#[tokio::test(start_paused = true)]
async fn wrong_a_task_behind_one_without_a_place_waits_for_as_long_as_the_key_stays_elsewhere() {
    const IDLE: Duration = Duration::from_secs(20);
    let (store, leases) = setup();
    let other = Leases::new(store.memory.clone());
    let stays = other.acquire("key", TTL * 1_000).sticky(IDLE);
    stays.await.unwrap().release().await.unwrap();
    let front = spawned(leases.acquire("key", TTL).barging());
    sleep(MOMENT).await;
    let (waiting, began) = (spawned(leases.acquire("key", TTL)), Instant::now());
    front.await.unwrap().unwrap().release().await.unwrap();
    waiting.await.unwrap().unwrap().release().await.unwrap();
    // Right: less than two seconds, as for a task that waits alone.
    assert!(began.elapsed() > IDLE / 2, "{:?}", began.elapsed());
}
