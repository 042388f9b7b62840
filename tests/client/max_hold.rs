//! Leases with a maximum hold, which ends them in spite of their renewals.

use std::{future::pending, time::Duration};

use leasehold::{Error, Lease, LossReason, Resumed, Ticket, WithError};
use tokio::time::{Instant, sleep, timeout};

use super::{Fate, FlakyStore, MARGIN, MOMENT, TTL, is_free, setup, until_free};

/// Longer than several renewals, and not a multiple of their period.
const MAX: Duration = Duration::from_secs(100);

fn is_held_too_long<T>(outcome: Result<T, Error>) -> bool {
    let reason = LossReason::HeldTooLong;
    matches!(outcome, Err(Error::Lost { reason: found, .. }) if found.to_string() == reason.to_string())
}

/// Waits until the lease is lost because of its maximum hold.
async fn is_lost(lease: &Lease) {
    let reason = lease.lost().await;
    assert!(matches!(reason, LossReason::HeldTooLong), "{reason:?}");
}

#[tokio::test(start_paused = true)]
async fn a_kept_lease_is_lost_at_its_maximum_hold_though_every_renewal_succeeds() {
    let (store, leases) = setup();
    let start = Instant::now();
    let acquire = || leases.acquire("key", TTL).keep_alive();
    let lease = acquire().max_hold(MAX).await.unwrap();
    let other = leases.acquire("other", TTL).keep_alive().await.unwrap();
    assert_eq!(lease.max_hold_deadline(), Some(start + MAX));
    assert_eq!(other.max_hold_deadline(), None);
    is_lost(&lease).await;
    assert_eq!(start.elapsed(), MAX);
    assert!(!lease.is_live() && lease.remaining().is_zero());
    assert!(is_held_too_long(lease.renew().await));

    sleep(MAX * 10).await;
    assert!(other.is_live(), "it has no maximum hold");
    drop(other);
    // The guard still exists, as that of a holder that hangs. The key is free all the same.
    assert!(is_free(&store).await);
    is_lost(&lease).await;
}

#[tokio::test(start_paused = true)]
async fn the_last_renewal_is_the_first_that_lasts_until_the_end() {
    let (store, leases) = setup();
    let start = Instant::now();
    let acquire = leases.acquire("key", TTL).keep_alive();
    let lease = acquire.max_hold(MAX).await.unwrap();
    store.calls();
    // The renewals come at 10, 20, ... 80 seconds. The last one lasts until 110 seconds.
    is_lost(&lease).await;
    assert_eq!(store.calls(), ["renew"; 8]);
    until_free(&store).await;
    assert!(start.elapsed() <= MAX + TTL / 3 + MOMENT);
    assert!(lease.release().await.is_ok(), "nobody else was granted it");
}

#[tokio::test(start_paused = true)]
async fn a_warning_comes_a_third_of_the_ttl_before_the_end() {
    let (_, leases) = setup();
    let start = Instant::now();
    let acquire = leases.acquire("key", TTL).keep_alive();
    let lease = acquire.max_hold(MAX).await.unwrap();
    lease.at_risk().await;
    assert_eq!(start.elapsed(), MAX - TTL / 3);
    assert!(lease.is_live());
}

#[tokio::test(start_paused = true)]
async fn a_lease_whose_renewals_fail_before_the_end_is_unreachable() {
    let (store, leases) = setup();
    let start = Instant::now();
    let acquire = leases.acquire("key", TTL).keep_alive();
    let lease = acquire.max_hold(MAX).await.unwrap();
    store.next([Fate::NotSent; 1_000]);
    let reason = lease.lost().await;
    assert!(matches!(reason, LossReason::Unreachable(_)), "{reason:?}");
    assert_eq!(start.elapsed(), TTL - MARGIN);
}

#[tokio::test(start_paused = true)]
async fn without_keep_alive_renewals_by_hand_are_bounded_too() {
    let (_, leases) = setup();
    let start = Instant::now();
    let lease = leases.acquire("key", TTL).max_hold(MAX).await.unwrap();
    while lease.is_live() {
        lease.renew().await.unwrap();
        assert!(lease.deadline() <= start + MAX);
        sleep(TTL / 2).await;
    }
    assert!(start.elapsed() >= MAX);
    assert!(is_held_too_long(lease.renew().await));
    is_lost(&lease).await;

    let idle = leases.acquire("idle", TTL).max_hold(MAX).await.unwrap();
    let reason = idle.lost().await;
    assert!(matches!(reason, LossReason::Expired), "{reason:?}");
}

