//! Acquires of an owner that has the key already, while other tasks of its process wait for the key. To wait behind them
//! would be a deadlock.

use std::future::IntoFuture;

use leasehold::{Error, Leases};
use tokio::time::{Instant, sleep, timeout};

use super::{Fate, MOMENT, TTL, setup};

#[tokio::test(start_paused = true)]
async fn who_holds_the_key_does_not_wait_behind_those_who_wait_for_it() {
    let (_, leases) = setup();
    let acquire = || leases.acquire("key", TTL).owner("me");
    let outer = acquire().keep_alive().await.unwrap();
    let waiting = tokio::spawn(leases.acquire("key", TTL).into_future());
    sleep(MOMENT).await;
    let inner = timeout(MOMENT, acquire().reentrant())
        .await
        .unwrap()
        .unwrap();
    assert_eq!(inner.fence(), outer.fence());
    inner.release().await.unwrap();
    assert!(!waiting.is_finished());
    outer.release().await.unwrap();
    drop(waiting.await.unwrap().unwrap());
}

/// The inner acquire is refused at first, because of another process.
#[tokio::test(start_paused = true)]
async fn who_holds_the_key_is_granted_it_again_when_others_have_left() {
    let (store, leases) = setup();
    let other = Leases::new(store.memory.clone());
    let acquire = || leases.acquire("key", TTL).owner("me");
    let outer = acquire().shared().keep_alive().await.unwrap();
    let beside = other.acquire("key", TTL).shared().await.unwrap();
    let waiting = tokio::spawn(leases.acquire("key", TTL).into_future());
    sleep(MOMENT).await;
    let inner = tokio::spawn(acquire().reentrant().into_future());
    sleep(MOMENT).await;
    beside.release().await.unwrap();
    let inner = timeout(TTL, inner).await.unwrap().unwrap().unwrap();
    assert!(!waiting.is_finished());
    inner.release().await.unwrap();
    outer.release().await.unwrap();
    drop(waiting.await.unwrap().unwrap());
}

#[tokio::test(start_paused = true)]
async fn who_holds_the_key_asks_again_after_an_error() {
    for failures in [1, 10] {
        let (store, leases) = setup();
        let acquire = || leases.acquire("key", TTL).owner("me");
        let outer = acquire().keep_alive().await.unwrap();
        let waiting = tokio::spawn(leases.acquire("key", TTL).into_future());
        sleep(MOMENT).await;
        store.next(vec![Fate::NotSent; failures]);
        let inner = timeout(TTL, acquire().reentrant()).await.unwrap().unwrap();
        assert!(!waiting.is_finished());
        inner.release().await.unwrap();
        outer.release().await.unwrap();
        drop(waiting.await.unwrap().unwrap());
    }
}

/// The acquire ends with its time, and the first error that a retry cannot fix ends it too.
#[tokio::test(start_paused = true)]
async fn the_wait_of_an_owner_that_has_the_key_has_an_end() {
    let (store, leases) = setup();
    let other = Leases::new(store.memory.clone());
    let acquire = || leases.acquire("key", TTL).owner("me");
    let outer = acquire().shared().keep_alive().await.unwrap();
    let beside = other.acquire("key", TTL * 10).shared().await.unwrap();
    let waiting = tokio::spawn(leases.acquire("key", TTL).into_future());
    sleep(MOMENT).await;
    let start = Instant::now();
    let inner = acquire().reentrant().wait_for(TTL).await;
    assert!(
        matches!(inner, Err(Error::WaitTimedOut { .. })),
        "{inner:?}"
    );
    assert_eq!(start.elapsed(), TTL);
    waiting.abort();
    drop((outer, beside));
}
