//! Leases that are renewed in the background.

use leasehold::{Attempt, Error, Leases, LossReason};
use tokio::time::{Instant, sleep};

use super::{Fate, FlakyStore, LIMIT, MARGIN, MOMENT, TTL, is_free, setup};

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
    let ways: [fn(leasehold::Lease); 3] = [
        drop,
        |lease| lease.detach().unwrap(),
        |lease| drop(lease.release()),
    ];
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
        // The leases are acquired at different moments, spread over half a period.
        if number % 10 == 0 {
            sleep(TTL / 6 / 1_000).await;
        }
    }
    // In the first period the renewals fall into step.
    sleep(TTL / 2).await;
    store.calls();
    let periods = 10;
    sleep(TTL / 3 * periods).await;
    let calls = store.calls().len();
    // The batches drift apart, which adds up to an eighth of the calls.
    assert!(calls <= 10 * periods as usize * 9 / 8, "{calls} calls");
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
    // The renewal is sent after a third of the ttl, carried out, and answered just before the deadline. The later ones
    // never arrive.
    let late = TTL * 2 / 3 - MARGIN - MOMENT;
    store.next([Fate::AnswerLate(late)]);
    store.next([Fate::Late(TTL * 100); 100]);
    sleep(TTL - MARGIN).await;
    assert!(lease.is_live());
    assert_eq!(lease.deadline(), start + TTL / 3 + TTL - MARGIN);
}

/// The renewal of this lease hangs in the server, and with it every batch that has the lease in it.
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
    // The lost lease is not renewed any more: there is one call a period, for the other one.
    store.calls();
    drop(kept);
    sleep(TTL * 2).await;
    assert_eq!(store.calls(), ["release"]);
}

/// The leases of a runtime that ends are renewed on that of the first use.
#[test]
fn a_lease_of_another_runtime_is_kept_when_that_one_ends() {
    let leases = Leases::new(FlakyStore::new());
    // With a paused clock, a renewal is in time however slow the machine is.
    let paused = || {
        let runtime = tokio::runtime::Builder::new_current_thread();
        { runtime }.enable_all().start_paused(true).build().unwrap()
    };
    let (lives, ends) = (paused(), paused());
    let kept = |key| leases.acquire(key, TTL).keep_alive().into_future();
    let first = lives.block_on(kept("first")).unwrap();
    let lease = ends.block_on(kept("key")).unwrap();
    let token = lease.cancellation_token();
    drop(ends);
    lives.block_on(async {
        sleep(TTL * 3).await;
        assert!(first.is_live() && lease.is_live() && !token.is_cancelled());
        lease.release().await.unwrap();
        token.cancelled().await;
    });
}

/// Counts the renewals of 2,000 leases while the store cannot be reached for a whole ttl.
async fn renewals_in_an_outage(fate: Fate) -> usize {
    let (store, leases) = setup();
    let mut kept = Vec::new();
    for number in 0..2_000 {
        let acquire = leases.acquire(format!("key {number}"), TTL);
        kept.push(acquire.keep_alive().await.unwrap());
    }
    store.calls();
    store.next(std::iter::repeat_n(fate, 100_000));
    sleep(TTL).await;
    store
        .calls()
        .iter()
        .filter(|&&call| call == "renew")
        .count()
}

#[tokio::test(start_paused = true)]
async fn an_outage_is_no_reason_for_a_storm_of_renewals() {
    for fate in [Fate::NotSent, Fate::Late(TTL * 10)] {
        let renewals = renewals_in_an_outage(fate).await;
        assert!(renewals < 200, "{fate:?}: {renewals}");
    }
}

/// A late request is granted the lease id anew, after another holder had the key. The guard stands for the earlier
/// grant, so its lease is lost.
#[tokio::test(start_paused = true)]
async fn a_renewal_of_a_later_grant_is_a_loss() {
    let (store, leases) = setup();
    let ttl = LIMIT * 50;
    store.next([Fate::Late(LIMIT * 2)]);
    let lease = leases.acquire("key", ttl).await.unwrap();
    let other = Leases::new(store.memory.clone());
    other.evict("key").await.unwrap();
    let between = other.acquire("key", ttl).await.unwrap();
    assert!(between.fence() > lease.fence());
    between.release().await.unwrap();
    sleep(LIMIT * 2).await;
    assert!(!is_free(&store).await, "the control");
    let error = lease.renew().await.unwrap_err();
    assert!(matches!(error, Error::Lost { .. }), "{error:?}");
}

/// The pauses between the tries are random, so there are several outages.
#[tokio::test(start_paused = true)]
async fn a_lease_outlives_an_outage_of_three_fifths_of_its_ttl() {
    let (store, leases) = setup();
    for outage in 0..30 {
        let lease = leases.acquire("key", TTL).keep_alive().await.unwrap();
        sleep(TTL / 3 - MOMENT).await;
        store.fates_now(vec![Fate::NotSent; 10_000]);
        sleep(TTL * 3 / 5).await;
        store.fates_now([]);
        sleep(TTL).await;
        assert!(lease.is_live(), "after {outage}");
        lease.release().await.unwrap();
    }
}
