//! The client side under paused time: what retries, drops, delays and dead runtimes leave behind.

mod flaky;

use std::time::Duration;

use flaky::{Fate, FlakyStore};
use futures::{FutureExt, future::poll_immediate};
use leasehold::{Attempt, Error, Key, Leases, LossReason, MemoryStore, Store};
use tokio::{
    runtime::Runtime,
    time::{Instant, sleep, timeout},
};

const TTL: Duration = Duration::from_secs(30);
const MARGIN: Duration = Duration::from_millis(100);
/// The time limit of a call, unless a test sets another.
const LIMIT: Duration = Duration::from_secs(10);
const MOMENT: Duration = Duration::from_millis(10);

fn setup() -> (FlakyStore, Leases) {
    let store = FlakyStore::new();
    (store.clone(), Leases::new(store))
}

async fn is_free(store: &FlakyStore) -> bool {
    let state = store.memory.inspect(&Key::new("key").unwrap()).await;
    state.unwrap().is_none_or(|state| state.is_free())
}

/// Waits until the key is free, and says how long that took.
async fn until_free(store: &FlakyStore) -> Duration {
    let start = Instant::now();
    while !is_free(store).await {
        assert!(start.elapsed() < TTL * 2, "the key stays held");
        sleep(Duration::from_millis(1)).await;
    }
    start.elapsed()
}

#[tokio::test(start_paused = true)]
async fn an_acquire_whose_answer_was_lost_is_found_again() {
    let (store, leases) = setup();
    store.next([Fate::AnswerLost, Fate::NotSent]);
    let lease = leases.acquire("key", TTL).await.unwrap();
    assert_eq!(store.calls(), ["acquire"; 3]);
    let state = leases.inspect("key").await.unwrap().unwrap();
    assert_eq!(state.holders.len(), 1);
    assert_eq!(state.holders[0].lease, lease.id());
    assert_eq!(state.fence, lease.fence());
    // It counts from the grant, which the first request got, and not from the retry.
    let left = (state.holders[0].expires_at - state.now).to_std().unwrap();
    assert_eq!(lease.remaining(), left - MARGIN);
}

#[tokio::test(start_paused = true)]
async fn an_acquire_that_is_given_up_leaves_no_lock() {
    let (store, leases) = setup();
    store.next([Fate::AnswerLost; 3]);
    let error = leases.try_acquire("key", TTL).await.unwrap_err();
    assert!(matches!(error, Error::Interrupted { .. }), "{error:?}");
    assert!(!is_free(&store).await, "the control: it was granted");
    assert!(until_free(&store).await < MOMENT);
}

#[tokio::test(start_paused = true)]
async fn an_error_that_no_retry_mends_is_not_retried() {
    let (store, leases) = setup();
    store.next([Fate::Denied]);
    let error = leases.acquire("key", TTL).await.unwrap_err();
    assert!(matches!(error, Error::Denied { .. }), "{error:?}");
    sleep(TTL).await;
    assert_eq!(store.calls(), ["acquire"]);
}

#[tokio::test(start_paused = true)]
async fn a_request_that_arrives_after_it_was_given_up_leaves_no_lock() {
    let (store, leases) = setup();
    store.next([Fate::Late(LIMIT + MOMENT), Fate::NotSent, Fate::NotSent]);
    let start = Instant::now();
    let error = leases.try_acquire("key", TTL).await.unwrap_err();
    assert!(matches!(error, Error::Unreachable { .. }), "{error:?}");
    assert!(start.elapsed() >= LIMIT);
    // Long enough for the late request to have arrived, and to have been released.
    sleep(LIMIT).await;
    assert!(is_free(&store).await);
    assert!(store.calls().contains(&"release"));
}

#[tokio::test(start_paused = true)]
async fn a_request_that_arrives_long_after_it_was_given_up_leaves_no_lock() {
    let (store, leases) = setup();
    let long = LIMIT * 5;
    store.next([Fate::Late(long), Fate::NotSent, Fate::NotSent]);
    leases.try_acquire("key", LIMIT * 50).await.unwrap_err();
    sleep(long).await;
    assert!(is_free(&store).await);
    assert!(store.calls().contains(&"release"));
}

