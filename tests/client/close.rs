//! `Leases::close`.

use std::{
    sync::{Arc, Barrier},
    thread,
};

use futures::{FutureExt, future::join_all};
use leasehold::{Attempt, Error, Lease, Leases, LossReason, MemoryStore, Resumed, Store};
use tokio::time::{Instant, sleep, timeout};

use super::{Fate, LIMIT, MOMENT, PATIENCE, TTL, is_free, setup};

#[tokio::test(start_paused = true)]
async fn close_releases_everything_and_waits_for_it() {
    let (store, leases) = setup();
    let mut held = Vec::new();
    for number in 0..200 {
        let acquire = leases.acquire(format!("key {number}"), TTL);
        held.push(acquire.keep_alive().await.unwrap());
    }
    let dropped = leases.acquire("dropped", TTL).await.unwrap();
    let detached = leases.acquire("detached", TTL).await.unwrap();
    let token = held[0].cancellation_token();
    detached.detach().unwrap();
    drop(dropped);
    store.next([Fate::AnswerLate(MOMENT); 50]);
    leases.close().await;
    let mut live = futures::StreamExt::boxed(leases.list(leasehold::Filter::new().live()));
    let left = futures::TryStreamExt::try_next(&mut live).await.unwrap();
    assert_eq!(
        left.map(|lock| lock.key.to_string()).as_deref(),
        Some("detached")
    );
    for lease in held {
        assert!(!lease.is_live());
        let reason = lease.lost().await;
        assert!(matches!(reason, LossReason::Closed), "{reason:?}");
        let late = lease.release().await.unwrap_err();
        assert!(matches!(late, Error::Lost { .. }), "{late:?}");
    }
    token.cancelled().await;
}

#[tokio::test(start_paused = true)]
async fn nothing_is_acquired_after_it() {
    let (store, leases) = setup();
    leases.clone().close().await;
    let attempt = leases.try_acquire("key", TTL).await;
    assert!(matches!(attempt, Err(Error::Closed)), "{attempt:?}");
    let lease = leases.acquire("key", TTL).await;
    assert!(matches!(lease, Err(Error::Closed)), "{lease:?}");
    assert!(store.calls().is_empty());
    // The closed handle can still inspect a key, and be closed again.
    leases.inspect("key").await.unwrap();
    leases.close().await;
}

#[tokio::test(start_paused = true)]
async fn those_who_wait_are_told_at_once() {
    let (store, leases) = setup();
    let holder = leases.acquire("key", TTL * 100).await.unwrap();
    let waiters: Vec<_> = (0..10)
        .map(|_| tokio::spawn(leases.acquire("key", TTL).into_future()))
        .collect();
    sleep(TTL).await;
    let start = Instant::now();
    leases.close().await;
    for outcome in join_all(waiters).await {
        let outcome = outcome.unwrap();
        assert!(matches!(outcome, Err(Error::Closed)), "{outcome:?}");
    }
    assert_eq!(start.elapsed(), std::time::Duration::ZERO);
    assert!(is_free(&store).await);
    drop(holder);
}

