//! Processes that wait for a key in turn. Each client here stands for a process.

mod readers;

use std::{sync::Arc, time::Duration};

use leasehold::{
    Attempt, Key, Lease, Leases, MemoryStore, Mode, Store, Upgrade,
    limits::MAX_PLACES,
    store::{AcquireAnswer, AcquireRequest, LeaseId, Turn},
};
use parking_lot::Mutex;
use tokio::{
    task::JoinHandle,
    time::{Instant, sleep, timeout},
};

use crate::{Fate, FlakyStore, LIMIT};

const TTL: Duration = Duration::from_secs(60);
const MOMENT: Duration = Duration::from_millis(10);
/// How long the place of a process that is gone may hold up the others.
const BOUND: Duration = Duration::from_millis(2_500);

fn processes<const N: usize>() -> (MemoryStore, [Leases; N]) {
    let store = MemoryStore::new();
    let clients = std::array::from_fn(|_| Leases::new(store.clone()));
    (store, clients)
}

/// A task that waits for the key.
async fn waits(leases: &Leases) -> JoinHandle<Lease> {
    let leases = leases.clone();
    let waiter = tokio::spawn(async move { leases.acquire("key", TTL).await.unwrap() });
    sleep(MOMENT).await;
    waiter
}

/// The modes of the waiting processes, in order.
async fn queue(leases: &Leases) -> Vec<Mode> {
    let state = leases.inspect("key").await.unwrap().unwrap();
    state.waiters.iter().map(|place| place.mode).collect()
}

/// A process that takes a place and is gone.
async fn dies_waiting(store: &MemoryStore) {
    let key = Key::new("key").unwrap();
    let turn = Turn::in_turn(LeaseId::random(), Duration::from_millis(1_500));
    let request = AcquireRequest::exclusive(key, LeaseId::random(), "gone".into(), TTL);
    let answer = store.acquire(&request.turn(turn)).await.unwrap();
    assert!(matches!(answer, AcquireAnswer::Held(_)));
}