#[tokio::test(start_paused = true)]
async fn a_request_that_arrives_after_the_release_of_its_lease_leaves_no_lock() {
    let (store, leases) = setup();
    let ttl = LIMIT * 50;
    // The first try runs out of time, the second is granted, and then the first arrives.
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
    leases.acquire("key", LIMIT * 50).await.unwrap().detach();
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
    // 3,000 s at up to 10 s each.
    let calls = store.calls().len();
    assert!((300..700).contains(&calls), "{calls}");
}

#[tokio::test(start_paused = true)]
async fn a_waiter_outlives_a_time_of_errors() {
    let (store, leases) = setup();
    let wait = TTL * 2;
    let holder = leases.acquire("key", TTL * 10).await.unwrap();
    let waiter = tokio::spawn(leases.acquire("key", TTL).wait_for(wait).into_future());
    sleep(TTL / 3).await;
    store.next([Fate::NotSent; 20]);
    sleep(TTL).await;
    holder.release().await.unwrap();
    waiter.await.unwrap().unwrap().release().await.unwrap();

    // One without a bound gives up when there is nothing but errors.
    store.next([Fate::NotSent; 1_000]);
    let start = Instant::now();
    let error = leases.acquire("key", TTL).await.unwrap_err();
    assert!(matches!(error, Error::Unreachable { .. }), "{error:?}");
    assert!(start.elapsed() >= LIMIT && start.elapsed() < LIMIT * 2);
}

