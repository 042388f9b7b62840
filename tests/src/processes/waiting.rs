//! Processes that are killed while they wait for a key, waits that end, and those that come before others that wait.

use std::{sync::Arc, time::Duration};

use leasehold::{Error, Leases, LockState, Mode, Store};
use tokio::time::{Instant, sleep};

use super::{LONG, PATIENCE, Place, Process, patient};

/// A place counts for about this long, unless answers are slow.
const PLACE_TIME: Duration = Duration::from_millis(1_500);
/// How many processes wait and are killed.
const KILLED: usize = 3;

/// Processes that are killed while they wait do not give up their places. The place of the first one counts for at most
/// [`PLACE_TIME`], and a process behind all of them is granted the key when their places are over.
pub async fn waiting_processes_are_killed(place: &Place, store: Arc<dyn Store>) {
    let leases = patient(store.clone());
    let holder = leases.acquire("key", LONG).await.unwrap();
    let mut killed = Vec::new();
    for number in 1..=KILLED {
        killed.push(Process::start(place, "wait"));
        until(&leases, |state| state.waiters.len() == number).await;
    }
    let waiter = patient(store);
    let waiter = tokio::spawn(waiter.acquire("key", LONG).into_future());
    until(&leases, |state| state.waiters.len() == KILLED + 1).await;
    until(&leases, |state| {
        let first = state.waiters.first();
        let left = first.and_then(|place| (place.until - state.now).to_std().ok());
        left.is_some_and(|left| left <= PLACE_TIME)
    })
    .await;
    for process in &mut killed {
        process.kill().await;
    }
    holder.release().await.unwrap();
    let lease = waiter.await.unwrap().unwrap();
    let state = leases.inspect("key").await.unwrap().unwrap();
    assert_eq!(state.holders[0].lease, lease.id());
    lease.release().await.unwrap();
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
        if let Ok(again) = again {
            again.release().await.unwrap();
        }
        writing.await.unwrap().unwrap();
        let waiters: Vec<_> = state.waiters.iter().map(|place| place.mode).collect();
        if state.holders.len() == 2 && waiters == [Mode::Exclusive] {
            return;
        }
        assert!(start.elapsed() < PATIENCE / 2, "each time it was refused");
    }
}

/// A task holds the key, beside another process, and requests it again for itself alone. When the other process has left,
/// the task is granted the key, although another task of its process waits for the key and came first.
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
    let inner = tokio::time::timeout(PATIENCE, inner).await.unwrap();
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
    tokio::time::timeout(PATIENCE, wait).await.unwrap()
}
