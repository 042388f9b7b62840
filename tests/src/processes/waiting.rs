//! Processes that are killed while they wait for a key, waits that end, and those that come before others that wait.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use futures::future::join_all;
use leasehold::{
    Error, Key, Leases, LockState, Mode, Store,
    store::{AcquireAnswer, AcquireRequest, LeaseId},
};
use tokio::{
    sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel},
    time::{Instant, sleep, sleep_until, timeout},
};

use super::{
    super::layer::{Layer, Layered},
    LONG, PATIENCE, Place, Process, patient,
};

/// A place counts for at most this long, unless answers are slow. This holds for the first and for the next two
/// processes.
const PLACE_TIME: Duration = Duration::from_millis(1_500);
/// How many processes wait and go on no more. Several of them delay the next process no longer than one does.
const LOST: [usize; 2] = [1, 3];

/// Processes that are killed while they wait do not give up their places. A process behind all of them is granted the
/// key when their places are over.
pub async fn waiting_processes_are_killed(place: &Place, store: Arc<dyn Store>) {
    for lost in LOST {
        they_are_passed(place, &store, lost, async |mut processes: Vec<Process>| {
            for process in &mut processes {
                process.kill().await;
            }
            processes
        })
        .await;
    }
}

/// The same holds for processes that stand still. When they go on, they are granted the key after all.
pub async fn waiting_processes_are_stopped(place: &Place, store: Arc<dyn Store>) {
    let key = Key::new("key").unwrap();
    let stop = async |processes: Vec<Process>| {
        loop {
            processes.iter().for_each(Process::stop);
            // A process that stops in the middle of an SQLite transaction keeps all others from writing.
            let write = store.leave(&key, LeaseId::random());
            if let Ok(Ok(())) = timeout(Duration::from_secs(1), write).await {
                return processes;
            }
            processes.iter().for_each(Process::resume);
            sleep(Duration::from_millis(20)).await;
        }
    };
    for lost in LOST {
        for process in they_are_passed(place, &store, lost, stop).await {
            process.resume();
            let told = timeout(PATIENCE, process.rest()).await;
            let told = told.expect("a process that was passed never gets the key");
            assert!(told.iter().any(|(what, ..)| what == "held"), "{told:?}");
        }
    }
}

/// The time from the release of a key until the next process is granted it has a bound by the server's clock. If a
/// machine or an engine stands still meanwhile, it takes longer, so this is tried several times.
async fn they_are_passed(
    place: &Place,
    store: &Arc<dyn Store>,
    lost: usize,
    lose: impl AsyncFn(Vec<Process>) -> Vec<Process>,
) -> Vec<Process> {
    let leases = patient(store.clone());
    let start = Instant::now();
    let mut all_lost = Vec::new();
    loop {
        let holder = leases.acquire("key", LONG).barging().await.unwrap();
        let mut waiting = Vec::new();
        for number in 1..=lost {
            waiting.push(Process::start(place, "wait"));
            until(&leases, |state| state.waiters.len() == number).await;
        }
        let waiter = patient(store.clone());
        let waiter = tokio::spawn(waiter.acquire("key", LONG).into_future());
        until(&leases, |state| {
            let latest = state
                .waiters
                .iter()
                .take(lost)
                .map(|place| place.until)
                .max();
            state.waiters.len() == lost + 1
                && latest.is_some_and(|until| until <= state.now + PLACE_TIME)
        })
        .await;
        all_lost.extend(lose(waiting).await);
        let before = leases.inspect("key").await.unwrap().unwrap();
        holder.release().await.unwrap();
        let lease = timeout(PATIENCE, waiter).await.expect("it waits for ever");
        let lease = lease.unwrap().unwrap();
        let after = leases.inspect("key").await.unwrap().unwrap();
        assert_eq!(after.holders[0].lease, lease.id());
        lease.release().await.unwrap();
        let took = after.holders[0].acquired_at - before.now;
        if took.to_std().unwrap_or_default() <= PLACE_TIME {
            return all_lost;
        }
        assert!(
            start.elapsed() < PATIENCE / 2,
            "behind {lost} that went on no more it took {took} each time"
        );
    }
}

/// The shortest time between two requests of the first process behind a long job.
const A_SECOND: Duration = Duration::from_secs(1);
/// A key that has been held for this long is held by a long job.
const LONG_JOB: Duration = Duration::from_secs(8);

/// A store that reports when a process asks.
#[derive(Debug)]
struct Asked {
    store: Arc<dyn Store>,
    asks: UnboundedSender<Instant>,
}

#[async_trait]
impl Layer for Asked {
    fn inner(&self) -> &dyn Store {
        &self.store
    }

