//! Acquires whose requests or answers get lost or come late, and acquires that are dropped while
//! they wait.

use std::time::Duration;

use futures::{FutureExt, future::poll_immediate};
use leasehold::{Attempt, Error, Leases};
use tokio::time::{Instant, sleep, timeout};

use super::{Fate, FlakyStore, LIMIT, MARGIN, MOMENT, TTL, is_free, setup, until_free};

#[tokio::test(start_paused = true)]
async fn an_acquire_whose_answer_was_lost_is_found_again() {
    let (store, leases) = setup();
    store.next([Fate::AnswerLost, Fate::NotSent]);
    let lease = leases.acquire("key", TTL).await.unwrap();
    assert_eq!(store.calls(), ["acquire"; 3]);
    let state = leases.inspect("key").await.unwrap().unwrap();
    assert_eq!(state.holders.len(), 1);
    assert_eq!(state.holders[0].lease, lease.id());
    assert!(state.fence >= lease.fence());
    // The lifetime counts from the grant, which the first request got, and not from the retry.
    let left = (state.holders[0].expires_at - state.now).to_std().unwrap();
    assert_eq!(lease.remaining(), left - MARGIN);
}

#[tokio::test(start_paused = true)]
async fn an_acquire_that_is_given_up_leaves_no_lock() {
    let (store, leases) = setup();
    store.next([Fate::AnswerLost; 3]);
    let error = leases.try_acquire("key", TTL).await.unwrap_err();
    assert!(matches!(error, Error::Interrupted { .. }), "{error:?}");
    assert!(until_free(&store).await < MOMENT);
    // The control: the acquire did leave a document, so there was a lease to release.
    let state = leases.inspect("key").await.unwrap();
    assert!(state.is_some());
}

#[tokio::test(start_paused = true)]
async fn an_error_that_no_retry_mends_is_not_retried() {
    let (store, leases) = setup();
    store.next([Fate::Denied]);
    let error = leases.acquire("key", TTL).await.unwrap_err();
    assert!(matches!(error, Error::Denied { .. }), "{error:?}");
    sleep(TTL).await;
    assert_eq!(store.calls(), ["acquire"]);
}

#[tokio::test(start_paused = true)]
async fn a_request_that_arrives_after_it_was_given_up_leaves_no_lock() {
    let (store, leases) = setup();
    store.next([Fate::Late(LIMIT * 3 / 2), Fate::NotSent, Fate::NotSent]);
    let start = Instant::now();
    let error = leases.try_acquire("key", TTL).await.unwrap_err();
    assert!(matches!(error, Error::Unreachable { .. }), "{error:?}");
    assert!(start.elapsed() >= LIMIT);
    // This is long enough for the late request to arrive and for its grant to be released.
    sleep(LIMIT).await;
    assert!(is_free(&store).await);
    assert!(store.calls().contains(&"release"));
}

#[tokio::test(start_paused = true)]
async fn a_late_answer_counts_as_long_as_somebody_waits() {
    let (store, leases) = setup();
    // The pause before the second request is shorter than that.
    let late = LIMIT + 3 * MOMENT;
    store.next([Fate::AnswerLate(late), Fate::Late(TTL)]);
    let start = Instant::now();
    let lease = leases.acquire("key", TTL).await.unwrap();
    assert_eq!(start.elapsed(), late);
    // The deadline counts from the first request, because its answer is the one that came.
    assert_eq!(lease.deadline(), start + TTL - MARGIN);
    assert_eq!(store.calls(), ["acquire"; 2]);
}

#[tokio::test(start_paused = true)]
async fn a_request_that_arrives_long_after_it_was_given_up_leaves_no_lock() {
    let (store, leases) = setup();
    let long = LIMIT * 5;
    store.next([Fate::Late(long), Fate::NotSent, Fate::NotSent]);
    leases.try_acquire("key", LIMIT * 50).await.unwrap_err();
    sleep(long).await;
    assert!(is_free(&store).await);
    assert!(store.calls().contains(&"release"));
}

#[tokio::test(start_paused = true)]
async fn a_waiter_outlives_a_time_of_errors() {
    let (store, leases) = setup();
    let wait = TTL * 2;
    let holder = leases.acquire("key", TTL * 10).await.unwrap();
    let waiter = tokio::spawn(leases.acquire("key", TTL).wait_for(wait).into_future());
    sleep(TTL / 3).await;
    store.next([Fate::NotSent; 20]);
    sleep(TTL).await;
    holder.release().await.unwrap();
    waiter.await.unwrap().unwrap().release().await.unwrap();

    // An acquire without a time limit of its own gives up when it gets nothing but errors.
    store.next([Fate::NotSent; 1_000]);
    let start = Instant::now();
    let error = leases.acquire("key", TTL).await.unwrap_err();
    assert!(matches!(error, Error::Unreachable { .. }), "{error:?}");
    assert!(start.elapsed() >= LIMIT && start.elapsed() < LIMIT * 2);
}

