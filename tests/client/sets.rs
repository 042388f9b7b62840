//! Sets of leases: all keys by one batch, or one after the other if the batch does not get all of them.

use std::time::Duration;

use leasehold::{Error, Leases};
use tokio::time::{Instant, sleep, timeout};

use super::{Fate, FlakyStore, LIMIT, MARGIN, MOMENT, TTL};

/// A store that asks for few requests at once, and its handle.
fn setup() -> (FlakyStore, Leases) {
    let mut store = FlakyStore::new();
    store.at_once = 16;
    (store.clone(), Leases::new(store))
}

fn keys(number: usize) -> Vec<String> {
    (0..number)
        .map(|number| format!("key {number:03}"))
        .collect()
}

async fn is_free(store: &FlakyStore, key: &str) -> bool {
    let state = Leases::new(store.memory.clone()).inspect(key).await;
    state.unwrap().is_none_or(|state| state.is_free())
}

#[tokio::test(start_paused = true)]
async fn free_keys_are_taken_by_one_batch_and_released_by_one() {
    for number in [2, 8, 100] {
        let (store, leases) = setup();
        let set = leases.acquire_all(keys(number), TTL).await.unwrap();
        assert_eq!(set.leases().len(), number);
        let taken = set.leases().iter().map(|lease| lease.key().as_str());
        assert!(taken.eq(keys(number)), "they have the order of the keys");
        assert_eq!(*store.batched.lock(), [number]);
        assert_eq!(store.calls(), ["batch"]);
        set.release().await.unwrap();
        assert_eq!(*store.batched.lock(), [number; 2], "and released by one");
    }
}

/// The acquire of a set with one key is an ordinary acquire.
#[tokio::test(start_paused = true)]
async fn a_set_of_one_waits_like_an_acquire() {
    let (store, leases) = setup();
    let held = leases.acquire("key 000", TTL * 10).await.unwrap();
    store.calls();
    let waiting = timeout(MOMENT, leases.acquire_all(keys(1), TTL));
    assert!(waiting.await.is_err());
    assert_eq!(store.calls()[0], "acquire");
    held.release().await.unwrap();
}

/// What the batch got is given back before the set waits. After that it takes its keys in order, and waits with those
/// that it has. All sets use the same order, so they cannot deadlock.
#[tokio::test(start_paused = true)]
async fn what_one_go_does_not_give_whole_is_given_back_and_taken_in_order() {
    let (store, leases) = setup();
    let held = leases.acquire("key 001", TTL * 10).await.unwrap();
    store.calls();
    let waiting = tokio::spawn(leases.acquire_all(keys(3), TTL).into_future());
    sleep(MOMENT).await;
    let calls = store.calls();
    // The releases are confirmed before the set asks for anything else.
    assert_eq!(calls[..3], ["batch", "batch", "acquire"], "{calls:?}");
    assert!(!is_free(&store, "key 000").await, "the first is taken");
    assert!(
        is_free(&store, "key 002").await,
        "the last is not held meanwhile"
    );
    held.release().await.unwrap();
    let set = waiting.await.unwrap().unwrap();
    assert!(set.is_live());
    set.release().await.unwrap();
}

/// A batch that fails, or whose answer is lost, costs nothing but time.
#[tokio::test(start_paused = true)]
async fn what_one_go_fails_at_is_taken_in_order() {
    for fate in [
        Fate::NotSent,
        Fate::AnswerLost,
        Fate::AnswerCut,
        Fate::Panic,
    ] {
        let (store, leases) = setup();
        store.next([fate]);
        let set = leases.acquire_all(keys(3), TTL).await.unwrap();
        assert!(set.is_live(), "{fate:?}");
        assert_eq!(store.batched.lock()[0], 3, "{fate:?}");
        set.release().await.unwrap();
        sleep(TTL / 2).await;
        for key in keys(3) {
            assert!(is_free(&store, &key).await, "{fate:?}");
        }
    }
}

/// An error that a retry cannot mend is returned at once, and no lock is left behind.
#[tokio::test(start_paused = true)]
async fn an_error_that_does_not_pass_is_told_at_once() {
    let (store, leases) = setup();
    store.next([Fate::Denied]);
    let error = leases.acquire_all(keys(3), TTL).await.unwrap_err();
    assert!(matches!(error, Error::Denied { .. }), "{error:?}");
    assert_eq!(store.calls(), ["batch"]);
}