/// Programs often stop like this: the other branch of a `select!` has an acquire that is neither polled nor dropped.
#[tokio::test(start_paused = true)]
async fn an_acquire_that_is_not_polled_does_not_hold_it_up() {
    for fate in [Fate::Late(MOMENT), Fate::AnswerLate(MOMENT), Fate::NotSent] {
        let (store, leases) = setup();
        store.next([fate]);
        let mut acquire = leases.acquire("key", TTL).into_future();
        assert!((&mut acquire).now_or_never().is_none());
        timeout(MOMENT * 10, leases.close()).await.unwrap();
        assert!(is_free(&store).await, "{fate:?}");
        let outcome = acquire.await;
        assert!(matches!(outcome, Err(Error::Closed)), "{outcome:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_grant_that_nobody_took_is_released_by_it() {
    let (store, leases) = setup();
    store.next([Fate::AnswerLate(MOMENT)]);
    let mut acquire = leases.acquire("key", TTL).into_future();
    assert!((&mut acquire).now_or_never().is_none());
    sleep(MOMENT * 2).await;
    assert!(!is_free(&store).await, "the control: it is granted");
    leases.close().await;
    assert!(is_free(&store).await);
    let outcome = acquire.await;
    assert!(matches!(outcome, Err(Error::Closed)), "{outcome:?}");
}

#[tokio::test(start_paused = true)]
async fn a_close_that_is_dropped_goes_on() {
    let (store, leases) = setup();
    let lease = leases.acquire("key", TTL * 10).await.unwrap();
    store.next([Fate::NotSent; 3]);
    assert!(leases.close().now_or_never().is_none());
    leases.close().await;
    assert!(is_free(&store).await);
    drop(lease);
}

#[tokio::test(start_paused = true)]
async fn a_store_that_cannot_be_reached_holds_it_up_for_a_ttl_at_the_most() {
    let (store, leases) = setup();
    let lease = leases.acquire("key", TTL).await.unwrap();
    store.next([Fate::NotSent; 1_000]);
    let start = Instant::now();
    leases.close().await;
    assert!(start.elapsed() > TTL / 2 && start.elapsed() < TTL + LIMIT * 2);
    drop(lease);
}

#[tokio::test(start_paused = true)]
async fn calls_that_hang_do_not_hold_it_up_for_ever() {
    let (store, leases) = setup();
    store.next([Fate::Late(TTL * 1_000); 2]);
    assert!(timeout(MOMENT, leases.acquire("other", TTL)).await.is_err());
    assert!(
        timeout(MOMENT, leases.acquire("another", TTL))
            .await
            .is_err()
    );
    let lease = leases.acquire("key", TTL).await.unwrap();
    store.next([Fate::Late(TTL * 1_000)]);
    drop(lease);
    let start = Instant::now();
    leases.close().await;
    assert!(start.elapsed() <= TTL + LIMIT * 2, "{:?}", start.elapsed());
    assert!(is_free(&store).await);
}

/// As with a server that is killed after it has carried out an acquire, and that answers nothing while it restarts. The
/// acquire is dropped during its pause before the retry, or while its second request hangs.
#[tokio::test(start_paused = true)]
async fn the_clean_up_of_an_acquire_that_hangs_holds_it_up_for_the_ttl_and_the_time_of_a_call() {
    for patience in [MOMENT, MOMENT * 5] {
        let (store, leases) = setup();
        let mut fates = vec![Fate::AnswerLost];
        fates.resize(100, Fate::Late(TTL * 1_000));
        store.next(fates);
        let attempt = timeout(patience, leases.try_acquire("key", TTL)).await;
        assert!(attempt.is_err(), "it is given up");
        let start = Instant::now();
        leases.close().await;
        let took = start.elapsed();
        assert!(took <= TTL + LIMIT, "{patience:?}: {took:?}");
    }
}

/// The runtime of the first use exists, but nothing drives it. The runtime of the close carries out its releases.
#[test]
fn it_does_not_need_the_runtime_of_the_first_use() {
    let (store, leases) = setup();
    let mut idle = tokio::runtime::Builder::new_current_thread();
    let idle = idle.enable_all().build().unwrap();
    let lease = idle.block_on(async { leases.acquire("key", TTL).await.unwrap() });
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        timeout(PATIENCE, leases.close()).await.unwrap();
        assert!(is_free(&store).await);
    });
    drop(lease);
}

/// Without a runtime nothing can be released: the leases that are held expire with their ttl, and so do those that were
/// dropped.
#[test]
fn it_ends_where_there_is_no_runtime_any_more() {
    let (store, leases) = setup();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let acquire = |key| runtime.block_on(async { leases.acquire(key, TTL).await.unwrap() });
    let (kept, dropped) = (acquire("key"), acquire("another"));
    drop(runtime);
    drop(dropped);
    let (done, closed) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        futures::executor::block_on(leases.close());
        done.send(()).unwrap();
    });
    closed.recv_timeout(PATIENCE).unwrap();
    assert!(!kept.is_live());
    assert!(!futures::executor::block_on(is_free(&store)));
}

#[tokio::test(start_paused = true)]
async fn it_stops_work_under_a_lease() {
    let (store, leases) = setup();
    let work = leases
        .acquire("key", TTL)
        .with(async |_| -> Result<(), Error> { std::future::pending().await });
    let work = tokio::spawn(work);
    sleep(MOMENT).await;
    leases.close().await;
    assert!(is_free(&store).await);
    let outcome = work.await.unwrap();
    assert!(
        matches!(
            outcome,
            Err(leasehold::WithError::Lost {
                reason: LossReason::Closed,
                ..
            })
        ),
        "{outcome:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn it_releases_a_guard_that_was_forgotten() {
    let (store, leases) = setup();
    let lease = leases.acquire("key", TTL).keep_alive().await.unwrap();
    let token = lease.cancellation_token();
    std::mem::forget(lease);
    leases.close().await;
    assert!(is_free(&store).await);
    timeout(MOMENT, token.cancelled()).await.unwrap();
}

/// The first request of the acquire is never answered, and the second one was granted.
#[tokio::test(start_paused = true)]
async fn a_close_does_not_wait_for_ever_for_a_request_of_a_lease_that_was_detached() {
    let (store, leases) = setup();
    store.next([Fate::LateWithoutAnswer(MOMENT)]);
    let lease = leases.acquire("key", TTL).await.unwrap();
    lease.detach().unwrap();
    let limit = LIMIT + TTL + MOMENT;
    timeout(limit, leases.close()).await.expect("a close hangs");
}

/// The runtime of a caller that polls its release ends during the close, and that of the first use goes on with it.
#[test]
fn it_waits_for_a_release_whose_caller_ends_meanwhile() {
    let (store, leases) = setup();
    let lives = tokio::runtime::Runtime::new().unwrap();
    let lease = lives.block_on(async { leases.acquire("key", TTL).await.unwrap() });
    let ends = tokio::runtime::Runtime::new().unwrap();
    store.next([Fate::Late(PATIENCE)]);
    store.calls();
    ends.spawn(lease.release());
    while !store.calls().contains(&"release") {
        std::thread::sleep(MOMENT);
    }
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        let closing = leases.clone();
        let closed = tokio::spawn(async move { closing.close().await });
        sleep(10 * MOMENT).await;
        ends.shutdown_background();
        timeout(PATIENCE, closed).await.unwrap().unwrap();
        assert!(is_free(&store).await);
    });
}

