//! An owner that takes over its own lease.

use std::future::IntoFuture;

use leasehold::{Attempt, Leases, LossReason};
use tokio::time::{Instant, sleep, timeout};

use super::{MOMENT, TTL, setup};

/// The process that had the key learns of it by its next renewal, as after an eviction.
#[tokio::test(start_paused = true)]
async fn the_old_process_learns_of_it() {
    let (store, leases) = setup();
    let old = leases.acquire("key", TTL).owner("worker").keep_alive();
    let old = old.await.unwrap();
    let again = Leases::new(store.memory.clone());
    let start = Instant::now();
    let new = again.acquire("key", TTL).owner("worker").take_over();
    let new = new.await.unwrap();
    assert!(start.elapsed() < MOMENT && new.fence() > old.fence());
    let lost = timeout(TTL, old.lost()).await.unwrap();
    assert!(matches!(lost, LossReason::TakenOver), "{lost:?}");
    new.renew().await.unwrap();
    new.release().await.unwrap();
}

/// It comes before the processes that wait for the old lease, but it waits for the leases of others.
#[tokio::test(start_paused = true)]
async fn it_waits_for_other_owners_only() {
    let (store, leases) = setup();
    let again = Leases::new(store.memory.clone());
    let old = leases.acquire("key", TTL).owner("worker").keep_alive();
    let old = old.await.unwrap();
    let waiting = tokio::spawn(leases.acquire("key", TTL).into_future());
    sleep(MOMENT).await;
    let new = again.acquire("key", TTL).owner("worker").take_over();
    let new = timeout(MOMENT, new).await.unwrap().unwrap();
    assert!(!waiting.is_finished());
    let third = Leases::new(store.memory.clone());
    let third = third.acquire("key", TTL).owner("another").take_over();
    let third = tokio::spawn(third.into_future());
    sleep(MOMENT).await;
    assert!(!third.is_finished());
    new.release().await.unwrap();
    drop(old);
    let waited = timeout(2 * TTL, waiting).await.unwrap();
    waited.unwrap().unwrap().release().await.unwrap();
    let third = timeout(2 * TTL, third).await.unwrap();
    third.unwrap().unwrap().release().await.unwrap();
}

/// What a handle has itself need not be taken over: its tasks wait for each other, as always.
#[tokio::test(start_paused = true)]
async fn a_handle_takes_over_nothing_of_its_own() {
    for stays in [false, true] {
        let (_store, leases) = setup();
        let acquire = || {
            let acquire = leases.acquire("key", TTL).owner("worker");
            if stays {
                acquire.sticky(10 * TTL)
            } else {
                acquire
            }
        };
        let old = acquire().keep_alive().await.unwrap();
        let try_it = leases.try_acquire("key", TTL).owner("worker").take_over();
        assert!(matches!(try_it.await.unwrap(), Attempt::Held(_)));
        let waiting = leases.acquire("key", TTL).owner("worker").take_over();
        let waiting = tokio::spawn(waiting.into_future());
        sleep(2 * TTL).await;
        assert!(!waiting.is_finished() && old.is_live());
        old.release().await.unwrap();
        let new = timeout(TTL, waiting).await.unwrap().unwrap().unwrap();
        new.release().await.unwrap();
    }
}
