//! The memory store keeps every rule of the conformance suite, with a paused clock.

use std::time::Duration;

use leasehold::{Attempt, Leases, MemoryStore, testing::FaultyStore};
use leasehold_conformance::Clients;
use leasehold_tests::{fuzz, long};
use tokio::time::advance;

async fn connect() -> Clients {
    let store = MemoryStore::new();
    Clients::new(store.clone(), store)
}

leasehold_conformance::conformance_suite!(connect, start_paused = true);

/// The same on several threads and in real time, so that requests race.
mod on_threads {
    use super::connect;

    leasehold_conformance::conformance_suite!(connect, flavor = "multi_thread", worker_threads = 4);
}

/// The store for tests of applications keeps every rule too, as long as a test asks for no fault.
mod behind_a_faulty_store {
    use super::{Clients, FaultyStore, MemoryStore};

    async fn connect() -> Clients {
        let store = FaultyStore::new(MemoryStore::new());
        Clients::new(store.clone(), store)
    }

    leasehold_conformance::conformance_suite!(connect, start_paused = true);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_has_a_bounded_number_of_holders() {
    let clients = connect().await;
    leasehold_conformance::a_key_has_a_bounded_number_of_holders(&clients)
        .await
        .unwrap();
}

#[tokio::test(start_paused = true)]
async fn many_keys_owners_and_notes_are_just_text() {
    let texts = if long() { 10_000 } else { 2_000 };
    fuzz::any_text_comes_back_or_is_refused(MemoryStore::new(), 0, texts).await;
}

/// The clock of the store counts milliseconds. A lease that was granted within one is over for its holder before it is
/// over for the store.
#[tokio::test(start_paused = true)]
async fn no_lease_lasts_longer_for_its_holder_than_for_the_store() {
    let (short, ttl) = (Duration::from_micros(100), Duration::from_millis(5));
    let store = MemoryStore::new();
    advance(short * 9).await;
    let [first, second] = [(); 2].map(|()| Leases::new(store.clone()));
    let lease = first.acquire("key", ttl).await.unwrap();
    let granted = loop {
        if let Attempt::Acquired(next) = second.try_acquire("key", ttl).await.unwrap() {
            break next;
        }
        advance(short).await;
    };
    assert!(!lease.is_live() && granted.is_live());
}