#[tokio::test(start_paused = true)]
async fn a_waiter_looks_a_last_time_when_its_time_is_over() {
    let (_, leases) = setup();
    let holder = leases.acquire("key", TTL * 10).await.unwrap();
    let wait = Duration::from_secs(5);
    let waiter = tokio::spawn(leases.acquire("key", TTL).wait_for(wait).into_future());
    sleep(wait - MOMENT).await;
    holder.release().await.unwrap();
    assert!(waiter.await.unwrap().is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_grant_that_is_answered_after_its_ttl_is_none() {
    let store = FlakyStore::new();
    let leases = Leases::builder(store.clone()).call_timeout(TTL * 4).build();
    store.next([Fate::AnswerLate(TTL - MARGIN)]);
    let error = leases.try_acquire("key", TTL).await.unwrap_err();
    assert!(matches!(error, Error::TimedOut { .. }), "{error:?}");
    assert!(error.is_ambiguous());
    assert!(until_free(&store).await < MOMENT);
}

#[tokio::test(start_paused = true)]
async fn an_acquire_dropped_while_it_is_under_way_leaves_no_lock() {
    for fate in [Fate::Late(TTL / 2), Fate::AnswerLate(TTL / 2)] {
        let (store, leases) = setup();
        store.next([fate]);
        assert!(timeout(MOMENT, leases.acquire("key", TTL)).await.is_err());
        sleep(TTL / 2 + MOMENT).await;
        assert!(is_free(&store).await, "{fate:?}");
        assert_eq!(store.calls(), ["acquire", "release"], "{fate:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_panic_in_a_store_is_an_error_and_leaves_no_lock() {
    let (store, leases) = setup();
    store.next([Fate::Panic; 3]);
    let error = leases.try_acquire("key", TTL).await.unwrap_err();
    assert!(matches!(error, Error::Interrupted { .. }), "{error:?}");
    until_free(&store).await;
    drop(leases.acquire("key", TTL).await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn a_waiter_takes_over_at_the_very_expiry() {
    let (_, leases) = setup();
    leases.acquire("key", TTL).await.unwrap().detach();
    let start = Instant::now();
    let lease = leases.acquire("key", TTL).await.unwrap();
    let waited = start.elapsed();
    assert!(waited >= TTL && waited < TTL + MOMENT, "{waited:?}");
    lease.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_waiter_that_is_dropped_leaves_no_lock_though_its_last_request_is_late() {
    let (store, leases) = setup();
    let holder = leases.acquire("key", TTL).await.unwrap();
    let wait = Duration::from_secs(1);
    let waiter = tokio::spawn(timeout(wait, leases.acquire("key", TTL).into_future()));
    sleep(wait / 2).await;
    // What it asks from now on arrives after it has gone, and finds the key free.
    store.next([Fate::Late(wait)]);
    assert!(waiter.await.unwrap().is_err());
    holder.release().await.unwrap();
    sleep(wait * 2).await;
    assert!(is_free(&store).await);
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
    assert!(until_free(&store).await < MOMENT);
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
    // Carried out in time, and answered too late.
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
    // The second time it does not even ask.
    assert_eq!(store.calls(), ["acquire", "renew"]);
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

#[test]
fn a_lease_can_be_dropped_without_a_runtime() {
    let leases = Leases::new(MemoryStore::new());
    let lease = Runtime::new()
        .unwrap()
        .block_on(async { leases.acquire("key", TTL).await.unwrap() });
    drop(lease);
    // The next runtime gets a keeper of its own.
    let runtime = Runtime::new().unwrap();
    runtime.block_on(async {
        let held = leases.try_acquire("key", TTL).await.unwrap();
        assert!(matches!(held, Attempt::Held(_)), "nobody could release it");
        drop(leases.acquire("other", TTL).await.unwrap());
        let next = leases.acquire("other", TTL).wait_for(TTL).await;
        drop(next.unwrap());
    });
}

#[test]
fn a_lease_can_be_dropped_in_a_runtime_that_shuts_down() {
    let leases = Leases::new(MemoryStore::new());
    let runtime = Runtime::new().unwrap();
    let handle = leases.clone();
    let (dropped, was_dropped) = std::sync::mpsc::channel();
    runtime.block_on(async move {
        let lease = handle.acquire("key", TTL).await.unwrap();
        tokio::spawn(async move {
            // Dropped in the opposite order: it tells that the drop of the lease came through.
            let _told = Told(dropped);
            let _lease = lease;
            std::future::pending::<()>().await;
        });
        tokio::task::yield_now().await;
    });
    runtime.shutdown_timeout(Duration::from_secs(10));
    assert_eq!(was_dropped.recv(), Ok(false), "it panicked");
}

/// Tells when it is dropped whether that is by a panic.
struct Told(std::sync::mpsc::Sender<bool>);

impl Drop for Told {
    fn drop(&mut self) {
        let _ = self.0.send(std::thread::panicking());
    }
}

#[tokio::test]
async fn a_lease_can_be_dropped_by_a_panic() {
    let (store, leases) = setup();
    let lease = leases.acquire("key", TTL).await.unwrap();
    let ended = tokio::spawn(async move {
        let _lease = lease;
        panic!("the work went wrong");
    });
    assert!(ended.await.is_err());
    until_free(&store).await;
}

#[tokio::test(start_paused = true)]
async fn many_leases_are_dropped_at_once() {
    let store = MemoryStore::new();
    let leases = Leases::new(store.clone());
    let mut held = Vec::new();
    for number in 0..1_000 {
        held.push(leases.acquire(format!("key {number}"), TTL).await.unwrap());
    }
    drop(held);
    for number in 0..1_000 {
        let key = format!("key {number}");
        let next = leases.acquire(&key, TTL).wait_for(MOMENT).await;
        drop(next.unwrap());
    }
}

#[tokio::test(start_paused = true)]
async fn an_unawaited_or_unpolled_acquire_does_nothing() {
    let (store, leases) = setup();
    drop(leases.acquire("key", TTL));
    drop(leases.try_acquire("key", TTL).into_future());
    let never_polled = leases.acquire("key", TTL).into_future().fuse();
    drop(never_polled);
    sleep(TTL).await;
    assert!(store.calls().is_empty());
    let mut once = leases.acquire("key", TTL).into_future();
    assert!(poll_immediate(&mut once).await.is_none());
    drop(once);
    until_free(&store).await;
}

#[test]
fn guards_handles_and_futures_cross_threads() {
    fn crosses<T: Send + Sync + 'static>(_: &T) {}
    fn is_sent<T: Send + 'static>(_: T) {}
    let leases = Leases::new(MemoryStore::new());
    crosses(&leases);
    is_sent(leases.acquire("key", TTL).into_future());
    is_sent(leases.try_acquire("key", TTL).into_future());
    fn lease<T: Send + Sync + 'static>() {}
    lease::<leasehold::Lease>();
    lease::<leasehold::Held>();
    lease::<Error>();
}
