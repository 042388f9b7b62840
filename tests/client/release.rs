//! Releases that a caller waits for, and releases in the background.

use futures::FutureExt;
use leasehold::{Error, LossReason};
use tokio::time::{sleep, timeout};

use super::{Fate, LIMIT, MOMENT, TTL, is_free, setup, until_free};

#[tokio::test(start_paused = true)]
async fn a_request_that_arrives_after_the_release_of_its_lease_leaves_no_lock() {
    let (store, leases) = setup();
    let ttl = LIMIT * 50;
    // The first request times out, the second is granted, and then the first one arrives.
    store.next([Fate::Late(LIMIT * 2)]);
    let lease = leases.acquire("key", ttl).await.unwrap();
    assert_eq!(store.calls(), ["acquire"; 2]);
    lease.release().await.unwrap();
    sleep(LIMIT * 2).await;
    assert!(is_free(&store).await);
    assert_eq!(store.calls(), ["release"; 2]);
}

#[tokio::test(start_paused = true)]
async fn a_detached_lease_is_not_released_by_its_late_requests() {
    let (store, leases) = setup();
    store.next([Fate::Late(LIMIT * 2)]);
    leases
        .acquire("key", LIMIT * 50)
        .await
        .unwrap()
        .detach()
        .unwrap();
    sleep(LIMIT * 3).await;
    assert!(!is_free(&store).await);
}

#[tokio::test(start_paused = true)]
async fn calls_that_hang_do_not_keep_others_from_being_released() {
    let (store, leases) = setup();
    let other = leases.acquire("key", TTL).await.unwrap();
    store.next([Fate::Late(TTL * 1_000); 200]);
    for number in 0..200 {
        let hanging = leases.acquire(format!("key {number}"), TTL);
        assert!(timeout(MOMENT, hanging).await.is_err());
    }
    drop(other);
    assert!(until_free(&store).await < MOMENT);
}

#[tokio::test(start_paused = true)]
async fn a_release_that_is_refused_for_good_is_given_up() {
    let (store, leases) = setup();
    drop(leases.acquire("key", TTL * 100).await.unwrap());
    store.calls();
    store.next([Fate::Denied; 100]);
    sleep(TTL * 50).await;
    assert_eq!(store.calls(), ["release"]);
}

#[tokio::test(start_paused = true)]
async fn a_release_in_the_background_is_not_repeated_all_the_time() {
    let (store, leases) = setup();
    drop(leases.acquire("key", TTL * 100).await.unwrap());
    store.calls();
    store.next(std::iter::repeat_n(Fate::NotSent, 10_000));
    sleep(TTL * 100).await;
    // In 3,000 s the release is retried, with pauses of up to 10 s.
    let calls = store.calls().len();
    assert!((300..700).contains(&calls), "{calls}");
}

#[tokio::test(start_paused = true)]
async fn a_release_whose_answer_was_lost_is_a_release() {
    let (store, leases) = setup();
    let lease = leases.acquire("key", TTL).await.unwrap();
    store.next([Fate::AnswerLost, Fate::NotSent]);
    lease.release().await.unwrap();
    assert!(is_free(&store).await);
}

#[tokio::test(start_paused = true)]
async fn a_release_that_fails_goes_on_in_the_background() {
    let (store, leases) = setup();
    let lease = leases.acquire("key", TTL).await.unwrap();
    store.next([Fate::NotSent; 6]);
    let error = lease.release().await.unwrap_err();
    assert!(matches!(error, Error::Unreachable { .. }), "{error:?}");
    let waited = until_free(&store).await;
    assert!(waited < TTL / 2, "it took {waited:?}");
}

#[tokio::test(start_paused = true)]
async fn a_release_that_is_dropped_goes_on_in_the_background() {
    let (store, leases) = setup();
    let lease = leases.acquire("key", TTL).await.unwrap();
    store.next([Fate::Late(TTL)]);
    assert!(timeout(MOMENT, lease.release()).await.is_err());
    assert!(until_free(&store).await < MOMENT * 5);
}

