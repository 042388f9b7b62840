//! What ends a lease from memory, or the lease that stays behind it.

use std::{
    future::pending,
    sync::Arc,
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use async_trait::async_trait;
use leasehold::{
    Attempt, Error, Leases, LossReason, MemoryStore, Store, WithError,
    store::{LookAnswer, LookRequest, RenewAnswers, RenewRequest},
};
use leasehold_tests::layer::{Layer, Layered};
use tokio::time::{Instant, sleep, timeout};

use super::{IDLE, SECOND, asked, elsewhere, is_held, plain, sticky};
use crate::{Fate, MOMENT, PATIENCE, TTL, is_free, setup, until_free};

#[tokio::test(start_paused = true)]
async fn it_goes_back_when_nobody_has_used_it_for_long_enough() {
    let (store, leases) = setup();
    sticky(&leases).await.release().await.unwrap();
    sleep(IDLE - 2 * SECOND).await;
    assert!(!is_free(&store).await);
    plain(&leases).await.release().await.unwrap();
    sleep(IDLE - 2 * SECOND).await;
    assert!(!is_free(&store).await, "it was used meanwhile");
    assert!(until_free(&store).await <= 4 * SECOND);
}

#[tokio::test(start_paused = true)]
async fn a_lease_from_memory_ends_at_its_own_ttl_and_the_key_goes_on() {
    let (store, leases) = setup();
    let short = SECOND;
    let stuck = leases.acquire("key", 2 * TTL).sticky(IDLE).await.unwrap();
    drop(stuck);
    let stuck = leases.acquire("key", short).await.unwrap();
    assert_eq!(asked(&store), (1, 0));
    let start = Instant::now();
    let next = plain(&leases).await;
    assert_eq!(start.elapsed(), short);
    assert!(!stuck.is_live() && next.is_live() && stuck.fence() < next.fence());
    assert!(matches!(stuck.lost().await, LossReason::Expired));
    assert!(matches!(stuck.renew().await, Err(Error::Lost { .. })));
    assert!(matches!(stuck.release().await, Err(Error::Lost { .. })));
    assert!(
        next.is_live(),
        "the late release is not that of the next lease"
    );
    next.release().await.unwrap();
    assert_eq!(asked(&store), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn nothing_is_granted_here_after_the_lease_is_lost() {
    let (store, leases) = setup();
    let lease = leases
        .acquire("key", TTL)
        .sticky(IDLE)
        .keep_alive()
        .await
        .unwrap();
    let evicted = elsewhere(&store).evict("key").await.unwrap().unwrap();
    assert_eq!(evicted.evicted.len(), 1);
    // The next renewal tells it.
    let reason = timeout(PATIENCE, lease.lost()).await.unwrap();
    assert!(matches!(reason, LossReason::TakenOver), "{reason:?}");
    let fence = lease.fence();
    let next = plain(&leases).await;
    assert!(next.fence() > fence);
    assert!(matches!(lease.release().await, Err(Error::Lost { .. })));
    assert!(next.is_live());
    next.release().await.unwrap();
    assert!(is_free(&store).await);
}

#[tokio::test(start_paused = true)]
async fn an_eviction_by_this_process_ends_it_at_once() {
    let (store, leases) = setup();
    let lease = sticky(&leases).await;
    leases.evict("key").await.unwrap();
    assert!(!lease.is_live());
    store.calls();
    let next = plain(&leases).await;
    assert_eq!(asked(&store).0, 1);
    assert!(next.fence() > lease.fence());
}

#[tokio::test(start_paused = true)]
async fn a_store_that_does_not_answer_ends_it() {
    let (store, leases) = setup();
    let lease = leases
        .acquire("key", TTL)
        .sticky(IDLE)
        .keep_alive()
        .await
        .unwrap();
    store.next(vec![Fate::NotSent; 1_000]);
    let reason = timeout(PATIENCE, lease.lost()).await.unwrap();
    assert!(matches!(reason, LossReason::Unreachable(_)), "{reason:?}");
    let late = timeout(SECOND, leases.acquire("key", TTL)).await;
    assert!(late.is_err(), "it waits for the store");
}

#[tokio::test(start_paused = true)]
async fn a_close_ends_it() {
    let (store, leases) = setup();
    let lease = sticky(&leases).await;
    drop(leases.acquire("other", TTL).sticky(IDLE).await.unwrap());
    let waiting = leases.acquire("key", TTL);
    let (late, ()) = tokio::join!(waiting, leases.close());
    assert!(matches!(late, Err(Error::Closed)), "{late:?}");
    assert!(!lease.is_live());
    assert!(matches!(lease.lost().await, LossReason::Closed));
    assert!(is_free(&store).await);
    let late = leases.try_acquire("other", TTL).await;
    assert!(matches!(late, Err(Error::Closed)), "{late:?}");
    assert!(matches!(lease.release().await, Err(Error::Lost { .. })));
}

#[tokio::test(start_paused = true)]
async fn the_drop_of_the_last_handle_releases_it() {
    let (store, leases) = setup();
    let lease = sticky(&leases).await;
    drop(leases);
    sleep(10 * SECOND).await;
    assert!(!is_free(&store).await, "the guard holds it");
    drop(lease);
    assert!(until_free(&store).await <= SECOND);
}

#[tokio::test(start_paused = true)]
async fn a_maximum_hold_ends_one_lease_from_memory_and_not_the_stay() {
    let (store, leases) = setup();
    drop(sticky(&leases).await);
    let acquire = leases.acquire("key", 5 * SECOND).keep_alive();
    let held = acquire.max_hold(10 * SECOND).await.unwrap();
    let start = Instant::now();
    assert!(matches!(held.lost().await, LossReason::HeldTooLong));
    assert_eq!(start.elapsed(), 10 * SECOND);
    let next = plain(&leases).await;
    assert!(next.fence() > held.fence());
    assert_eq!(asked(&store), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn the_least_recently_used_key_goes_back_if_too_many_stay() {
    let leases = Leases::builder(MemoryStore::new()).sticky(IDLE).build();
    let key = |n: usize| format!("k{n}");
    for n in 0..4_096 {
        drop(leases.acquire(key(n), TTL).await.unwrap());
        if n % 1_024 == 0 {
            sleep(MOMENT).await;
        }
    }
    sleep(MOMENT).await;
    drop(leases.acquire(key(0), TTL).await.unwrap());
    drop(leases.acquire("another", TTL).await.unwrap());
    sleep(MOMENT).await;
    let free = async |n| {
        let state = leases.inspect(key(n)).await.unwrap().unwrap();
        state.is_free()
    };
    assert!(!free(0).await, "it was used");
    let mut gone = 0;
    for n in 0..4_096 {
        gone += usize::from(free(n).await);
    }
    assert_eq!(gone, 1);
}

#[tokio::test(start_paused = true)]
async fn an_eviction_reaches_a_lease_that_has_ended_and_is_used_still() {
    let (store, leases) = setup();
    let lease = leases
        .acquire("key", TTL)
        .sticky(IDLE)
        .keep_alive()
        .await
        .unwrap();
    let noted = leases.try_acquire("key", TTL).note("note").await.unwrap();
    assert!(matches!(noted, Attempt::Held(_)), "{noted:?}");
    leases.evict("key").await.unwrap();
    assert!(!lease.is_live());
    let error = lease.renew().await.unwrap_err();
    assert!(matches!(error, Error::Lost { .. }), "{error:?}");
    let next = elsewhere(&store).acquire("key", TTL).await.unwrap();
    let inside = leases.try_acquire("key", TTL).reentrant().await.unwrap();
    assert!(matches!(inside, Attempt::Held(_)), "{inside:?}");
    drop(next);
}

#[tokio::test(start_paused = true)]
async fn a_close_keeps_a_key_whose_lease_was_detached_beside_another_one() {
    let (store, leases) = setup();
    drop(sticky(&leases).await);
    let share = async || leases.acquire("key", TTL).shared().await.unwrap();
    let (one, two) = (share().await, share().await);
    one.detach().unwrap();
    leases.close().await;
    assert!(!two.is_live());
    assert!(!is_free(&store).await);
    assert!(until_free(&store).await <= TTL);
}

/// The lease is evicted before its answer has come.
#[tokio::test(start_paused = true)]
async fn a_lease_that_was_evicted_before_its_answer_does_not_stay() {
    let (store, leases) = setup();
    store.next([Fate::AnswerLate(SECOND)]);
    let evict = async {
        sleep(MOMENT).await;
        assert!(leases.evict("key").await.unwrap().is_some());
    };
    let (lease, ()) = tokio::join!(sticky(&leases), evict);
    drop(lease);
    let _next = plain(&elsewhere(&store)).await;
    assert!(is_held(&leases).await);
}

/// Within half a second of an eviction, and not only with the next renewal.
#[tokio::test(start_paused = true)]
async fn an_eviction_elsewhere_ends_it_with_the_next_look() {
    let taken_over = |outcome: Result<(), Error>| {
        let is_lost = matches!(
            outcome,
            Err(Error::Lost {
                reason: LossReason::TakenOver,
                ..
            })
        );
        assert!(is_lost, "{outcome:?}");
    };
    for is_granted_again in [false, true] {
        let (store, leases) = setup();
        let other = elsewhere(&store);
        let (renews, releases) = (sticky(&leases).await, leases.acquire("another", TTL));
        let releases = releases.sticky(IDLE).await.unwrap();
        let works = leases.acquire("work", TTL).sticky(IDLE);
        let works = works.with(async |_| -> Result<(), Error> { pending().await });
        let works = tokio::spawn(works);
        sleep(SECOND).await;
        let mut next = Vec::new();
        for key in ["key", "another", "work"] {
            assert_eq!(other.evict(key).await.unwrap().unwrap().evicted.len(), 1);
            if is_granted_again {
                next.push(other.acquire(key, TTL).await.unwrap());
            }
        }
        sleep(SECOND / 2 + MOMENT).await;
        assert!(!renews.is_live() && !releases.is_live());
        taken_over(renews.renew().await);
        taken_over(releases.release().await);
        let worked = works.await.unwrap();
        let is_told = matches!(
            worked,
            Err(WithError::Lost {
                reason: LossReason::TakenOver,
                ..
            })
        );
        assert!(is_told, "{worked:?}");
        // Nothing is granted from memory any more.
        for key in ["key", "another", "work"] {
            let attempt = leases.try_acquire(key, TTL).await.unwrap();
            let is_refused = matches!(attempt, Attempt::Held(_));
            assert_eq!(is_refused, is_granted_again, "{attempt:?}");
        }
        assert!(next.iter().all(|lease| lease.is_live()));
    }
}

/// A renewal by hand asks the store, so it does not wait for the look.
#[tokio::test(start_paused = true)]
async fn a_renewal_by_hand_learns_of_an_eviction_elsewhere_at_once() {
    let (store, leases) = setup();
    drop(sticky(&leases).await);
    let lease = plain(&leases).await;
    lease.renew().await.unwrap();
    assert_eq!(asked(&store), (1, 0));
    let other = elsewhere(&store);
    other.evict("key").await.unwrap().unwrap();
    let next = other.acquire("key", TTL).await.unwrap();
    let start = Instant::now();
    let renewed = lease.renew().await;
    assert!(
        matches!(
            renewed,
            Err(Error::Lost {
                reason: LossReason::TakenOver,
                ..
            })
        ),
        "{renewed:?}"
    );
    assert_eq!(start.elapsed(), Duration::ZERO);
    assert!(!lease.is_live() && next.is_live());
    let attempt = leases.try_acquire("key", TTL).await.unwrap();
    assert!(matches!(attempt, Attempt::Held(_)), "{attempt:?}");
}

/// A guard under a lease that does not stay any more, because its document was needed, is told too.
#[tokio::test(start_paused = true)]
async fn an_eviction_elsewhere_ends_a_lease_that_has_ended_and_is_used_still() {
    let (store, leases) = setup();
    let lease = sticky(&leases).await;
    let noted = leases.try_acquire("key", TTL).note("note").await.unwrap();
    assert!(matches!(noted, Attempt::Held(_)), "{noted:?}");
    elsewhere(&store).evict("key").await.unwrap();
    sleep(SECOND / 2 + MOMENT).await;
    assert!(!lease.is_live());
}

/// A store whose looks are out of date: they show no lease.
#[derive(Clone, Debug, Default)]
struct Lags {
    memory: MemoryStore,
    renewals: Arc<AtomicUsize>,
}

#[async_trait]
impl Layer for Lags {
    fn inner(&self) -> &dyn Store {
        &self.memory
    }

    async fn renew(&self, requests: &[RenewRequest]) -> Result<RenewAnswers, Error> {
        self.renewals.fetch_add(1, Ordering::SeqCst);
        self.memory.renew(requests).await
    }

    async fn look(&self, leases: &[LookRequest]) -> Result<Vec<LookAnswer>, Error> {
        Ok(vec![LookAnswer::default(); leases.len()])
    }
}

/// Only the answer to a renewal ends the lease.
#[tokio::test(start_paused = true)]
async fn a_look_that_is_out_of_date_ends_nothing() {
    let store = Lags::default();
    let leases = Leases::new(Layered(store.clone()));
    let lease = sticky(&leases).await;
    sleep(3 * SECOND).await;
    assert!(lease.is_live());
    let renewals = store.renewals.load(Ordering::SeqCst);
    assert!((1..=6).contains(&renewals), "{renewals}");
}