fn acquired(attempt: Attempt) -> Lease {
    match attempt {
        Attempt::Acquired(lease) => lease,
        Attempt::Held(held) => panic!("{held:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn who_waits_longer_is_granted_the_key_first() {
    let (_, clients) = processes::<6>();
    let holder = clients[0].acquire("key", TTL).await.unwrap();
    let order = Arc::new(Mutex::new(Vec::new()));
    let mut waiting = Vec::new();
    for (number, leases) in clients.iter().enumerate().skip(1) {
        let (leases, order) = (leases.clone(), order.clone());
        waiting.push(tokio::spawn(async move {
            let lease = leases.acquire("key", TTL).await.unwrap();
            order.lock().push(number);
            sleep(MOMENT).await;
            lease.release().await.unwrap();
        }));
        sleep(MOMENT).await;
    }
    assert_eq!(queue(&clients[0]).await.len(), 5);
    sleep(TTL / 3).await;
    holder.release().await.unwrap();
    for waiter in waiting {
        waiter.await.unwrap();
    }
    assert_eq!(*order.lock(), [1, 2, 3, 4, 5]);
    assert!(queue(&clients[0]).await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn an_attempt_does_not_overtake_and_a_barging_one_does() {
    let (_, [here, there, third]) = processes();
    let holder = here.acquire("key", TTL).await.unwrap();
    let waiter = waits(&there).await;
    let Attempt::Held(held) = third.try_acquire("key", TTL).await.unwrap() else {
        panic!("the key is held");
    };
    assert_eq!(held.ahead(), 1);
    // Nothing polls the waiter between the release and the attempts.
    holder.release().await.unwrap();
    let Attempt::Held(held) = third.try_acquire("key", TTL).await.unwrap() else {
        panic!("another process waits");
    };
    assert!(held.holders().is_empty());
    assert_eq!(held.ahead(), 1);
    assert!(held.binds_for() > Duration::ZERO);
    let attempt = third.try_acquire("key", TTL).barging().await.unwrap();
    let lease = acquired(attempt);
    assert_eq!(
        queue(&here).await,
        [Mode::Exclusive],
        "the other still waits"
    );
    lease.release().await.unwrap();
    waiter.await.unwrap().release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_process_that_is_gone_holds_up_the_others_for_a_moment() {
    let (store, [here, there]) = processes();
    let holder = here.acquire("key", TTL).await.unwrap();
    for _ in 0..3 {
        dies_waiting(&store).await;
    }
    let waiter = waits(&there).await;
    holder.release().await.unwrap();
    let start = Instant::now();
    let _lease = waiter.await.unwrap();
    assert!(start.elapsed() <= BOUND, "{:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_place_is_given_back_by_a_wait_that_ends() {
    let (_, [here, there]) = processes();
    let holder = here.acquire("key", TTL).await.unwrap();
    let waiter = waits(&there).await;
    assert_eq!(queue(&here).await.len(), 1);
    // The waiter is dropped.
    waiter.abort();
    sleep(MOMENT).await;
    assert!(queue(&here).await.is_empty());
    // The waiter times out.
    let late = there.acquire("key", TTL).wait_for(MOMENT * 5);
    late.await.unwrap_err();
    sleep(MOMENT).await;
    assert!(queue(&here).await.is_empty());
    // The client of the waiter closes.
    let waiter = waits(&there).await;
    assert_eq!(queue(&here).await.len(), 1);
    there.close().await;
    assert!(queue(&here).await.is_empty());
    assert!(waiter.await.is_err(), "it was told that the client closes");
    holder.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn all_tasks_of_a_process_have_one_place_until_the_last_has_left() {
    let (_, [here, there]) = processes();
    let holder = here.acquire("key", TTL).await.unwrap();
    let [first, second] = [waits(&there).await, waits(&there).await];
    assert_eq!(queue(&here).await.len(), 1);
    first.abort();
    sleep(Duration::from_secs(2)).await;
    assert_eq!(queue(&here).await.len(), 1);
    second.abort();
    sleep(MOMENT).await;
    assert!(queue(&here).await.is_empty());
    holder.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn readers_queue_behind_a_writer_that_waits() {
    let (_, [reader, writer, late]) = processes();
    let reading = reader.acquire("key", TTL).shared().await.unwrap();
    let writing = waits(&writer).await;
    let waiting = tokio::spawn(late.acquire("key", TTL).shared().into_future());
    sleep(Duration::from_secs(3)).await;
    assert_eq!(queue(&reader).await, [Mode::Exclusive, Mode::Shared]);
    assert!(!waiting.is_finished());
    reading.release().await.unwrap();
    let written = timeout(BOUND, writing).await.unwrap().unwrap();
    assert!(!waiting.is_finished());
    written.release().await.unwrap();
    let read = timeout(BOUND, waiting).await.unwrap().unwrap().unwrap();
    read.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn an_upgrade_and_an_owner_that_enters_again_come_before_those_that_wait() {
    let (_, [here, there]) = processes();
    let reading = here.acquire("key", TTL).shared().await.unwrap();
    let writing = waits(&there).await;
    let again = here.try_acquire("key", TTL).shared().reentrant();
    let again = acquired(again.await.unwrap());
    again.release().await.unwrap();
    let written = reading.upgrade().await.unwrap();
    assert!(matches!(written, Upgrade::Exclusive), "{written:?}");
    drop(reading);
    let _lease = timeout(BOUND, writing).await.unwrap().unwrap();
}

/// The process has another permit that was granted while the task waited.
#[tokio::test(start_paused = true)]
async fn a_permit_that_is_released_wakes_the_next_task_at_once() {
    let (_, [leases]) = processes();
    let permit = || leases.acquire("key", TTL).permits(1, 2);
    let held = [permit().await.unwrap(), permit().await.unwrap()];
    let waiting = [permit(), permit()].map(|permit| tokio::spawn(permit.into_future()));
    for (lease, granted) in held.into_iter().zip([1, 2]) {
        // The pauses between the requests get longer.
        sleep(TTL / 3).await;
        lease.release().await.unwrap();
        sleep(Duration::from_millis(1)).await;
        assert_eq!(
            waiting.iter().filter(|task| task.is_finished()).count(),
            granted
        );
    }
}

/// How many requests this many processes send in a minute while another one holds the key.
async fn asks(processes: usize) -> usize {
    let store = FlakyStore::new();
    let holder = Leases::new(store.memory.clone());
    let lease = holder.acquire("key", TTL * 10).await.unwrap();
    let mut waiting = Vec::new();
    for _ in 0..processes {
        let leases = Leases::new(store.clone());
        waiting.push(tokio::spawn(async move {
            let lease = leases.acquire("key", TTL).await.unwrap();
            lease.release().await.unwrap();
        }));
        sleep(MOMENT).await;
    }
    // At first they do not know that the key is held for long.
    sleep(TTL).await;
    store.calls();
    sleep(TTL).await;
    let asks = store.calls().len();
    let places = MAX_PLACES.min(processes);
    assert_eq!(
        queue(&holder).await.len(),
        places,
        "each has kept its place"
    );
    lease.release().await.unwrap();
    for waiter in waiting {
        timeout(TTL, waiter).await.unwrap().unwrap();
    }
    asks
}

/// All requests of all processes count. Those that are further behind send fewer, and those without a place hardly any.
#[tokio::test(start_paused = true)]
async fn the_requests_of_all_processes_have_a_bound() {
    let [one, many, all, more] = [
        asks(1).await,
        asks(40).await,
        asks(100).await,
        asks(200).await,
    ];
    let sent = format!("{one} {many} {all} {more}");
    // In a minute. The first pauses for a second, and the others for a random time.
    assert!(one <= 100, "{sent}");
    assert!(many <= 40 * one / 2, "{sent}");
    assert!(all <= MAX_PLACES * one / 2, "{sent}");
    assert!(more <= all + MAX_PLACES * one / 10, "{sent}");
}

/// A client behind a bad network, and a client of the same server behind a good one.
fn behind_a_bad_network() -> (FlakyStore, [Leases; 2]) {
    let store = FlakyStore::new();
    let clients = [
        Leases::new(store.clone()),
        Leases::new(store.memory.clone()),
    ];
    (store, clients)
}

#[tokio::test(start_paused = true)]
async fn who_does_not_wait_takes_no_place() {
    let (_, [here, there]) = processes();
    let holder = here.acquire("key", TTL).await.unwrap();
    let attempt = there.try_acquire("key", TTL).await.unwrap();
    assert!(matches!(attempt, Attempt::Held(_)));
    let now = there.acquire("key", TTL).wait_for(Duration::ZERO).await;
    assert!(now.is_err());
    let set = there
        .acquire_all(["key", "other"], TTL)
        .wait_for(Duration::ZERO);
    assert!(set.await.is_err());
    let barging = there.acquire("key", TTL).barging().wait_for(MOMENT).await;
    assert!(barging.is_err());
    assert!(queue(&here).await.is_empty());
    // A set waits in the queue of one key at a time.
    let set = tokio::spawn(there.acquire_all(["key", "later"], TTL).into_future());
    let later = here.acquire("later", TTL).await.unwrap();
    sleep(MOMENT).await;
    let waits_for = async |key| here.inspect(key).await.unwrap().unwrap().waiters.len();
    assert_eq!((waits_for("key").await, waits_for("later").await), (1, 0));
    holder.release().await.unwrap();
    sleep(BOUND).await;
    assert_eq!((waits_for("key").await, waits_for("later").await), (0, 1));
    later.release().await.unwrap();
    drop(timeout(BOUND, set).await.unwrap().unwrap().unwrap());
}

#[tokio::test(start_paused = true)]
async fn a_process_that_has_handed_the_key_on_takes_its_place_at_the_end() {
    let (_, [here, there]) = processes();
    let order = Arc::new(Mutex::new(Vec::new()));
    let holder = here.acquire("key", TTL).await.unwrap();
    let mut waiting = Vec::new();
    for (leases, name) in [(&here, "here"); 5].into_iter().chain([(&there, "there")]) {
        let (leases, order) = (leases.clone(), order.clone());
        waiting.push(tokio::spawn(async move {
            let lease = leases.acquire("key", TTL).await.unwrap();
            order.lock().push(name);
            sleep(Duration::from_secs(1)).await;
            lease.release().await.unwrap();
        }));
        sleep(MOMENT).await;
    }
    holder.release().await.unwrap();
    for waiter in waiting {
        waiter.await.unwrap();
    }
    assert_eq!(
        *order.lock(),
        ["here", "there", "here", "here", "here", "here"]
    );
}

/// The place belongs to the process. The task that takes it over may ask for another mode.
#[tokio::test(start_paused = true)]
async fn the_next_task_keeps_the_place_in_its_own_mode() {
    let (_, [here, there, third]) = processes();
    let holder = here.acquire("key", TTL).await.unwrap();
    let reader = tokio::spawn(there.acquire("key", TTL).shared().into_future());
    sleep(MOMENT).await;
    let other = tokio::spawn(third.acquire("key", TTL).shared().into_future());
    sleep(MOMENT).await;
    let writer = waits(&there).await;
    assert_eq!(queue(&here).await, [Mode::Shared, Mode::Shared]);
    reader.abort();
    sleep(BOUND).await;
    assert_eq!(queue(&here).await, [Mode::Exclusive, Mode::Shared]);
    holder.release().await.unwrap();
    let written = timeout(BOUND, writer).await.unwrap().unwrap();
    assert!(!other.is_finished());
    // The place ends with its one grant.
    let again = waits(&there).await;
    here.evict("key").await.unwrap();
    let read = timeout(BOUND, other).await.unwrap().unwrap().unwrap();
    assert!(!again.is_finished());
    drop((written, read));
}

#[tokio::test(start_paused = true)]
async fn a_barging_grant_does_not_end_the_place_of_the_process() {
    let (_, [here, there]) = processes();
    let holder = here.acquire("key", TTL).await.unwrap();
    let first = waits(&there).await;
    let last = waits(&there).await;
    first.abort();
    sleep(MOMENT).await;
    // Nothing polls the waiter between the release and the attempt. A lease with a note does not serve it from memory.
    holder.release().await.unwrap();
    let barging = there.try_acquire("key", TTL).barging().note("note");
    let lease = acquired(barging.await.unwrap());
    assert_eq!(queue(&here).await.len(), 1, "the last still waits");
    last.abort();
    sleep(MOMENT).await;
    assert!(queue(&here).await.is_empty());
    lease.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_place_is_given_back_when_only_barging_tasks_wait_on() {
    let (_, [here, there]) = processes();
    let holder = here.acquire("key", TTL).await.unwrap();
    let first = waits(&there).await;
    let barging = tokio::spawn(there.acquire("key", TTL).barging().into_future());
    sleep(MOMENT).await;
    first.abort();
    sleep(MOMENT).await;
    assert!(queue(&here).await.is_empty());
    holder.release().await.unwrap();
    drop(timeout(BOUND, barging).await.unwrap().unwrap().unwrap());
}

/// The request of a dropped task reaches the server when the next task has the key already.
#[tokio::test(start_paused = true)]
async fn a_place_that_a_late_request_takes_is_given_back() {
    let (store, [there, here]) = behind_a_bad_network();
    let holder = here.acquire("key", TTL).await.unwrap();
    store.next([Fate::Late(LIMIT / 2)]);
    let first = waits(&there).await;
    let second = waits(&there).await;
    first.abort();
    sleep(MOMENT).await;
    holder.release().await.unwrap();
    let lease = timeout(BOUND, second).await.unwrap().unwrap();
    assert!(queue(&here).await.is_empty());
    sleep(LIMIT / 2).await;
    assert!(queue(&here).await.is_empty());
    lease.release().await.unwrap();
}

/// The first request of a task reaches the server late: the task has been granted the key by its second request and
/// released it, and another process holds it.
#[tokio::test(start_paused = true)]
async fn a_place_that_an_earlier_request_takes_after_the_grant_is_given_back() {
    let (store, [there, here]) = behind_a_bad_network();
    store.next([Fate::Late(LIMIT + BOUND)]);
    let lease = there.acquire("key", TTL).await.unwrap();
    lease.release().await.unwrap();
    let holder = here.acquire("key", TTL).await.unwrap();
    sleep(BOUND).await;
    assert_eq!(queue(&here).await, []);
    holder.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_close_waits_until_the_place_of_a_request_under_way_is_given_back() {
    let (store, [there, here]) = behind_a_bad_network();
    let holder = here.acquire("key", TTL).await.unwrap();
    // These are the fates of the request of the waiter, and of the request that gives its place back.
    store.next([Fate::AnswerLate(MOMENT * 10), Fate::Late(MOMENT * 10)]);
    let waiter = tokio::spawn(there.acquire("key", TTL).into_future());
    sleep(MOMENT).await;
    assert_eq!(queue(&here).await.len(), 1);
    there.close().await;
    assert!(queue(&here).await.is_empty());
    assert!(waiter.await.unwrap().is_err());
    holder.release().await.unwrap();
}