    async fn acquire(&self, request: &AcquireRequest) -> Result<AcquireAnswer, Error> {
        let _ = self.asks.send(Instant::now());
        self.store.acquire(request).await
    }
}

/// Behind a long job the first process asks no more than once a second, whether another process was ahead of it before,
/// or none was. If an answer takes longer than the one before, its place may end sooner than in a second, so a shorter
/// pause counts only if no three in a row are long enough.
pub async fn the_first_asks_once_a_second_behind_a_long_job(store: Arc<dyn Store>) {
    let leases = patient(store.clone());
    let held = leases.acquire("key", LONG).await.unwrap();
    let since = Instant::now();
    let watched = async |waiters| {
        let (asks, asked) = unbounded_channel();
        let store = store.clone();
        let process = patient(Layered(Asked { store, asks }));
        let waits = tokio::spawn(process.acquire("key", LONG).into_future());
        until(&leases, |state| state.waiters.len() == waiters).await;
        (waits, asked)
    };
    let (ahead, _) = watched(1).await;
    let (waits, asked) = watched(2).await;
    asks_once_a_second(asked, since + LONG_JOB, async || ahead.abort()).await;
    waits.abort();
    until(&leases, |state| state.waiters.is_empty()).await;
    let (waits, asked) = watched(1).await;
    asks_once_a_second(asked, since + LONG_JOB, async || ()).await;
    waits.abort();
    held.release().await.unwrap();
}

/// `first` makes the process the first one.
async fn asks_once_a_second(
    mut asked: UnboundedReceiver<Instant>,
    long_job: Instant,
    first: impl AsyncFn(),
) {
    first().await;
    sleep_until(long_job).await;
    let begin = Instant::now();
    let (mut last, mut in_a_row, mut pauses) = (None, 0, Vec::new());
    while in_a_row < 3 {
        let next = timeout(PATIENCE, asked.recv()).await;
        let at = next.expect("it asks no more").unwrap();
        if at < begin {
            continue;
        }
        if let Some(before) = last.replace(at) {
            pauses.push(at - before);
            in_a_row = if at - before < A_SECOND {
                0
            } else {
                in_a_row + 1
            };
        }
        assert!(begin.elapsed() < PATIENCE / 2, "{pauses:?}");
    }
}

/// How many processes wait for one key in a crowd.
const CROWD: usize = 40;
/// How many times as many requests as one process a crowd may send. If each process asked as often as the first, it
/// would be [`CROWD`] times.
const AS_MANY: usize = 28;

/// Many processes that wait behind a long job send far fewer requests for each than one does alone. They wait one after
/// the other, because the requests of the crowd may keep a slow server busy.
pub async fn a_crowd_asks_seldom_behind_a_long_job(store: Arc<dyn Store>) {
    let leases = patient(store.clone());
    let held = leases.acquire("key", LONG).await.unwrap();
    let mut sent = Vec::new();
    for processes in [1, CROWD] {
        let (asks, mut asked) = unbounded_channel();
        let waiting = (0..processes).map(|_| {
            let (store, asks) = (store.clone(), asks.clone());
            let process = patient(Layered(Asked { store, asks }));
            tokio::spawn(process.acquire("key", LONG).into_future())
        });
        let waiting: Vec<_> = waiting.collect();
        sleep(LONG_JOB).await;
        let begin = Instant::now();
        sleep(LONG_JOB).await;
        let asked = std::iter::from_fn(|| asked.try_recv().ok());
        sent.push(asked.filter(|at| *at >= begin).count());
        waiting.iter().for_each(|waits| waits.abort());
        until(&leases, |state| state.waiters.is_empty()).await;
    }
    held.release().await.unwrap();
    assert!(sent[0] > 0 && sent[1] > sent[0], "{sent:?}");
    assert!(sent[1] <= AS_MANY * sent[0], "{sent:?}");
}

/// All tasks of a process wait in one place.
pub async fn the_tasks_of_a_process_have_one_place(store: Arc<dyn Store>) {
    let [holder, waiter] = [(); 2].map(|()| patient(store.clone()));
    let held = holder.acquire("key", LONG).await.unwrap();
    let waiting = [(); 3].map(|()| {
        let acquire = waiter.acquire("key", LONG).into_future();
        tokio::spawn(async { acquire.await?.release().await })
    });
    until(&holder, |state| state.waiters.len() == 1).await;
    // Whichever of them asks now, it asks for that place.
    sleep(2 * PLACE_TIME).await;
    let state = holder.inspect("key").await.unwrap().unwrap();
    assert!(state.waiters.len() <= 1, "{:?}", state.waiters);
    held.release().await.unwrap();
    let all = timeout(PATIENCE, join_all(waiting)).await;
    for released in all.expect("they wait for ever") {
        released.unwrap().unwrap();
    }
}