/// A lease that the close is about to release: the store gets the release, and does not carry it out yet.
async fn while_closing<T>(sticky: bool, give_away: impl AsyncFnOnce(Lease, &Leases) -> T) -> T {
    let (store, leases) = setup();
    let acquire = leases.acquire("key", TTL);
    let acquire = if sticky { acquire.sticky(TTL) } else { acquire };
    let lease = acquire.await.unwrap();
    store.gates.close(0);
    let closing = leases.clone();
    let closing = tokio::spawn(async move { closing.close().await });
    store.gates.reached().await;
    assert!(!lease.is_live());
    let second = Leases::new(store.memory.clone());
    let came_of_it = give_away(lease, &second).await;
    store.gates.open();
    closing.await.unwrap();
    let third = second.try_acquire("key", TTL).await.unwrap();
    assert!(
        matches!(third, Attempt::Acquired(_)),
        "the close released it"
    );
    came_of_it
}

#[tokio::test(start_paused = true)]
async fn the_ticket_of_a_lease_that_a_close_releases_is_that_of_no_lease() {
    for sticky in [false, true] {
        let resumed = while_closing(sticky, async |lease, second| {
            second.resume(&lease.into_ticket()).await.unwrap()
        });
        let resumed = resumed.await;
        assert!(matches!(resumed, Resumed::Gone(_)), "{resumed:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn nobody_is_told_that_a_lease_is_detached_that_a_close_releases() {
    for sticky in [false, true] {
        let detached = while_closing(sticky, async |lease, _| lease.detach()).await;
        let Err(Error::Lost { reason, .. }) = detached else {
            panic!("{detached:?}");
        };
        assert!(matches!(reason, LossReason::Closed), "{reason:?}");
    }
}

/// The close ends the lease while its upgrade is under way.
#[tokio::test(start_paused = true)]
async fn an_upgrade_that_is_answered_during_a_close_is_that_of_a_lost_lease() {
    let (store, leases) = setup();
    let lease = leases.acquire("key", TTL).shared().await.unwrap();
    store.next([Fate::AnswerLate(MOMENT)]);
    let close = async {
        sleep(MOMENT / 2).await;
        leases.close().await;
    };
    let (upgraded, ()) = tokio::join!(lease.upgrade(), close);
    assert!(matches!(upgraded, Err(Error::Lost { .. })), "{upgraded:?}");
}

/// One thread closes the handle, and another one gives the lease away at the same moment.
#[test]
fn of_a_close_and_a_ticket_at_the_same_moment_only_one_counts() {
    const ROUNDS: usize = 2_000;
    let runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = { runtime }.worker_threads(2).enable_all().build().unwrap();
    for sticky in [false, true] {
        let (mut live, mut without_lease) = (0, 0);
        for round in 0..ROUNDS {
            let memory = MemoryStore::new();
            let (leases, other) = (Leases::new(memory.clone()), Leases::new(memory.clone()));
            let acquire = leases.acquire("key", TTL);
            let acquire = if sticky { acquire.sticky(TTL) } else { acquire };
            let lease = runtime.block_on(acquire.into_future()).unwrap();
            let barrier = Arc::new(Barrier::new(2));
            let (begin, handle) = (barrier.clone(), runtime.handle().clone());
            let closing = thread::spawn(move || {
                begin.wait();
                handle.block_on(leases.close());
            });
            barrier.wait();
            // The moments differ, so that each step of the close is met.
            for _ in 0..round % 400 {
                std::hint::spin_loop();
            }
            let ticket = lease.into_ticket();
            let resumed = runtime
                .block_on(other.resume(&ticket).into_future())
                .unwrap();
            closing.join().unwrap();
            let Resumed::Live(lease) = resumed else {
                continue;
            };
            live += 1;
            let state = runtime.block_on(memory.inspect(lease.key())).unwrap();
            let holders = state.map(|state| state.holders).unwrap_or_default();
            without_lease += usize::from(holders.iter().all(|it| it.lease != lease.id()));
        }
        println!("sticky {sticky}: {live} of {ROUNDS} are live");
        assert_eq!(without_lease, 0, "of {live} live leases, sticky: {sticky}");
    }
}
