//! Each metric changes when it should, and at no other time.

use std::{future::IntoFuture, time::Duration};

use futures::future::try_join_all;
use leasehold::{
    Attempt, Error, Leases, LossReason, MemoryStore,
    testing::{Failure, FaultyStore},
};
use tokio::time::{sleep, timeout};

use super::meter::{Meter, these};
use crate::{Fate, FlakyStore, LIMIT, MARGIN, MOMENT, TTL, setup};

/// For how long a lease serves further tasks of its process.
const TURN: Duration = Duration::from_millis(100);

#[tokio::test(start_paused = true)]
async fn an_acquire_and_its_release() {
    let (meter, (_, leases)) = (Meter::new(), setup());
    let lease = leases.acquire("key", TTL).await.unwrap();
    let granted = these([
        ("acquires_total outcome=granted mode=exclusive", &[1.0]),
        ("acquire_wait_seconds outcome=granted", &[0.0]),
        ("leases_held", &[1.0]),
    ]);
    assert_eq!(meter.moved(), granted);
    sleep(MOMENT).await;
    assert_eq!(meter.moved(), these([]));
    lease.release().await.unwrap();
    let released = these([("leases_held", &[-1.0]), ("lease_hold_seconds", &[0.01])]);
    assert_eq!(meter.moved(), released);
    leases.close().await;
    assert_eq!(meter.moved(), these([]));
}

