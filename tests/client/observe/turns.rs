//! The events and metrics of processes that wait for a key in turn. Each client here stands for a
//! process.

use std::time::Duration;

use leasehold::{
    Key, Lease, Leases, Store,
    limits::MAX_PLACES,
    store::{AcquireAnswer, AcquireRequest, LeaseId, Turn},
};
use tokio::{
    task::JoinHandle,
    time::{sleep, timeout},
};

use super::{
    journal::{Journal, event, events, span},
    meter::{Meter, these},
};
use crate::{Fate, FlakyStore, MOMENT, TTL};

/// For how long the place of a process that is gone holds up the others.
const GONE_FOR: Duration = Duration::from_millis(1_500);

/// The store, two clients, and the lease of a third client that holds the key.
async fn processes() -> (FlakyStore, [Leases; 2], Lease) {
    let store = FlakyStore::new();
    let clients = std::array::from_fn(|_| Leases::new(store.clone()));
    let holder = Leases::new(store.memory.clone());
    let holder = holder.acquire("key", TTL * 10).await.unwrap();
    (store, clients, holder)
}

/// A task that waits for the key.
async fn waits(leases: &Leases) -> JoinHandle<Lease> {
    let leases = leases.clone();
    let waiter = tokio::spawn(async move { leases.acquire("key", TTL).await.unwrap() });
    sleep(MOMENT / 2).await;
    waiter
}

/// A process that takes a place for a time and is gone.
async fn dies_waiting(store: &FlakyStore, stays: Duration) {
    let key = Key::new("key").unwrap();
    let turn = Turn::in_turn(LeaseId::random(), stays);
    let request = AcquireRequest::exclusive(key, LeaseId::random(), "gone".into(), TTL);
    let answer = store.memory.acquire(&request.turn(turn)).await.unwrap();
    assert!(matches!(answer, AcquireAnswer::Held(_)));
}

