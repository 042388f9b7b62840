//! Leases that are to last, and whose grant was answered late: the caller gets them with most of their ttl.

use std::time::Duration;

use futures::FutureExt;
use leasehold::{
    Attempt, Error, Key, Lease, LossReason, Store,
    jobs::{Once, OnceAttempt, Term},
};
use tokio::time::{Instant, sleep, timeout};

use super::{Fate, FlakyStore, MARGIN, MOMENT, setup};

const TTL: Duration = Duration::from_secs(9);
/// How late the answer to the acquire is. The renewal is due after three seconds.
const LATE: Duration = Duration::from_secs(5);

fn has_most(lease: &Lease) -> bool {
    lease.remaining() + MARGIN >= TTL * 2 / 3
}

/// A store that answers the next acquire late.
fn late() -> (FlakyStore, leasehold::Leases) {
    let (store, leases) = setup();
    store.next([Fate::AnswerLate(LATE)]);
    (store, leases)
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_is_kept_alive_is_renewed_before_its_caller_has_it() {
    let (store, leases) = late();
    let lease = leases.acquire("key", TTL).keep_alive().await.unwrap();
    assert!(has_most(&lease), "{lease:?}");
    assert_eq!(store.calls(), ["acquire", "renew"]);
    // The later renewals come as always.
    sleep(TTL * 10).await;
    assert!(lease.is_live());

    let (_, leases) = late();
    let attempt = leases.try_acquire("key", TTL).keep_alive().await;
    let Ok(Attempt::Acquired(lease)) = attempt else {
        panic!("{attempt:?}");
    };
    assert!(has_most(&lease), "{lease:?}");

    // The first two requests are carried out, but not answered in time. The third finds their grant.
    let (store, leases) = setup();
    store.next([Fate::AnswerLate(TTL * 3); 2]);
    let lease = leases.acquire("key", TTL).keep_alive().await.unwrap();
    assert!(has_most(&lease), "{lease:?}");

    let (_, leases) = late();
    let set = leases.acquire_all(["key", "other"], TTL).keep_alive();
    for lease in set.await.unwrap().leases() {
        assert!(has_most(lease), "{lease:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn work_begins_with_most_of_the_ttl() {
    let work = async |lease: &Lease| {
        assert!(has_most(lease), "{lease:?}");
        Ok::<_, Error>(())
    };
    let (_, leases) = late();
    leases.acquire("key", TTL).with(work).await.unwrap();

    let (_, leases) = late();
    let ran = leases.once("key", 7_i64).ttl(TTL).run(work).await;
    assert!(matches!(ran, Ok(Once::Ran(()))), "{ran:?}");

    let (_, leases) = late();
    let attempt = leases.once("key", 7_i64).ttl(TTL).acquire().await;
    let Ok(OnceAttempt::Acquired(lease)) = attempt else {
        panic!("{attempt:?}");
    };
    assert!(has_most(&lease), "{lease:?}");

    let (_, leases) = late();
    let start = Instant::now();
    let term = async |term: &Term| {
        term.at_risk().now_or_never();
        assert!(start.elapsed() >= LATE);
        leases.close().await;
        Ok::<_, Error>(())
    };
    leases.leader("key", TTL).run(term).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn other_leases_are_given_as_they_are() {
    let (store, leases) = late();
    let lease = leases.acquire("key", TTL).await.unwrap();
    assert!(lease.remaining() <= TTL - LATE);
    assert_eq!(store.calls(), ["acquire"]);

    // The renewal is not due yet.
    let (store, leases) = setup();
    store.next([Fate::AnswerLate(TTL / 4)]);
    let _lease = leases.acquire("key", TTL).keep_alive().await.unwrap();
    assert_eq!(store.calls(), ["acquire"]);
}

/// The renewal is slow too, or its request or its answer is lost.
#[tokio::test(start_paused = true)]
async fn a_renewal_without_an_answer_is_sent_again() {
    let fates = [
        Fate::AnswerLate(TTL / 3 + MOMENT),
        Fate::Late(TTL),
        Fate::NotSent,
        Fate::AnswerLost,
    ];
    for fate in fates {
        let (store, leases) = late();
        store.next([fate]);
        let lease = leases.acquire("key", TTL).keep_alive().await.unwrap();
        assert!(has_most(&lease), "{fate:?}: {lease:?}");
        assert_eq!(store.calls(), ["acquire", "renew", "renew"]);
    }
}

/// A store whose answers always take longer than the renewals of such a ttl should.
#[tokio::test(start_paused = true)]
async fn a_store_that_is_always_slow_does_not_keep_the_caller_waiting() {
    let (store, leases) = setup();
    let start = Instant::now();
    store.next([Fate::AnswerLate(TTL * 2 / 5); 100]);
    let lease = leases.acquire("key", TTL).keep_alive().await.unwrap();
    assert!(lease.is_live());
    assert!(start.elapsed() <= TTL * 2, "{:?}", start.elapsed());
    sleep(TTL * 3).await;
    assert!(lease.is_live());
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_is_lost_before_its_caller_has_it_is_asked_for_again() {
    let (store, leases) = late();
    let waiting = tokio::spawn(leases.acquire("key", TTL).keep_alive().into_future());
    let key = Key::new("key").unwrap();
    sleep(LATE / 2).await;
    let evicted = store.memory.inspect(&key).await.unwrap().unwrap();
    store.memory.evict(&key).await.unwrap();
    let lease = waiting.await.unwrap().unwrap();
    assert!(has_most(&lease) && lease.fence() > evicted.holders[0].fence);
    // What may be left of the first lease is released before.
    assert_eq!(
        &store.calls()[..4],
        ["acquire", "renew", "release", "acquire"]
    );
    drop((lease, leases));

    // Who does not wait is told.
    let (store, leases) = late();
    let attempt = tokio::spawn(leases.try_acquire("key", TTL).keep_alive().into_future());
    sleep(LATE / 2).await;
    store.memory.evict(&key).await.unwrap();
    let refused = attempt.await.unwrap();
    let is_taken_over = |error: &Error| {
        let Error::Lost { reason, .. } = error else {
            return false;
        };
        matches!(reason, LossReason::TakenOver)
    };
    assert!(refused.as_ref().is_err_and(is_taken_over), "{refused:?}");
}

#[tokio::test(start_paused = true)]
async fn an_outage_after_the_grant_does_not_begin_the_work() {
    let (store, leases) = late();
    store.next([Fate::NotSent; 100]);
    let refused = leases.try_acquire("key", TTL).keep_alive().await;
    assert!(
        matches!(refused, Err(Error::Unreachable { .. })),
        "{refused:?}"
    );

    let (store, leases) = late();
    store.next([Fate::NotSent; 100]);
    let patient = leases.acquire("key", TTL).keep_alive().wait_for(TTL * 20);
    let patient = tokio::spawn(patient.into_future());
    sleep(TTL * 2).await;
    store.fates_now([]);
    let lease = timeout(TTL, patient).await.unwrap().unwrap().unwrap();
    assert!(has_most(&lease), "{lease:?}");
}
