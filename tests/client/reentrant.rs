//! Acquires of an owner that has the key already, while other tasks of its process wait for the key. To wait behind
//! them would be a deadlock.

use std::future::IntoFuture;

use leasehold::{
    Error, Key, Leases, Store,
    limits::{MAX_PLACE_TIME, MAX_PLACES},
    store::{AcquireAnswer, AcquireRequest, LeaseId, Turn},
};
use tokio::{
    task::JoinSet,
    time::{Instant, sleep, timeout},
};

use super::{Fate, FlakyStore, LIMIT, MOMENT, TTL, setup};

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
    let inner = tokio::spawn(acquire().reentrant().into_future());
    sleep(MOMENT).await;
    store.next([Fate::Denied, Fate::Denied]);
    let inner = timeout(TTL, inner).await.unwrap().unwrap();
    assert!(matches!(inner, Err(Error::Denied { .. })), "{inner:?}");
    waiting.abort();
    drop((outer, beside));
}

/// The readers of the same process share the key with the owner all the time, and one of them always waits for an
/// answer.
#[tokio::test(start_paused = true)]
async fn readers_that_come_and_go_do_not_keep_an_owner_from_its_key() {
    let (store, leases) = setup();
    let acquire = || leases.acquire("key", TTL).owner("me");
    let outer = acquire().shared().keep_alive().await.unwrap();
    store.next(vec![Fate::AnswerLate(MOMENT); 100_000]);
    let mut readers = JoinSet::new();
    for reader in 0..8 {
        let leases = leases.clone();
        readers.spawn(async move {
            sleep(MOMENT * reader / 8).await;
            loop {
                let read = leases.acquire("key", TTL).shared().await.unwrap();
                sleep(MOMENT).await;
                read.release().await.unwrap();
            }
        });
    }
    sleep(MOMENT * 10).await;
    let inner = timeout(TTL, acquire().reentrant()).await.unwrap().unwrap();
    readers.abort_all();
    drop((inner, outer));
}

/// Takes this many places of the key, for processes that never ask again.
async fn take_places(store: &FlakyStore, places: usize) {
    let key = Key::new("key").unwrap();
    for _ in 0..places {
        let turn = Turn::in_turn(LeaseId::random(), MAX_PLACE_TIME);
        let request = AcquireRequest::exclusive(key.clone(), LeaseId::random(), "it".into(), TTL);
        let answer = store.memory.acquire(&request.turn(turn)).await.unwrap();
        assert!(matches!(answer, AcquireAnswer::Held(_)), "{answer:?}");
    }
}

/// Its requests come before all processes that wait, so their number does not matter.
#[tokio::test(start_paused = true)]
async fn who_holds_the_key_asks_as_often_as_the_first_process() {
    let (store, leases) = setup();
    let other = Leases::new(store.memory.clone());
    let acquire = || leases.acquire("key", TTL).owner("me").keep_alive();
    let outer = acquire().shared().await.unwrap();
    let beside = other.acquire("key", TTL).shared().keep_alive().await;
    // A key that is held for long is asked for seldom.
    sleep(TTL * 2).await;
    take_places(&store, MAX_PLACES).await;
    // A task that waits in turn leaves its pause behind.
    let waiting = leases.acquire("key", TTL).wait_for(TTL / 2);
    let waiting = tokio::spawn(waiting.into_future());
    sleep(MOMENT).await;
    let inner = tokio::spawn(acquire().reentrant().into_future());
    waiting.await.unwrap().unwrap_err();
    sleep(LIMIT / 2).await;
    beside.unwrap().release().await.unwrap();
    let start = Instant::now();
    inner.await.unwrap().unwrap().release().await.unwrap();
    assert!(start.elapsed() < LIMIT / 2, "{:?}", start.elapsed());
    outer.release().await.unwrap();
}