#[tokio::test(start_paused = true)]
async fn a_place_from_the_first_refusal_to_the_grant() {
    let (_, [first, second], holder) = processes().await;
    let before = waits(&first).await;
    let (journal, meter) = (Journal::new(), Meter::new());
    let waiter = waits(&second).await;
    let entries = journal.entries();
    for message in ["took a place", "waits for the key"] {
        let told = event(&entries, message);
        assert_eq!(told["level"], "DEBUG");
        assert_eq!(told["fields"]["key"], "key");
        assert_eq!(told["fields"]["ahead"], 1);
    }
    let taken = these([
        ("places_taken_total", &[1.0]),
        ("places_ahead", &[1.0]),
        ("waiting_tasks", &[1.0]),
    ]);
    assert_eq!(meter.moved(), taken);

    sleep(TTL).await;
    assert!(
        events(&journal.entries(), "took a place").is_empty(),
        "it has it"
    );
    holder.release().await.unwrap();
    before.await.unwrap().release().await.unwrap();
    meter.moved();
    journal.entries();
    let lease = waiter.await.unwrap();
    let entries = journal.entries();
    let came = event(&entries, "its turn came");
    assert_eq!(came["fields"]["key"], "key");
    assert_eq!(came["fields"]["ahead"], 1);
    let waited = came["fields"]["waited"].as_str().unwrap();
    assert!(waited.starts_with("30.") || waited.starts_with("31."));
    assert_eq!(event(&entries, "acquired")["fields"]["ahead"], 1);
    assert_eq!(span(&entries, "leasehold.acquire")["ahead"], 1);
    let moved = meter.moved();
    let waited = moved["turn_wait_seconds"][0];
    assert!((30.0..32.0).contains(&waited), "{moved:?}");
    assert!(!moved.contains_key("places_passed_total"));
    assert!(!moved.contains_key("places_given_up_total outcome=released"));
    lease.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn places_of_processes_that_are_gone() {
    let (store, [leases, _], holder) = processes().await;
    for _ in 0..2 {
        dies_waiting(&store, GONE_FOR).await;
    }
    let waiter = waits(&leases).await;
    let (journal, meter) = (Journal::new(), Meter::new());
    holder.release().await.unwrap();
    let lease = timeout(GONE_FOR * 2, waiter).await.unwrap().unwrap();
    let entries = journal.entries();
    let passed = event(&entries, "passed places");
    assert_eq!(passed["level"], "DEBUG");
    assert_eq!(passed["fields"]["key"], "key");
    assert_eq!(passed["fields"]["ahead"], 2);
    assert!(passed["fields"]["waited"].is_string());
    assert_eq!(meter.moved()["places_passed_total"], [2.0]);
    drop(lease);
}

#[tokio::test(start_paused = true)]
async fn a_wait_without_a_place_is_reported_once() {
    let (store, [leases, _], holder) = processes().await;
    for _ in 0..MAX_PLACES {
        dies_waiting(&store, TTL * 2).await;
    }
    let (journal, meter) = (Journal::new(), Meter::new());
    let waiter = waits(&leases).await;
    let entries = journal.entries();
    let told = event(&entries, "has no place");
    assert_eq!(told["level"], "WARN");
    assert_eq!(told["fields"]["key"], "key");
    assert!(events(&entries, "took a place").is_empty());
    assert_eq!(meter.moved()["no_place_total"], [1.0]);
    store.calls();
    sleep(TTL + MOMENT).await;
    assert!(!store.calls().is_empty(), "its next request is refused too");
    assert!(events(&journal.entries(), "has no place").is_empty());
    assert!(!meter.moved().contains_key("no_place_total"));
    waiter.abort();
    drop(holder);
}

#[tokio::test(start_paused = true)]
async fn a_place_that_is_given_up() {
    let (store, [leases, _], holder) = processes().await;
    let waiter = waits(&leases).await;
    let (journal, meter) = (Journal::new(), Meter::new());
    waiter.abort();
    sleep(MOMENT).await;
    let given_up = event(&journal.entries(), "gave up its place");
    assert_eq!(given_up["level"], "DEBUG");
    assert_eq!(given_up["fields"]["key"], "key");
    assert_eq!(given_up["fields"]["outcome"], "released");
    let released = "places_given_up_total outcome=released";
    assert_eq!(meter.moved()[released], [1.0]);

    let waiter = waits(&leases).await;
    journal.entries();
    meter.moved();
    store.next([Fate::NotSent]);
    waiter.abort();
    sleep(MOMENT).await;
    let entries = journal.entries();
    let failed = event(&entries, "gave up its place");
    assert_eq!(failed["fields"]["outcome"], "error");
    assert!(failed["fields"]["error"].is_string());
    let failed = event(&entries, "a call to the store failed");
    assert_eq!(failed["fields"]["operation"], "leave");
    let moved = meter.moved();
    assert_eq!(moved["places_given_up_total outcome=error"], [1.0]);
    assert_eq!(moved["store_errors_total operation=leave"], [1.0]);
    holder.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn who_is_refused_without_a_place_is_told_how_many_come_first() {
    let (_, [first, second], holder) = processes().await;
    let _before = waits(&first).await;
    let (journal, meter) = (Journal::new(), Meter::new());
    drop(second.try_acquire("key", TTL).await.unwrap());
    let entries = journal.entries();
    let refused = event(&entries, "not acquired");
    assert_eq!(refused["fields"]["ahead"], 1);
    assert_eq!(span(&entries, "leasehold.try_acquire")["ahead"], 1);
    assert!(events(&entries, "took a place").is_empty());
    let barging = second.acquire("key", TTL).barging().wait_for(MOMENT);
    barging.await.unwrap_err();
    sleep(MOMENT).await;
    let entries = journal.entries();
    assert!(events(&entries, "took a place").is_empty());
    assert!(events(&entries, "gave up its place").is_empty());
    let moved = meter.moved();
    assert!(!moved.contains_key("places_taken_total"), "{moved:?}");
    holder.release().await.unwrap();
}

/// A request in the place of a lease does not wait, so its refusal takes no place.
#[tokio::test(start_paused = true)]
async fn a_refusal_in_the_place_of_a_lease_that_is_gone_takes_no_place() {
    let store = FlakyStore::new();
    let [here, there] = std::array::from_fn(|_| Leases::new(store.clone()));
    let holder = here.acquire("key", TTL).await.unwrap();
    let [first, second] = [waits(&here).await, waits(&here).await];
    holder.release().await.unwrap();
    let lease = first.await.unwrap();
    there.evict("key").await.unwrap();
    let journal = Journal::new();
    drop(lease);
    let granted = timeout(MOMENT, second).await.unwrap().unwrap();
    let entries = journal.entries();
    event(&entries, "acquired");
    for message in ["took a place", "its turn came", "gave up its place"] {
        assert!(events(&entries, message).is_empty(), "{message}");
    }
    drop(granted);
}
