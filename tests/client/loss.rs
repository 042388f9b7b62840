//! How a holder learns that its lease is lost, or that it is at risk.

use leasehold::{Error, LossReason};
use tokio::time::{Instant, sleep, timeout};

use super::{Fate, MARGIN, MOMENT, TTL, setup};

#[tokio::test(start_paused = true)]
async fn a_lease_that_is_not_renewed_is_lost_at_its_deadline() {
    let (_, leases) = setup();
    let start = Instant::now();
    let lease = leases.acquire("key", TTL).await.unwrap();
    assert_eq!(lease.deadline(), start + TTL - MARGIN);
    let reason = lease.lost().await;
    assert!(matches!(reason, LossReason::Expired), "{reason:?}");
    assert_eq!(start.elapsed(), TTL - MARGIN);
    assert!(!lease.is_live());
}

#[tokio::test(start_paused = true)]
async fn it_is_lost_at_its_deadline_while_a_renewal_hangs() {
    let (store, leases) = setup();
    let start = Instant::now();
    let lease = leases.acquire("key", TTL).keep_alive().await.unwrap();
    // Each renewal is carried out, so the lease stays live on the server.
    store.next([Fate::AnswerLate(TTL * 10); 100]);
    let reason = lease.lost().await;
    assert_eq!(start.elapsed(), TTL - MARGIN);
    assert!(
        matches!(&reason, LossReason::Unreachable(error) if matches!(**error, Error::TimedOut { .. })),
        "{reason:?}"
    );
    // Once a lease is lost, it stays lost, whatever is answered later.
    sleep(TTL * 20).await;
    assert!(!lease.is_live());
}

#[tokio::test(start_paused = true)]
async fn the_reason_is_the_last_error() {
    let (store, leases) = setup();
    let start = Instant::now();
    let lease = leases.acquire("key", TTL).keep_alive().await.unwrap();
    store.next([Fate::Denied; 3]);
    store.next([Fate::NotSent; 1_000]);
    let reason = lease.lost().await;
    assert_eq!(start.elapsed(), TTL - MARGIN);
    assert!(
        matches!(&reason, LossReason::Unreachable(error) if matches!(**error, Error::Unreachable { .. })),
        "{reason:?}"
    );
    assert!(reason.to_string().contains("flaky store cannot be reached"));
}

#[tokio::test(start_paused = true)]
async fn an_eviction_is_learnt_with_the_next_renewal() {
    let (store, leases) = setup();
    let start = Instant::now();
    let lease = leases.acquire("key", TTL).keep_alive().await.unwrap();
    leases.evict("key").await.unwrap();
    // The holder learns of it within one round trip, and not after retries.
    store.next([Fate::AnswerLate(MOMENT)]);
    let reason = lease.lost().await;
    assert!(matches!(reason, LossReason::TakenOver), "{reason:?}");
    assert!(start.elapsed() <= TTL / 3 + MOMENT * 2);
}

#[tokio::test(start_paused = true)]
async fn a_loss_that_a_renewal_by_hand_learns_is_told_too() {
    let (_, leases) = setup();
    let lease = leases.acquire("key", TTL).await.unwrap();
    leases.evict("key").await.unwrap();
    let (reason, renewed) = tokio::join!(lease.lost(), lease.renew());
    assert!(matches!(reason, LossReason::TakenOver), "{reason:?}");
    assert!(renewed.is_err());
}

#[tokio::test(start_paused = true)]
async fn a_renewal_puts_the_loss_off() {
    let (_, leases) = setup();
    let lease = leases.acquire("key", TTL).await.unwrap();
    for _ in 0..5 {
        assert!(timeout(TTL / 2, lease.lost()).await.is_err());
        lease.renew().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_warning_comes_before_the_loss() {
    let (store, leases) = setup();
    let start = Instant::now();
    let lease = leases.acquire("key", TTL).keep_alive().await.unwrap();
    store.next([Fate::NotSent; 1_000]);
    lease.at_risk().await;
    assert_eq!(start.elapsed(), TTL * 2 / 3 - MARGIN);
    assert!(lease.is_live());
    lease.lost().await;
    lease.at_risk().await;
}

#[tokio::test(start_paused = true)]
async fn a_renewal_that_hangs_is_a_warning_too() {
    let (store, leases) = setup();
    let lease = leases.acquire("key", TTL).keep_alive().await.unwrap();
    store.next([Fate::Late(TTL * 10); 100]);
    lease.at_risk().await;
    assert!(lease.is_live() && lease.remaining() <= TTL / 3);
}

#[tokio::test(start_paused = true)]
async fn there_is_no_warning_while_all_goes_well_or_after_it_does_again() {
    let (store, leases) = setup();
    let lease = leases.acquire("key", TTL).keep_alive().await.unwrap();
    // One renewal fails, and its retry succeeds.
    store.next([Fate::NotSent]);
    assert!(timeout(TTL * 10, lease.at_risk()).await.is_err());

    // Without renewals nothing can fail, so `at_risk` returns with the loss.
    let plain = leases.acquire("plain", TTL).await.unwrap();
    let start = Instant::now();
    plain.at_risk().await;
    assert_eq!(start.elapsed(), TTL - MARGIN);
}

#[tokio::test(start_paused = true)]
async fn the_token_is_cancelled_by_the_loss() {
    let (_, leases) = setup();
    let start = Instant::now();
    let lease = leases.acquire("key", TTL).await.unwrap();
    let token = lease.cancellation_token();
    assert!(!token.is_cancelled());
    token.cancelled().await;
    assert_eq!(start.elapsed(), TTL - MARGIN);

    let lease = leases.acquire("key", TTL).keep_alive().await.unwrap();
    let token = lease.cancellation_token();
    leases.evict("key").await.unwrap();
    token.cancelled().await;
    assert!(!lease.is_live());
}

#[tokio::test(start_paused = true)]
async fn the_token_is_cancelled_when_the_guard_goes() {
    let ways: [fn(leasehold::Lease); 2] = [drop, |lease| lease.detach().unwrap()];
    for end in ways {
        let (_, leases) = setup();
        let lease = leases.acquire("key", TTL).keep_alive().await.unwrap();
        let token = lease.cancellation_token();
        sleep(TTL * 3).await;
        assert!(!token.is_cancelled());
        end(lease);
        timeout(MOMENT, token.cancelled()).await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_token_that_its_user_cancels_is_no_loss() {
    let (_, leases) = setup();
    let lease = leases.acquire("key", TTL).keep_alive().await.unwrap();
    let (one, other) = (lease.cancellation_token(), lease.cancellation_token());
    one.cancel();
    sleep(TTL).await;
    assert!(lease.is_live() && !other.is_cancelled());
}