/// The renewal task does not know of a renewal by hand. When it comes to the lease, it finds that
/// no renewal is needed.
#[tokio::test(start_paused = true)]
async fn a_renewal_by_hand_may_be_the_last_one() {
    let (store, leases) = setup();
    let acquire = leases.acquire("key", TTL).keep_alive();
    let lease = acquire.max_hold(TTL).await.unwrap();
    sleep(MARGIN).await;
    lease.renew().await.unwrap();
    store.calls();
    is_lost(&lease).await;
    assert_eq!(store.calls(), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn a_maximum_hold_below_the_ttl_is_refused_before_anything_is_sent() {
    let (store, leases) = setup();
    let short = TTL - Duration::from_nanos(1);
    let error = leases.acquire("key", TTL).max_hold(short).await;
    let error = error.unwrap_err();
    assert!(
        matches!(error, Error::InvalidMaxHold { max_hold, ttl } if (max_hold, ttl) == (short, TTL)),
        "{error:?}"
    );
    let set = leases.acquire_all(["a", "b"], TTL).max_hold(short).await;
    assert!(matches!(set, Err(Error::InvalidMaxHold { .. })), "{set:?}");
    assert!(store.calls().is_empty());

    for long in [TTL, Duration::MAX] {
        let lease = leases.acquire("key", TTL).max_hold(long).await.unwrap();
        lease.release().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn work_that_hangs_is_stopped() {
    let (store, leases) = setup();
    let start = Instant::now();
    let acquire = leases.acquire("key", TTL).max_hold(MAX);
    let work = acquire.with(async |_| pending::<Result<(), Error>>().await);
    let error = work.await.unwrap_err();
    assert!(
        matches!(
            error,
            WithError::Lost {
                reason: LossReason::HeldTooLong,
                ..
            }
        ),
        "{error:?}"
    );
    assert_eq!(start.elapsed(), MAX);
    assert!(is_free(&store).await);
}

/// The time in which a set waits for its last key does not count as hold.
#[tokio::test(start_paused = true)]
async fn the_maximum_hold_of_a_set_counts_from_its_last_grant() {
    let (_, leases) = setup();
    let holder = leases.acquire("z", MAX * 2).await.unwrap();
    let asked = leases.acquire_all(["key", "z"], TTL).keep_alive();
    let set = tokio::spawn(asked.max_hold(MAX).into_future());
    sleep(MAX * 3 / 2).await;
    holder.release().await.unwrap();
    let set = set.await.unwrap().unwrap();
    let ends = set.leases().iter().map(|lease| lease.max_hold_deadline());
    let ends: Vec<_> = ends.collect();
    assert_eq!(ends[0], ends[1]);
    let left = ends[0].unwrap() - Instant::now();
    assert!(left <= MAX && left > MAX - MOMENT * 2, "{left:?}");
    let (_, reason) = set.lost().await;
    assert!(matches!(reason, LossReason::HeldTooLong), "{reason:?}");
    assert_eq!(Some(Instant::now()), ends[0]);
}

async fn into_ticket(lease: Lease) -> Ticket {
    let text = serde_json::to_string(&lease.into_ticket()).unwrap();
    sleep(TTL / 2).await;
    serde_json::from_str(&text).unwrap()
}

async fn resumed(store: &FlakyStore, leases: &leasehold::Leases, ticket: &Ticket) -> Lease {
    assert!(!is_free(store).await);
    match leases.resume(ticket).keep_alive().await.unwrap() {
        Resumed::Live(lease) => lease,
        Resumed::Gone(reason) => panic!("the lease is gone: {reason}"),
    }
}

#[tokio::test(start_paused = true)]
async fn a_resumed_lease_has_what_is_left_of_its_maximum_hold() {
    let (store, leases) = setup();
    let start = Instant::now();
    let lease = leases.acquire("key", TTL).max_hold(TTL * 2).await.unwrap();
    let ticket = into_ticket(lease).await;
    let lease = resumed(&store, &leases, &ticket).await;
    is_lost(&lease).await;
    assert_eq!(start.elapsed(), TTL * 2);
    let left = lease.into_ticket();
    assert!(!is_free(&store).await);
    let gone = leases.resume(&left).keep_alive().await.unwrap();
    assert!(
        matches!(gone, Resumed::Gone(LossReason::HeldTooLong)),
        "{gone:?}"
    );
    // The lease was renewed to find that out, and is released.
    assert!(until_free(&store).await <= MOMENT);

    let lease = leases.acquire("key", TTL).await.unwrap();
    let ticket = into_ticket(lease).await;
    let lease = resumed(&store, &leases, &ticket).await;
    assert!(timeout(MAX * 10, lease.lost()).await.is_err());
}