#[tokio::test(start_paused = true)]
async fn a_lost_lease_is_reported_though_an_answer_to_its_release_was_lost() {
    let (store, leases) = setup();
    let lease = leases.acquire("key", TTL).await.unwrap();
    sleep(TTL).await;
    let next = leases.acquire("key", TTL).await.unwrap();
    store.next([Fate::AnswerLost]);
    let late = lease.release().await.unwrap_err();
    assert!(matches!(late, Error::Lost { .. }), "{late:?}");
    next.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_release_reports_that_the_lease_was_lost() {
    let (_, leases) = setup();
    let lease = leases.acquire("key", TTL).await.unwrap();
    sleep(TTL).await;
    let next = leases.acquire("key", TTL).await.unwrap();
    let late = lease.release().await.unwrap_err();
    assert!(
        matches!(
            late,
            Error::Lost {
                reason: LossReason::TakenOver,
                ..
            }
        ),
        "{late:?}"
    );
    next.release().await.unwrap();
}

/// An earlier request of the acquire may have left a grant behind. That one is released after the lease, and not in its
/// place.
#[tokio::test(start_paused = true)]
async fn a_lease_that_was_asked_for_twice_is_released_by_its_own_release() {
    for fate in [Fate::AnswerLost, Fate::AnswerLate(LIMIT + MOMENT)] {
        let (store, leases) = setup();
        store.next([fate]);
        let lease = leases.acquire("key", TTL).await.unwrap();
        sleep(LIMIT).await;
        lease.release().await.unwrap();
        assert!(is_free(&store).await);
    }
}

/// The connection breaks while the request is on its way. The lease is granted to the second request, and to the first
/// one after the release.
#[tokio::test(start_paused = true)]
async fn a_request_that_was_cut_and_arrives_after_the_release_leaves_no_lock() {
    let (store, leases) = setup();
    store.next([Fate::CutAndLate(LIMIT / 3)]);
    leases
        .acquire("key", TTL * 10)
        .await
        .unwrap()
        .release()
        .await
        .unwrap();
    assert!(is_free(&store).await);
    sleep(LIMIT / 3).await;
    assert!(until_free(&store).await < LIMIT);
    sleep(LIMIT).await;
    assert!(is_free(&store).await);
}

/// The clean-up after earlier requests must not take the answer from the release itself.
#[tokio::test(start_paused = true)]
async fn a_release_after_a_retried_acquire_is_no_loss() {
    let late = Fate::AnswerLate(LIMIT + MOMENT * 5);
    for fates in [
        vec![Fate::AnswerLost],
        vec![Fate::NotSent, Fate::AnswerLost],
        vec![late],
    ] {
        let (store, leases) = setup();
        store.next(fates.clone());
        let lease = leases.acquire("key", TTL).await.unwrap();
        sleep(MOMENT * 10).await;
        lease
            .release()
            .await
            .unwrap_or_else(|error| panic!("{fates:?}: {error}"));
        store.next(fates.clone());
        let work = leases
            .acquire("key", TTL)
            .with(async |_| Ok::<_, Error>(()));
        work.await
            .unwrap_or_else(|error| panic!("{fates:?}: {error}"));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nor_on_several_threads() {
    for _ in 0..50 {
        let (store, leases) = setup();
        store.next([Fate::AnswerLost]);
        leases
            .acquire("key", TTL)
            .await
            .unwrap()
            .release()
            .await
            .unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn releases_that_hang_do_not_keep_others_from_being_released() {
    let (store, leases) = setup();
    let mut hanging = Vec::new();
    for number in 0..300 {
        hanging.push(leases.acquire(format!("key {number}"), TTL).await.unwrap());
    }
    let other = leases.acquire("key", TTL).await.unwrap();
    store.next([Fate::Late(TTL * 100); 300]);
    drop(hanging);
    sleep(MOMENT).await;
    drop(other);
    assert!(until_free(&store).await < LIMIT);
}

#[test]
fn a_release_outside_a_runtime_goes_on_in_the_background() {
    let (store, leases) = setup();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let lease = runtime.block_on(async { leases.acquire("key", TTL).await.unwrap() });
    let error = futures::executor::block_on(lease.release()).unwrap_err();
    assert!(matches!(error, Error::NoRuntime), "{error:?}");
    runtime.block_on(until_free(&store));
}

/// An earlier request of the acquire is answered while the release is under way.
#[tokio::test(start_paused = true)]
async fn a_release_is_not_overtaken_by_one_for_an_earlier_request() {
    let (store, leases) = setup();
    store.next([Fate::AnswerLate(LIMIT + MOMENT * 2)]);
    let lease = leases.acquire("key", TTL).await.unwrap();
    sleep(MOMENT).await;
    store.next([Fate::Late(MOMENT * 5)]);
    lease.release().await.unwrap();
    sleep(LIMIT).await;
    assert!(is_free(&store).await);
}

/// The future of the release is polled once, and then kept.
#[tokio::test(start_paused = true)]
async fn a_release_that_nobody_polls_goes_on_after_a_moment() {
    let (store, leases) = setup();
    for fate in [Fate::Late(MOMENT), Fate::AnswerLate(MOMENT), Fate::NotSent] {
        let lease = leases.acquire("key", TTL * 100).await.unwrap();
        store.next([fate]);
        let mut release = Box::pin(lease.release());
        assert!((&mut release).now_or_never().is_none());
        let start = tokio::time::Instant::now();
        let next = leases.acquire("key", TTL).await.unwrap();
        assert!(
            start.elapsed() < TTL / 10,
            "{fate:?}: {:?}",
            start.elapsed()
        );
        next.release().await.unwrap();
        release.await.unwrap();
    }
}

/// A caller waits for no retry that begins after the ttl, because the key is free by then.
#[tokio::test(start_paused = true)]
async fn a_release_is_not_tried_again_after_the_ttl() {
    let (store, leases) = setup();
    let lease = leases.acquire("key", LIMIT / 2).await.unwrap();
    store.calls();
    store.next([Fate::Late(TTL * 9); 9]);
    let late = lease.release().await;
    assert!(matches!(late, Err(Error::TimedOut { .. })), "{late:?}");
    sleep(TTL).await;
    assert_eq!(store.calls(), ["release"]);
}

/// The acquire is carried out late. A release is answered late too, when the store cannot be reached any more: that answer
/// says nothing of the time after it was carried out.
#[tokio::test(start_paused = true)]
async fn a_late_answer_ends_no_release_that_is_still_due() {
    let (store, leases) = setup();
    store.next([Fate::CutAndLate(LIMIT / 10)]);
    let lease = leases.acquire("key", LIMIT * 50).await.unwrap();
    // The first release is carried out before the acquire, and answered when the call timeout is over.
    let late = [Fate::AnswerLate(LIMIT + LIMIT / 2)];
    store.fates_now(late.into_iter().chain([Fate::NotSent; 1_000]));
    let outcome = lease.release().await;
    assert!(outcome.is_err(), "{outcome:?}");
    sleep(LIMIT * 2).await;
    assert!(!is_free(&store).await);
    // The store can be reached again.
    store.fates_now([]);
    until_free(&store).await;
}