#[tokio::test(start_paused = true)]
async fn the_modes() {
    let (meter, (_, leases)) = (Meter::new(), setup());
    drop(leases.acquire("a", TTL).shared().await.unwrap());
    drop(leases.try_acquire("b", TTL).permits(1, 2).await.unwrap());
    let moved = meter.moved();
    for mode in ["shared", "permits"] {
        let name = format!("acquires_total outcome=granted mode={mode}");
        assert_eq!(moved.get(&name), Some(&vec![1.0]), "{moved:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn acquires_that_end_without_a_lease() {
    let (store, leases) = setup();
    let holder = leases.acquire("key", TTL * 10).await.unwrap();
    let meter = Meter::new();
    let held = leases.try_acquire("key", TTL).await.unwrap();
    assert!(matches!(held, Attempt::Held(_)));
    let expected = these([
        ("acquires_total outcome=held mode=exclusive", &[1.0]),
        ("acquire_wait_seconds outcome=held", &[0.0]),
    ]);
    assert_eq!(meter.moved(), expected);

    let waited = leases.acquire("key", TTL).wait_for(MOMENT).await;
    assert!(matches!(waited, Err(Error::WaitTimedOut { .. })));
    sleep(MOMENT).await;
    let given_up = "places_given_up_total outcome=released";
    let expected = these([
        ("acquires_total outcome=timed_out mode=exclusive", &[1.0]),
        ("acquire_wait_seconds outcome=timed_out", &[0.01]),
        ("places_taken_total", &[1.0]),
        ("places_ahead", &[0.0]),
        (given_up, &[1.0]),
    ]);
    assert_eq!(meter.moved(), expected);

    let cancelled = leases.acquire("key", TTL).shared().into_future();
    assert!(timeout(MOMENT, cancelled).await.is_err());
    sleep(MOMENT).await;
    let expected = these([
        ("acquires_total outcome=cancelled mode=shared", &[1.0]),
        ("acquire_wait_seconds outcome=cancelled", &[0.01]),
        ("places_taken_total", &[1.0]),
        ("places_ahead", &[0.0]),
        (given_up, &[1.0]),
    ]);
    assert_eq!(meter.moved(), expected);

    store.next([Fate::Denied]);
    let refused = leases.try_acquire("other", TTL).await;
    assert!(matches!(refused, Err(Error::Denied { .. })));
    let invalid = leases.try_acquire("", TTL).await;
    assert!(matches!(invalid, Err(Error::InvalidKey { .. })));
    let expected = these([
        ("acquires_total outcome=error mode=exclusive", &[2.0]),
        ("acquire_wait_seconds outcome=error", &[0.0, 0.0]),
        ("store_errors_total operation=acquire", &[1.0]),
    ]);
    assert_eq!(meter.moved(), expected);

    holder.release().await.unwrap();
    leases.close().await;
    meter.moved();
    let closed = leases.try_acquire("key", TTL).await;
    assert!(matches!(closed, Err(Error::Closed)));
    let expected = these([
        ("acquires_total outcome=closed mode=exclusive", &[1.0]),
        ("acquire_wait_seconds outcome=closed", &[0.0]),
    ]);
    assert_eq!(meter.moved(), expected);
}

#[tokio::test(start_paused = true)]
async fn an_acquire_that_is_never_polled_did_not_happen() {
    let (meter, (_, leases)) = (Meter::new(), setup());
    drop(leases.acquire("key", TTL).into_future());
    assert_eq!(meter.moved(), these([]));
}

#[tokio::test(start_paused = true)]
async fn waiters_come_and_go() {
    let (_, leases) = setup();
    let holder = leases.acquire("key", TTL).await.unwrap();
    let meter = Meter::new();
    let mut waiters = Vec::new();
    for _ in 0..4 {
        waiters.push(tokio::spawn(leases.acquire("key", TTL).into_future()));
    }
    sleep(MOMENT).await;
    assert_eq!(meter.moved(), these([("waiting_tasks", &[4.0])]));
    // Until the end of the turn of this process, its lease serves the waiters.
    sleep(TURN).await;
    let one_place = these([("places_taken_total", &[1.0]), ("places_ahead", &[0.0])]);
    assert_eq!(meter.moved(), one_place);
    // The last waiter leaves, and the first one, behind whose place the others wait.
    for gone in [3, 0] {
        waiters.remove(gone).abort();
    }
    sleep(MOMENT).await;
    assert_eq!(meter.moved().get("waiting_tasks"), Some(&vec![-2.0]));
    holder.release().await.unwrap();
    sleep(MOMENT).await;
    assert_eq!(meter.moved().get("waiting_tasks"), Some(&vec![-1.0]));
    leases.close().await;
    assert_eq!(meter.moved().get("waiting_tasks"), Some(&vec![-1.0]));
}

#[tokio::test(start_paused = true)]
async fn guards_that_end_otherwise() {
    let (store, leases) = setup();
    let ways: [fn(leasehold::Lease); 2] = [drop, |lease| lease.detach().unwrap()];
    for (number, end) in ways.into_iter().enumerate() {
        let lease = leases.acquire(format!("{number}"), TTL).await.unwrap();
        let meter = Meter::new();
        end(lease);
        let ended = these([("leases_held", &[-1.0]), ("lease_hold_seconds", &[0.0])]);
        assert_eq!(meter.moved(), ended);
        sleep(MOMENT).await;
        let released = ("background_releases_total outcome=released", &[1.0][..]);
        let expected = match number {
            0 => these([released]),
            _ => these([]),
        };
        assert_eq!(meter.moved(), expected);
    }

    let lease = leases.acquire("key", TTL).await.unwrap();
    leases.evict("key").await.unwrap();
    let between = leases.acquire("key", TTL).await.unwrap();
    between.release().await.unwrap();
    let meter = Meter::new();
    drop(lease);
    sleep(MOMENT).await;
    let released = "background_releases_total outcome=not_held";
    assert_eq!(meter.moved().get(released), Some(&vec![1.0]));

    let lease = leases.acquire("key", TTL).await.unwrap();
    store.next([Fate::Denied]);
    drop(lease);
    sleep(MOMENT).await;
    let moved = meter.moved();
    let failed = "background_releases_total outcome=error";
    assert_eq!(moved.get(failed), Some(&vec![1.0]), "{moved:?}");
    let errors = "store_errors_total operation=release";
    assert_eq!(moved.get(errors), Some(&vec![1.0]), "{moved:?}");
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_goes_to_the_next_who_waits() {
    let (_, leases) = setup();
    let lease = leases.acquire("key", TTL).await.unwrap();
    let next = tokio::spawn(leases.acquire("key", TTL).into_future());
    sleep(MOMENT).await;
    let meter = Meter::new();
    drop(lease);
    sleep(MOMENT).await;
    let moved = meter.moved();
    let from_memory = "grants_from_memory_total";
    assert_eq!(moved.get(from_memory), Some(&vec![1.0]), "{moved:?}");
    assert_eq!(moved.get("leases_held"), None, "one less, one more");
    drop(next.await.unwrap().unwrap());
}

#[tokio::test(start_paused = true)]
async fn a_grant_that_nobody_waits_for() {
    let (store, leases) = setup();
    let meter = Meter::new();
    store.next([Fate::AnswerLate(MOMENT * 2)]);
    let cancelled = leases.acquire("key", TTL).into_future();
    assert!(timeout(MOMENT, cancelled).await.is_err());
    sleep(MOMENT * 3).await;
    let expected = these([
        ("acquires_total outcome=cancelled mode=exclusive", &[1.0]),
        ("acquire_wait_seconds outcome=cancelled", &[0.01]),
        ("background_releases_total outcome=released", &[1.0]),
    ]);
    assert_eq!(meter.moved(), expected);
}

#[tokio::test(start_paused = true)]
async fn renewals_in_the_background_and_by_hand() {
    let (store, leases) = setup();
    let lease = leases.acquire("key", TTL).keep_alive().await.unwrap();
    let meter = Meter::new();
    sleep(TTL / 3 + MOMENT).await;
    let left = (TTL * 2 / 3 - MARGIN).as_secs_f64();
    let moved = meter.moved();
    assert_eq!(moved["renewals_total outcome=renewed"], [1.0]);
    assert!(
        (moved["renewal_margin_seconds"][0] - left).abs() < 0.002,
        "{moved:?}"
    );
    assert!(moved["renewal_lag_seconds"][0] < 0.002, "{moved:?}");
    assert_eq!(moved["leases_kept"], [1.0]);
    assert_eq!(moved.len(), 4, "{moved:?}");

    lease.renew().await.unwrap();
    let moved = meter.moved();
    assert_eq!(moved["renewals_total outcome=renewed"], [1.0]);
    assert_eq!(moved.len(), 2, "a lag has only what was planned: {moved:?}");

    store.next([Fate::NotSent]);
    sleep(TTL / 3 + MOMENT).await;
    let moved = meter.moved();
    assert_eq!(moved["renewals_total outcome=error"], [1.0]);
    assert_eq!(moved["renewals_total outcome=renewed"], [1.0]);
    assert_eq!(moved["store_errors_total operation=renew"], [1.0]);
    lease.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_loss_that_the_release_of_a_sticky_lease_finds() {
    let (store, leases) = setup();
    let lease = leases.acquire("key", TTL).sticky(TTL).await.unwrap();
    let other = Leases::new(store.memory.clone());
    let waits = tokio::spawn(other.acquire("key", TTL).into_future());
    // By then the lease is to go back as soon as its task has released it. The next look comes later.
    sleep(Duration::from_millis(2_200)).await;
    other.evict("key").await.unwrap();
    let meter = Meter::new();
    let error = lease.release().await.unwrap_err();
    assert!(matches!(error, Error::Lost { .. }), "{error:?}");
    let moved = meter.moved();
    assert_eq!(moved["losses_total reason=taken_over"], [1.0], "{moved:?}");
    waits.abort();
}

/// A store may answer the call, with an error for each renewal, or not at all.
#[tokio::test(start_paused = true)]
async fn a_call_whose_renewals_fail_is_counted_once() {
    for hangs in [false, true] {
        let store = FaultyStore::new(MemoryStore::new());
        let faults = store.faults();
        let leases = Leases::new(store);
        let kept = ["one", "two"].map(|key| leases.acquire(key, TTL).keep_alive());
        let kept = try_join_all(kept.map(IntoFuture::into_future))
            .await
            .unwrap();
        let meter = Meter::new();
        if hangs {
            faults.renewals().hang();
        } else {
            faults.renewals().fail_next(2, Failure::Unreachable);
        }
        sleep(TTL / 3 + TTL / 6 + MOMENT).await;
        let moved = meter.moved();
        assert_eq!(
            moved["store_errors_total operation=renew"],
            [1.0],
            "{moved:?}"
        );
        drop(kept);
    }
}

#[tokio::test(start_paused = true)]
async fn a_busy_runtime_renews_late() {
    let (_, leases) = setup();
    let lease = leases.acquire("key", TTL).keep_alive().await.unwrap();
    // The renewal task gets to know the lease. After that nothing happens for a while.
    sleep(MOMENT).await;
    let meter = Meter::new();
    tokio::time::advance(TTL / 2).await;
    sleep(MOMENT).await;
    let moved = meter.moved();
    let lag = (TTL / 2 - TTL / 3 + MOMENT).as_secs_f64();
    assert!(
        (moved["renewal_lag_seconds"][0] - lag).abs() < 0.002,
        "{moved:?}"
    );
    assert!(lease.is_live());
}

fn loss(reason: &str) -> String {
    format!("losses_total reason={reason}")
}

#[tokio::test(start_paused = true)]
async fn each_loss_counts_once() {
    let (store, leases) = setup();
    let meter = Meter::new();
    let lease = leases.acquire("expired", TTL).await.unwrap();
    sleep(TTL).await;
    assert_eq!(
        meter.moved().get(&loss("expired")),
        None,
        "nobody has asked"
    );
    lease.lost().await;
    lease.renew().await.unwrap_err();
    drop(lease);
    assert_eq!(meter.moved()[&loss("expired")], [1.0]);

    drop(leases.acquire("forgotten", TTL).await.unwrap());
    assert_eq!(meter.moved().get(&loss("expired")), None);
    let forgotten = leases.acquire("forgotten", TTL).await.unwrap();
    sleep(TTL).await;
    drop(forgotten);
    assert_eq!(meter.moved()[&loss("expired")], [1.0]);

    let evicted = leases.acquire("evicted", TTL).keep_alive().await.unwrap();
    leases.evict("evicted").await.unwrap();
    sleep(TTL).await;
    let moved = meter.moved();
    assert_eq!(moved[&loss("taken_over")], [1.0], "{moved:?}");
    assert_eq!(moved["renewals_total outcome=lost"], [1.0], "{moved:?}");
    drop(evicted);

    let released = leases.acquire("released", TTL).await.unwrap();
    leases.evict("released").await.unwrap();
    let other = leases.acquire("released", TTL).await.unwrap();
    meter.moved();
    let late = released.release().await;
    assert!(matches!(
        late,
        Err(Error::Lost {
            reason: LossReason::TakenOver,
            ..
        })
    ));
    assert_eq!(meter.moved()[&loss("taken_over")], [1.0]);
    drop(other);

    let unreachable = leases.acquire("away", TTL).keep_alive().await.unwrap();
    store.next([Fate::NotSent; 100]);
    sleep(TTL * 2).await;
    let moved = meter.moved();
    assert_eq!(
        moved[&loss("unreachable")],
        [1.0],
        "noticed by the renewal task: {moved:?}"
    );
    store.fates_now([]);
    drop(unreachable);

    let acquire = leases.acquire("hung", TTL).keep_alive();
    let hung = acquire.max_hold(TTL * 2).await.unwrap();
    sleep(TTL * 2 + MOMENT).await;
    let moved = meter.moved();
    assert_eq!(
        moved[&loss("held_too_long")],
        [1.0],
        "noticed by the renewal task: {moved:?}"
    );
    drop(hung);

    let closed = leases.acquire("closed", TTL).await.unwrap();
    meter.moved();
    leases.close().await;
    let moved = meter.moved();
    assert_eq!(moved[&loss("closed")], [1.0]);
    assert_eq!(moved.get("leases_held"), None, "the guard is still there");
    drop(closed);
    let ended = these([("leases_held", &[-1.0]), ("lease_hold_seconds", &[0.0])]);
    assert_eq!(meter.moved(), ended);
}

#[tokio::test(start_paused = true)]
async fn what_a_renewal_finds_after_the_release_is_no_loss() {
    let (store, leases) = setup();
    let lease = leases.acquire("key", TTL).keep_alive().await.unwrap();
    let meter = Meter::new();
    store.next([Fate::Late(MOMENT * 2)]);
    sleep(TTL / 3 + MOMENT).await;
    lease.release().await.unwrap();
    sleep(TTL).await;
    let moved = meter.moved();
    assert!(moved.contains_key("renewal_lag_seconds"), "the control");
    let told = |name: &&String| name.starts_with("losses") || name.starts_with("renewals_total");
    assert_eq!(moved.keys().find(told), None, "{moved:?}");
}

#[tokio::test(start_paused = true)]
async fn permits() {
    let (store, leases) = setup();
    let window = Duration::from_secs(1);
    let limiter = leases.limiter("key", 1, window);
    let meter = Meter::new();
    limiter.permit().await.unwrap();
    let expected = these([
        ("limiter_requests_total outcome=granted", &[1.0]),
        ("limiter_wait_seconds outcome=granted", &[0.0]),
    ]);
    assert_eq!(meter.moved(), expected);
    limiter.try_permit().await.map(drop).unwrap();
    limiter.permit().wait_for(MOMENT).await.unwrap_err();
    let moved = meter.moved();
    assert_eq!(moved["limiter_requests_total outcome=full"], [2.0]);
    let cancelled = limiter.permit().into_future();
    assert!(timeout(MOMENT, cancelled).await.is_err());
    let moved = meter.moved();
    assert_eq!(moved["limiter_requests_total outcome=cancelled"], [1.0]);
    assert_eq!(moved["limiter_wait_seconds outcome=cancelled"], [0.01]);
    sleep(window * 2).await;
    store.next([Fate::Denied]);
    limiter.try_permit().await.unwrap_err();
    let expected = these([
        ("limiter_requests_total outcome=error", &[1.0]),
        ("limiter_wait_seconds outcome=error", &[0.0]),
        ("store_errors_total operation=permit", &[1.0]),
    ]);
    assert_eq!(meter.moved(), expected);
}

#[tokio::test(start_paused = true)]
async fn calls_that_are_not_answered_in_time() {
    let store = FlakyStore::new();
    let leases = Leases::new(store.clone());
    let kept = leases.acquire("kept", TTL * 10).shared().await.unwrap();
    let meter = Meter::new();
    let errors = |operation: &str| {
        let moved = meter.moved();
        let counted = moved.get(&format!("store_errors_total operation={operation}"));
        counted.map(|counted| counted[0])
    };
    let silence = [Fate::AnswerLate(LIMIT * 2)];
    store.next(silence);
    kept.renew().await.unwrap();
    assert_eq!(errors("renew"), Some(1.0));
    store.next(silence);
    assert!(kept.upgrade().await.is_ok());
    assert_eq!(errors("convert"), Some(1.0));
    store.next(silence);
    leases.limiter("key", 10, TTL).permit().await.unwrap();
    assert_eq!(errors("permit"), Some(1.0));
    store.next(silence);
    kept.release().await.unwrap();
    assert_eq!(errors("release"), Some(1.0));
    store.next(silence);
    drop(leases.acquire("key", TTL).await.unwrap());
    assert_eq!(errors("acquire"), Some(1.0));
}