#[tokio::test(start_paused = true)]
async fn a_waiter_looks_a_last_time_when_its_time_is_over() {
    let (_, leases) = setup();
    let holder = leases.acquire("key", TTL * 10).await.unwrap();
    let wait = Duration::from_secs(5);
    let waiter = tokio::spawn(leases.acquire("key", TTL).wait_for(wait).into_future());
    sleep(wait - MOMENT).await;
    holder.release().await.unwrap();
    assert!(waiter.await.unwrap().is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_grant_that_is_answered_after_its_ttl_is_none() {
    let store = FlakyStore::new();
    let leases = Leases::builder(store.clone()).call_timeout(TTL * 4).build();
    store.next([Fate::AnswerLate(TTL - MARGIN)]);
    let error = leases.try_acquire("key", TTL).await.unwrap_err();
    assert!(matches!(error, Error::TimedOut { .. }), "{error:?}");
    assert!(error.is_ambiguous());
    assert!(until_free(&store).await < MOMENT);
}

#[tokio::test(start_paused = true)]
async fn an_acquire_dropped_while_it_is_under_way_leaves_no_lock() {
    for fate in [Fate::Late(LIMIT / 2), Fate::AnswerLate(LIMIT / 2)] {
        let (store, leases) = setup();
        store.next([fate]);
        assert!(timeout(MOMENT, leases.acquire("key", TTL)).await.is_err());
        sleep(LIMIT / 2 + MOMENT).await;
        assert!(is_free(&store).await, "{fate:?}");
        assert_eq!(store.calls(), ["acquire", "release"], "{fate:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_panic_in_a_store_is_an_error_and_leaves_no_lock() {
    let (store, leases) = setup();
    store.next([Fate::Panic; 3]);
    let error = leases.try_acquire("key", TTL).await.unwrap_err();
    let Error::Interrupted { source, .. } = error else {
        panic!("{error:?}");
    };
    assert_eq!(source.to_string(), "it panicked");
    until_free(&store).await;
    drop(leases.acquire("key", TTL).await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn a_waiter_takes_over_at_the_very_expiry() {
    let (_, leases) = setup();
    leases.acquire("key", TTL).await.unwrap().detach().unwrap();
    let start = Instant::now();
    let lease = leases.acquire("key", TTL).await.unwrap();
    let waited = start.elapsed();
    assert!(waited >= TTL && waited < TTL + MOMENT, "{waited:?}");
    lease.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_waiter_that_is_dropped_leaves_no_lock_though_its_last_request_is_late() {
    let (store, leases) = setup();
    let holder = leases.acquire("key", TTL).await.unwrap();
    let wait = Duration::from_secs(1);
    let waiter = tokio::spawn(timeout(wait, leases.acquire("key", TTL).into_future()));
    sleep(wait / 2).await;
    // The waiter's next request arrives after the waiter has been dropped, and finds the key free.
    store.next([Fate::Late(wait)]);
    assert!(waiter.await.unwrap().is_err());
    holder.release().await.unwrap();
    sleep(wait * 2).await;
    assert!(is_free(&store).await);
}

#[tokio::test(start_paused = true)]
async fn an_unawaited_or_unpolled_acquire_does_nothing() {
    let (store, leases) = setup();
    drop(leases.acquire("key", TTL));
    drop(leases.try_acquire("key", TTL).into_future());
    let never_polled = leases.acquire("key", TTL).into_future().fuse();
    drop(never_polled);
    sleep(TTL).await;
    assert!(store.calls().is_empty());
    store.next([Fate::AnswerLate(MOMENT)]);
    let mut once = leases.acquire("key", TTL).into_future();
    assert!(poll_immediate(&mut once).await.is_none());
    drop(once);
    until_free(&store).await;
}

/// The answer never comes, as on a connection that broke without a notice to the client.
#[tokio::test(start_paused = true)]
async fn an_acquire_that_is_dropped_and_never_answered_leaves_no_lock() {
    let (store, leases) = setup();
    store.next([Fate::AnswerLate(TTL * 1_000)]);
    let acquire = leases.acquire("key", TTL * 100);
    assert!(timeout(MOMENT, acquire).await.is_err());
    assert!(!is_free(&store).await, "the control");
    assert!(until_free(&store).await <= LIMIT + MOMENT);
}

/// Nobody may release a detached lease. A late request of its acquire is granted another lease,
/// which is released.
#[tokio::test(start_paused = true)]
async fn a_late_request_does_not_take_a_detached_lease_anew() {
    let (store, leases) = setup();
    store.next([Fate::Late(TTL * 2)]);
    leases.acquire("key", TTL).await.unwrap().detach().unwrap();
    sleep(TTL * 3 / 2).await;
    assert!(is_free(&store).await, "the ttl is over");
    sleep(TTL).await;
    assert!(is_free(&store).await);
    let state = leases.inspect("key").await.unwrap().unwrap();
    assert!(state.fence > leasehold::Fence::new(0));
}

/// Once its time limit is over, a waiter does not retry after an error.
#[tokio::test(start_paused = true)]
async fn a_waiter_whose_time_is_over_ends_with_the_first_error() {
    let (store, leases) = setup();
    let wait = Duration::from_secs(1);
    store.next([Fate::Late(TTL * 9); 9]);
    let start = Instant::now();
    let late = leases.acquire("key", TTL).wait_for(wait).await;
    assert!(matches!(late, Err(Error::TimedOut { .. })), "{late:?}");
    assert_eq!(start.elapsed(), LIMIT, "the first request is waited for");
}

/// The answer to the first request comes during the pause before the next one.
#[tokio::test(start_paused = true)]
async fn an_attempt_that_is_answered_late_sends_no_other_request() {
    let (store, leases) = setup();
    let other = Leases::new(store.memory.clone());
    let _holder = other.acquire("key", TTL).await.unwrap();
    store.next([Fate::AnswerLate(LIMIT + Duration::from_millis(5))]);
    let attempt = leases.try_acquire("key", TTL).await.unwrap();
    assert!(matches!(attempt, Attempt::Held(_)), "{attempt:?}");
    sleep(LIMIT).await;
    assert_eq!(store.calls(), ["acquire"]);
}