/// The set is dropped during the batch of its acquires, and during the batch of its releases.
#[tokio::test(start_paused = true)]
async fn a_set_that_is_dropped_in_one_go_leaves_no_lock() {
    let (store, leases) = setup();
    let late = Duration::from_millis(100);
    store.next([Fate::AnswerLate(late)]);
    let dropped = timeout(late / 2, leases.acquire_all(keys(3), TTL * 100));
    assert!(dropped.await.is_err());
    sleep(late * 2).await;
    for key in keys(3) {
        assert!(
            is_free(&store, &key).await,
            "dropped in the middle of the batch"
        );
    }

    let held = leases.acquire("key 002", TTL * 100).await.unwrap();
    store.fates_now([Fate::AnswerLate(MOMENT), Fate::AnswerLate(late)]);
    let dropped = timeout(late / 2, leases.acquire_all(keys(3), TTL * 100));
    assert!(dropped.await.is_err());
    sleep(late * 2).await;
    for key in keys(2) {
        assert!(
            is_free(&store, &key).await,
            "dropped in the middle of the releases"
        );
    }
    held.release().await.unwrap();
}

/// The time limit includes the first batch.
#[tokio::test(start_paused = true)]
async fn a_set_waits_no_longer_than_it_may() {
    let (_, leases) = setup();
    let held = leases.acquire("key 001", TTL * 100).await.unwrap();
    let start = Instant::now();
    let set = leases.acquire_all(keys(3), TTL).wait_for(MOMENT * 10);
    let error = set.await.unwrap_err();
    assert!(matches!(error, Error::WaitTimedOut { .. }), "{error:?}");
    assert_eq!(start.elapsed(), MOMENT * 10);
    held.release().await.unwrap();
}

/// Keys that do not fit into the first batch go with a second one, which is sent without waiting for the answer to the
/// first.
#[tokio::test(start_paused = true)]
async fn a_great_set_goes_in_batches_at_the_same_time() {
    let (store, leases) = setup();
    store.next([Fate::AnswerLate(MOMENT); 2]);
    let start = Instant::now();
    let set = leases.acquire_all(keys(200), TTL).await.unwrap();
    assert_eq!(start.elapsed(), MOMENT);
    assert_eq!(*store.batched.lock(), [100, 100]);
    set.release().await.unwrap();
}

/// If the set did not wait for such an answer, it would find its keys held by its own leases.
#[tokio::test(start_paused = true)]
async fn a_slow_answer_to_a_set_is_waited_for() {
    let (store, leases) = setup();
    store.next([Fate::AnswerLate(Duration::from_secs(3))]);
    let set = leases.acquire_all(keys(3), TTL).wait_for(Duration::ZERO);
    let set = set.await.unwrap();
    assert_eq!(store.calls(), ["batch", "renew", "renew", "renew"]);
    set.release().await.unwrap();
}

/// The last key is asked for when the first batch is answered. It is granted when the leases of the first batch have
/// just expired.
#[tokio::test(start_paused = true)]
async fn leases_that_are_over_before_the_set_is_whole_are_taken_once_more() {
    let (store, leases) = setup();
    let late = LIMIT - MARGIN - MOMENT / 2;
    store.next([MOMENT, MOMENT, late].map(Fate::AnswerLate));
    let set = leases.acquire_all(keys(201), LIMIT).await.unwrap();
    assert_eq!(*store.batched.lock(), [100; 4], "taken, and given back");
    assert!(set.is_live());
    set.release().await.unwrap();
}

/// An error of one renewal does not end the others.
#[tokio::test(start_paused = true)]
async fn one_lease_that_is_lost_keeps_no_other_from_being_renewed() {
    let (store, leases) = setup();
    let set = leases.acquire_all(keys(2), TTL).await.unwrap();
    let first = set.leases()[0].key();
    Leases::new(store.memory.clone())
        .evict(first)
        .await
        .unwrap();
    sleep(TTL / 2).await;
    // The first renewal is answered at once: its lease is lost. The renewal of the second has to be retried.
    store.next([Fate::AnswerLate(Duration::ZERO), Fate::NotSent]);
    let renewed = set.renew().await;
    assert!(matches!(renewed, Err(Error::Lost { .. })), "{renewed:?}");
    assert!(set.leases()[1].remaining() > TTL / 2 + MOMENT);
    set.release().await.unwrap_err();
}
