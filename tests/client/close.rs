//! The end of a program.

use futures::{FutureExt, future::join_all};
use leasehold::{Error, LossReason};
use tokio::time::{Instant, sleep, timeout};

use super::{Fate, LIMIT, MOMENT, TTL, is_free, setup};

#[tokio::test(start_paused = true)]
async fn close_releases_everything_and_waits_for_it() {
    let (store, leases) = setup();
    let mut held = Vec::new();
    for number in 0..200 {
        let acquire = leases.acquire(format!("key {number}"), TTL);
        held.push(acquire.keep_alive().await.unwrap());
    }
    let dropped = leases.acquire("dropped", TTL).await.unwrap();
    let detached = leases.acquire("detached", TTL).await.unwrap();
    let token = held[0].cancellation_token();
    detached.detach();
    drop(dropped);
    store.next([Fate::AnswerLate(MOMENT); 50]);
    leases.close().await;
    let mut live = futures::StreamExt::boxed(leases.list(leasehold::Filter::new().live()));
    let left = futures::TryStreamExt::try_next(&mut live).await.unwrap();
    assert_eq!(
        left.map(|lock| lock.key.to_string()).as_deref(),
        Some("detached")
    );
    for lease in held {
        assert!(!lease.is_live());
        let reason = lease.lost().await;
        assert!(matches!(reason, LossReason::Closed), "{reason:?}");
        let late = lease.release().await.unwrap_err();
        assert!(matches!(late, Error::Lost { .. }), "{late:?}");
    }
    token.cancelled().await;
}

#[tokio::test(start_paused = true)]
async fn nothing_is_acquired_after_it() {
    let (store, leases) = setup();
    leases.clone().close().await;
    let attempt = leases.try_acquire("key", TTL).await;
    assert!(matches!(attempt, Err(Error::Closed)), "{attempt:?}");
    let lease = leases.acquire("key", TTL).await;
    assert!(matches!(lease, Err(Error::Closed)), "{lease:?}");
    assert!(store.calls().is_empty());
    // It can be looked at, and closed again.
    leases.inspect("key").await.unwrap();
    leases.close().await;
}

#[tokio::test(start_paused = true)]
async fn those_who_wait_are_told_at_once() {
    let (store, leases) = setup();
    let holder = leases.acquire("key", TTL * 100).await.unwrap();
    let waiters: Vec<_> = (0..10)
        .map(|_| tokio::spawn(leases.acquire("key", TTL).into_future()))
        .collect();
    sleep(TTL).await;
    let start = Instant::now();
    leases.close().await;
    for outcome in join_all(waiters).await {
        let outcome = outcome.unwrap();
        assert!(matches!(outcome, Err(Error::Closed)), "{outcome:?}");
    }
    assert_eq!(start.elapsed(), std::time::Duration::ZERO);
    assert!(is_free(&store).await);
    drop(holder);
}

/// The common way to stop: a `select!` whose other branch, an acquire, is neither polled nor dropped.
#[tokio::test(start_paused = true)]
async fn an_acquire_that_is_not_polled_does_not_hold_it_up() {
    for fate in [Fate::Late(MOMENT), Fate::AnswerLate(MOMENT), Fate::NotSent] {
        let (store, leases) = setup();
        store.next([fate]);
        let mut acquire = leases.acquire("key", TTL).into_future();
        assert!((&mut acquire).now_or_never().is_none());
        timeout(MOMENT * 10, leases.close()).await.unwrap();
        assert!(is_free(&store).await, "{fate:?}");
        let outcome = acquire.await;
        assert!(matches!(outcome, Err(Error::Closed)), "{outcome:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_grant_that_nobody_took_is_released_by_it() {
    let (store, leases) = setup();
    let mut acquire = leases.acquire("key", TTL).into_future();
    assert!((&mut acquire).now_or_never().is_none());
    sleep(MOMENT).await;
    assert!(!is_free(&store).await, "the control: it is granted");
    leases.close().await;
    assert!(is_free(&store).await);
    let outcome = acquire.await;
    assert!(matches!(outcome, Err(Error::Closed)), "{outcome:?}");
}

#[tokio::test(start_paused = true)]
async fn a_close_that_is_dropped_goes_on() {
    let (store, leases) = setup();
    let lease = leases.acquire("key", TTL * 10).await.unwrap();
    store.next([Fate::NotSent; 3]);
    assert!(leases.close().now_or_never().is_none());
    leases.close().await;
    assert!(is_free(&store).await);
    drop(lease);
}

#[tokio::test(start_paused = true)]
async fn a_store_that_cannot_be_reached_holds_it_up_for_a_ttl_at_the_most() {
    let (store, leases) = setup();
    let lease = leases.acquire("key", TTL).await.unwrap();
    store.next([Fate::NotSent; 1_000]);
    let start = Instant::now();
    leases.close().await;
    assert!(start.elapsed() > TTL / 2 && start.elapsed() < TTL + LIMIT * 2);
    drop(lease);
}

/// A static handle in tests: the runtime that the keeper lived on has gone.
#[test]
fn it_releases_though_the_first_runtime_has_ended() {
    let (store, leases) = setup();
    let runtime = || tokio::runtime::Runtime::new().unwrap();
    let lease = runtime().block_on(async { leases.acquire("key", TTL).await.unwrap() });
    runtime().block_on(async {
        leases.close().await;
        assert!(is_free(&store).await);
    });
    drop(lease);
}
