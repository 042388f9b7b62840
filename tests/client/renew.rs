//! Renewals by hand, and how a holder learns that its lease is over.

use std::time::Duration;

use leasehold::{Attempt, Error, LossReason};
use tokio::time::sleep;

use super::{Fate, MARGIN, MOMENT, TTL, setup};

#[tokio::test(start_paused = true)]
async fn a_renewal_moves_the_deadline() {
    let (_, leases) = setup();
    let lease = leases.acquire("key", TTL).await.unwrap();
    assert_eq!(lease.remaining(), TTL - MARGIN);
    sleep(TTL / 2).await;
    assert_eq!(lease.remaining(), TTL / 2 - MARGIN);
    lease.renew().await.unwrap();
    assert_eq!(lease.remaining(), TTL - MARGIN);
}

#[tokio::test(start_paused = true)]
async fn a_renewal_is_repeated_until_it_succeeds() {
    let (store, leases) = setup();
    let lease = leases.acquire("key", TTL).await.unwrap();
    store.next([Fate::AnswerLost, Fate::NotSent]);
    lease.renew().await.unwrap();
    assert!(lease.is_live());
}

#[tokio::test(start_paused = true)]
async fn a_renewal_that_hangs_does_not_hide_the_loss() {
    let (store, leases) = setup();
    let lease = leases.acquire("key", TTL).await.unwrap();
    sleep(TTL - MARGIN - MOMENT).await;
    // The renewal is carried out in time, but answered too late.
    store.next([Fate::AnswerLate(TTL)]);
    let error = lease.renew().await.unwrap_err();
    assert!(
        matches!(
            error,
            Error::Lost {
                reason: LossReason::Expired,
                ..
            }
        ),
        "{error:?}"
    );
    assert!(!lease.is_live());
    assert_eq!(lease.remaining(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn a_lost_lease_stays_lost() {
    let (store, leases) = setup();
    let lease = leases.acquire("key", TTL).await.unwrap();
    leases.evict("key").await.unwrap();
    assert!(lease.is_live(), "nobody has told it yet");
    for _ in 0..2 {
        let error = lease.renew().await.unwrap_err();
        assert!(
            matches!(
                error,
                Error::Lost {
                    reason: LossReason::TakenOver,
                    ..
                }
            ),
            "{error:?}"
        );
        assert!(!lease.is_live());
    }
    // The second renewal sends no request.
    assert_eq!(store.calls(), ["acquire", "evict", "renew"]);
}

#[tokio::test(start_paused = true)]
async fn within_the_margin_the_holder_is_over_and_the_server_not() {
    let (_, leases) = setup();
    let lease = leases.acquire("key", TTL).await.unwrap();
    sleep(TTL - MARGIN).await;
    assert!(!lease.is_live());
    let attempt = leases.try_acquire("key", TTL).await.unwrap();
    assert!(matches!(attempt, Attempt::Held(_)));
}
