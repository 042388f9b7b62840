//! Leases that are renewed in the background.

use std::time::Duration;

use leasehold::{Attempt, Error, Leases, LossReason};
use tokio::time::{Instant, sleep};

use super::{Fate, FlakyStore, MARGIN, MOMENT, TTL, is_free, setup};

#[tokio::test(start_paused = true)]
async fn a_kept_lease_is_renewed_at_a_third_of_its_ttl() {
    let (store, leases) = setup();
    let lease = leases.acquire("key", TTL).keep_alive().await.unwrap();
    sleep(TTL / 3 - MOMENT).await;
    assert_eq!(store.calls(), ["acquire"]);
    sleep(MOMENT * 2).await;
    assert_eq!(store.calls(), ["renew"]);
    assert!(lease.remaining() > TTL - MARGIN - MOMENT * 2);
    sleep(TTL * 100).await;
    assert!(lease.is_live());
    assert_eq!(store.calls().len(), 300);
    lease.release().await.unwrap();
    sleep(TTL).await;
    assert_eq!(store.calls(), ["release"], "and nothing after it");
}

#[tokio::test(start_paused = true)]
async fn an_attempt_keeps_its_lease_alive_too() {
    let (_, leases) = setup();
    let attempt = leases.try_acquire("key", TTL).keep_alive().await.unwrap();
    let Attempt::Acquired(lease) = attempt else {
        panic!("the key is held");
    };
    sleep(TTL * 10).await;
    assert!(lease.is_live());
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_nobody_asked_to_keep_is_not_renewed() {
    let (store, leases) = setup();
    let lease = leases.acquire("key", TTL).await.unwrap();
    sleep(TTL).await;
    assert!(!lease.is_live());
    assert_eq!(store.calls(), ["acquire"]);
}

#[tokio::test(start_paused = true)]
async fn renewals_end_with_the_guard_however_it_ends() {
    let ways: [fn(leasehold::Lease); 3] = [drop, leasehold::Lease::detach, |lease| {
        drop(lease.release())
    }];
    for end in ways {
        let (store, leases) = setup();
        end(leases.acquire("key", TTL).keep_alive().await.unwrap());
        sleep(TTL * 10).await;
        assert!(!store.calls().contains(&"renew"));
        assert!(is_free(&store).await);
    }
}

#[tokio::test(start_paused = true)]
async fn ten_thousand_leases_cost_ten_calls_a_period() {
    let (store, leases) = setup();
    let mut kept = Vec::new();
    for number in 0..10_000 {
        let acquire = leases.acquire(format!("key {number}"), TTL);
        kept.push(acquire.keep_alive().await.unwrap());
        // Acquired at different moments, over half a period.
        if number % 10 == 0 {
            sleep(TTL / 6 / 1_000).await;
        }
    }
    // The first period, in which they fall into step.
    sleep(TTL / 2).await;
    store.calls();
    let periods = 10;
    sleep(TTL / 3 * periods).await;
    let calls = store.calls().len();
    assert!(calls <= 10 * periods as usize, "{calls} calls");
    assert!(kept.iter().all(|lease| lease.is_live()));
}

#[tokio::test(start_paused = true)]
async fn errors_are_retried_until_a_renewal_succeeds() {
    for fate in [Fate::NotSent, Fate::AnswerLost, Fate::Denied, Fate::Panic] {
        let (store, leases) = setup();
        let lease = leases.acquire("key", TTL).keep_alive().await.unwrap();
        store.next([fate; 4]);
        sleep(TTL * 5).await;
        assert!(lease.is_live(), "{fate:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_renewal_that_hangs_is_sent_again() {
    let (store, leases) = setup();
    let lease = leases.acquire("key", TTL).keep_alive().await.unwrap();
    store.next([Fate::Late(TTL * 10), Fate::Late(TTL * 10)]);
    sleep(TTL * 5).await;
    assert!(lease.is_live());
}

#[tokio::test(start_paused = true)]
async fn one_that_is_answered_late_counts() {
    let (store, leases) = setup();
    let start = Instant::now();
    let lease = leases.acquire("key", TTL).keep_alive().await.unwrap();
    // Sent at a third, carried out, and answered just before the end; the others never arrive.
    let late = TTL * 2 / 3 - MARGIN - MOMENT;
    store.next([Fate::AnswerLate(late)]);
    store.next([Fate::Late(TTL * 100); 100]);
    sleep(TTL - MARGIN).await;
    assert!(lease.is_live());
    assert_eq!(lease.deadline(), start + TTL / 3 + TTL - MARGIN);
}

/// A lease whose renewal hangs in the server, and every batch that it is part of.
#[tokio::test(start_paused = true)]
async fn a_lease_that_hangs_does_not_take_others_along() {
    let (store, leases) = setup();
    let mut kept = Vec::new();
    for number in 0..500 {
        let acquire = leases.acquire(format!("key {number}"), TTL);
        kept.push(acquire.keep_alive().await.unwrap());
    }
    store.hang_on("key 250");
    sleep(TTL * 5).await;
    let lost: Vec<_> = kept.iter().filter(|lease| !lease.is_live()).collect();
    assert_eq!(lost.len(), 1, "{lost:?}");
    assert_eq!(lost[0].key().as_str(), "key 250");
    let reason = lost[0].lost().await;
    assert!(matches!(reason, LossReason::Unreachable(_)), "{reason:?}");
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_is_refused_does_not_take_others_along() {
    let (store, leases) = setup();
    let evicted = leases.acquire("evicted", TTL).keep_alive().await.unwrap();
    let kept = leases.acquire("kept", TTL).keep_alive().await.unwrap();
    leases.evict("evicted").await.unwrap();
    sleep(TTL * 2).await;
    assert!(!evicted.is_live() && kept.is_live());
    // The lost one is left alone: one call a period, for the other.
    store.calls();
    drop(kept);
    sleep(TTL * 2).await;
    assert_eq!(store.calls(), ["release"]);
}

/// A runtime that ends takes its keeper along; nothing pretends otherwise.
#[test]
fn without_its_runtime_a_kept_lease_is_lost_at_its_deadline() {
    let store = FlakyStore::new();
    let leases = Leases::new(store);
    let short = Duration::from_millis(300);
    let first = tokio::runtime::Runtime::new().unwrap();
    let lease = first.block_on(async { leases.acquire("key", short).keep_alive().await.unwrap() });
    let token = first.block_on(async { lease.cancellation_token() });
    drop(first);
    let second = tokio::runtime::Runtime::new().unwrap();
    second.block_on(async {
        assert!(token.is_cancelled(), "nobody would cancel it any more");
        let reason = lease.lost().await;
        assert!(matches!(reason, LossReason::Expired), "{reason:?}");
        // The next acquire brings a keeper of its own.
        let next = leases.acquire("key", short).keep_alive().await.unwrap();
        sleep(short * 2).await;
        next.renew().await.unwrap();
        let late = lease.release().await;
        assert!(matches!(late, Err(Error::Lost { .. })), "{late:?}");
    });
}