/// A wait that times out or is dropped gives the place of its process back. A place also ends by itself, so what this
/// sees counts only if the place was gone before that.
pub async fn waits_that_end_give_their_places_back(store: Arc<dyn Store>) {
    let [leases, waiter] = [patient(store.clone()), patient(store)];
    let holder = leases.acquire("key", LONG).await.unwrap();
    for times_out in [true, false] {
        let start = Instant::now();
        while !gives_back(&leases, &waiter, times_out).await {
            assert!(
                start.elapsed() < PATIENCE / 2,
                "no place was given back, {times_out}"
            );
        }
    }
    holder.release().await.unwrap();
}

/// Whether a wait gave its place back before the place ended by itself.
async fn gives_back(leases: &Leases, waiter: &Leases, times_out: bool) -> bool {
    let wait = waiter.acquire("key", LONG);
    let wait = if times_out {
        wait.wait_for(Duration::from_millis(300))
    } else {
        wait
    };
    let wait = tokio::spawn(wait.into_future());
    let mut ends_at = None;
    while !wait.is_finished() {
        let state = leases.inspect("key").await.unwrap().unwrap();
        if let Some(place) = state.waiters.first() {
            ends_at = Some(place.until);
            if !times_out {
                wait.abort();
            }
        }
        sleep(Duration::from_millis(20)).await;
    }
    if times_out {
        let end = wait.await.unwrap();
        assert!(matches!(end, Err(Error::WaitTimedOut { .. })), "{end:?}");
    }
    let state = until(leases, |state| state.waiters.is_empty()).await;
    ends_at.is_some_and(|ends_at| state.now < ends_at)
}

/// A reader of a process that was just granted the key in its turn comes before a writer of another process that waits.
/// If this process stood still after the grant, it is too late, and tries again.
pub async fn a_reader_comes_back_before_a_writer(store: Arc<dyn Store>) {
    let [holder, readers, writer] = [(); 3].map(|()| patient(store.clone()));
    let start = Instant::now();
    loop {
        let held = holder.acquire("key", LONG).await.unwrap();
        let read = || readers.acquire("key", LONG).shared();
        let first = tokio::spawn(read().into_future());
        until(&holder, |state| state.waiters.len() == 1).await;
        let write = writer.acquire("key", LONG).into_future();
        let writing = tokio::spawn(async { write.await?.release().await });
        until(&holder, |state| state.waiters.len() == 2).await;
        held.release().await.unwrap();
        let first = first.await.unwrap().unwrap();
        let again = read().wait_for(Duration::from_millis(1)).await;
        let state = holder.inspect("key").await.unwrap().unwrap();
        first.release().await.unwrap();
        let comes_back = again.is_ok();
        if let Ok(again) = again {
            again.release().await.unwrap();
        }
        writing.await.unwrap().unwrap();
        let waiters: Vec<_> = state.waiters.iter().map(|place| place.mode).collect();
        if comes_back && waiters == [Mode::Exclusive] {
            return;
        }
        assert!(start.elapsed() < PATIENCE / 2, "each time it was refused");
    }
}

/// A task holds the key, beside another process, and requests it again for itself alone. When the other process has
/// left, the task is granted the key, although another task of its process waits for the key and came first.
pub async fn an_owner_comes_before_those_who_wait_for_it(store: Arc<dyn Store>) {
    let [leases, other] = [(); 2].map(|()| patient(store.clone()));
    let mine = || leases.acquire("key", LONG).owner("me");
    let outer = mine().shared().await.unwrap();
    let beside = other.acquire("key", LONG).shared().await.unwrap();
    let waiting = tokio::spawn(leases.acquire("key", LONG).into_future());
    until(&other, |state| state.waiters.len() == 1).await;
    let inner = tokio::spawn(mine().reentrant().into_future());
    // The inner acquire is refused meanwhile, most likely.
    sleep(Duration::from_millis(200)).await;
    beside.release().await.unwrap();
    let inner = timeout(PATIENCE, inner).await.unwrap();
    let inner = inner.unwrap().unwrap();
    assert!(!waiting.is_finished());
    inner.release().await.unwrap();
    outer.release().await.unwrap();
    waiting.await.unwrap().unwrap().release().await.unwrap();
}

/// Waits until the state of the key is as it is wanted, and returns it.
async fn until(leases: &Leases, is_wanted: impl Fn(&LockState) -> bool) -> LockState {
    let wait = async {
        loop {
            let state = leases.inspect("key").await.unwrap();
            if let Some(state) = state.filter(&is_wanted) {
                return state;
            }
            sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(PATIENCE, wait).await.unwrap()
}
