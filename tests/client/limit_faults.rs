//! Permits of a limiter when callers are dropped, answers are lost and runtimes stand still.

use std::{
    collections::BTreeMap,
    future::IntoFuture,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use futures::{FutureExt, future::join_all};
use leasehold::{Error, Leases, PermitAttempt};
use tokio::{
    runtime::Runtime,
    task::yield_now,
    time::{Instant, sleep, timeout},
};

use super::{
    Fate, FlakyStore, LIMIT, MOMENT, PATIENCE,
    limits::{SECOND, a_new_window, is_full, limited, wait},
    setup,
};

/// How many permits are left in a window of ten.
async fn left(store: &FlakyStore) -> u32 {
    let elsewhere = Leases::new(store.memory.clone()).limiter("key", 10, SECOND);
    let mut left = 0;
    while let PermitAttempt::Granted(permit) = elsewhere.try_permit().await.unwrap() {
        left += permit.permits();
    }
    left
}

#[tokio::test(start_paused = true)]
async fn who_gives_up_leaves_the_queue_and_its_permit_to_the_next() {
    for gate in [0, 1] {
        let (store, _, limiter) = limited();
        a_new_window(&limiter).await;
        store.gates.close(gate);
        let first = wait(&limiter, 10).await;
        store.gates.reached().await;
        let second = wait(&limiter, 10).await;
        first.abort();
        yield_now().await;
        store.gates.open();
        let start = Instant::now();
        second.await.unwrap().unwrap();
        assert!(start.elapsed() < MOMENT, "gate {gate}");
    }
}

/// A call that is dropped at any point, without a waiter behind it, costs no more than its own permit.
#[tokio::test(start_paused = true)]
async fn a_dropped_call_costs_its_permit_at_the_most() {
    for gate in [0, 1] {
        let (store, _, limiter) = limited();
        a_new_window(&limiter).await;
        store.gates.close(gate);
        let call = wait(&limiter, 1).await;
        store.gates.reached().await;
        call.abort();
        store.gates.open();
        sleep(MOMENT).await;
        assert!((9..=10).contains(&left(&store).await), "gate {gate}");
    }
    let (store, _, limiter) = limited();
    a_new_window(&limiter).await;
    drop(limiter.permit());
    assert_eq!(left(&store).await, 10);
}

/// A request whose answer is lost is retried with the same permit id.
#[tokio::test(start_paused = true)]
async fn a_lost_answer_costs_nothing_and_is_given_once() {
    for fate in [
        Fate::NotSent,
        Fate::AnswerLost,
        Fate::AnswerCut,
        Fate::Panic,
        Fate::Late(2 * SECOND),
        Fate::AnswerLate(3 * SECOND / 2),
    ] {
        let (store, _, limiter) = limited();
        a_new_window(&limiter).await;
        store.next([fate]);
        let callers = join_all((0..5).map(|_| limiter.permit().into_future()));
        let granted = callers.await;
        let at: Vec<_> = granted
            .iter()
            .map(|permit| permit.as_ref().unwrap().granted_at())
            .collect();
        assert_eq!(at.len(), 5);
        // These are permits of the window in which they were granted. With a late answer the window may be over.
        if left(&store).await != 5 {
            let turned = matches!(fate, Fate::Late(_) | Fate::AnswerLate(_));
            assert!(turned, "{fate:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn errors_are_retried_for_as_long_as_the_caller_waits() {
    let (store, _, limiter) = limited();
    store.next([Fate::NotSent; 2]);
    assert!(matches!(
        limiter.try_permit().await,
        Ok(PermitAttempt::Granted(_))
    ));
    store.next([Fate::NotSent; 3]);
    let refused = limiter.try_permit().await;
    assert!(
        matches!(refused, Err(Error::Unreachable { .. })),
        "{refused:?}"
    );

    store.next([Fate::NotSent; 6]);
    limiter.permit().await.unwrap();
    store.next([Fate::NotSent; 100]);
    let start = Instant::now();
    let refused = limiter.permit().await;
    assert!(
        matches!(refused, Err(Error::Unreachable { .. })),
        "{refused:?}"
    );
    assert!((LIMIT..2 * LIMIT).contains(&start.elapsed()));
    let start = Instant::now();
    let refused = limiter.permit().wait_for(3 * LIMIT).await;
    assert!(
        matches!(refused, Err(Error::Unreachable { .. })),
        "{refused:?}"
    );
    assert_eq!(start.elapsed(), 3 * LIMIT);

    let (store, _, limiter) = limited();
    store.next([Fate::Denied]);
    let refused = limiter.permit().await;
    assert!(matches!(refused, Err(Error::Denied { .. })), "{refused:?}");
    assert_eq!(store.calls(), ["permit"]);
}

/// A request that hangs is sent again after the window, and not endlessly.
#[tokio::test(start_paused = true)]
async fn a_call_that_hangs_holds_nobody_up_for_long() {
    let (store, leases, limiter) = limited();
    store.next([Fate::Late(1_000 * SECOND)]);
    let start = Instant::now();
    limiter.permit().await.unwrap();
    assert!(start.elapsed() < 6 * SECOND);
    // A close does not wait for that request either.
    timeout(MOMENT, leases.close()).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_close_sends_away_who_waits() {
    let (_, leases, limiter) = limited();
    limiter.permits(10).await.unwrap();
    let waiter = wait(&limiter, 10).await;
    leases.close().await;
    assert!(matches!(waiter.await.unwrap(), Err(Error::Closed)));
    assert!(matches!(limiter.try_permit().await, Err(Error::Closed)));
}

/// Callers on several runtimes do not wait for each other: another runtime than that of the first use stands still, or has
/// ended, with a request under way.
#[test]
fn a_runtime_that_stands_still_holds_up_no_other() {
    let store = FlakyStore::new();
    let leases = Leases::new(store.clone());
    let limiter = leases.limiter("key", 10, Duration::from_millis(50));
    let current = || {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        builder.enable_all().build().unwrap()
    };
    let (still, gone, here) = (current(), current(), Runtime::new().unwrap());
    here.block_on(limiter.permit().into_future()).unwrap();
    for runtime in [&still, &gone] {
        runtime.block_on(async {
            store.gates.close(0);
            let call = limiter.permit().into_future();
            assert!(timeout(MOMENT, call).await.is_err());
            store.gates.open();
        });
    }
    drop(gone);
    here.block_on(async {
        for _ in 0..20 {
            let call = limiter.permit().into_future();
            timeout(PATIENCE, call).await.unwrap().unwrap();
        }
    });
    drop(still);
}

/// For one process the way to the server and back is longer than for the other. It gets its share all the same.
#[tokio::test(start_paused = true)]
async fn a_far_process_gets_its_share() {
    let (store, far) = setup();
    store.next(vec![Fate::AnswerLate(6 * MOMENT); 10_000]);
    let near = Leases::new(store.memory.clone());
    let served = [near, far].map(|leases| {
        let served = Arc::new(AtomicUsize::new(0));
        for _ in 0..20 {
            let (limiter, served) = (leases.limiter("key", 10, SECOND), served.clone());
            tokio::spawn(async move {
                while limiter.permit().await.is_ok() {
                    served.fetch_add(1, Relaxed);
                }
            });
        }
        served
    });
    sleep(300 * SECOND).await;
    let [near, far] = served.map(|served| served.load(Relaxed));
    println!("{near} near and {far} far");
    assert!((2_990..=3_010).contains(&(near + far)));
    assert!(near.min(far) > 1_000, "{near} near and {far} far");
}

/// If a caller gave up before the answer came, it would lose a permit each time.
#[tokio::test(start_paused = true)]
async fn the_answer_that_is_on_its_way_is_waited_for() {
    let (store, _, limiter) = limited();
    a_new_window(&limiter).await;
    store.next([Fate::AnswerLate(3 * MOMENT)]);
    let start = Instant::now();
    limiter.permit().wait_for(MOMENT).await.unwrap();
    assert!(start.elapsed() < 4 * MOMENT);
    store.next([Fate::Late(100 * SECOND)]);
    let start = Instant::now();
    let refused = limiter.permit().wait_for(MOMENT).await;
    assert!(
        matches!(refused, Err(Error::TimedOut { .. })),
        "{refused:?}"
    );
    assert!(start.elapsed() < 6 * SECOND);
}

/// This holds whatever the jitter is.
#[tokio::test(start_paused = true)]
async fn a_wait_of_a_whole_window_reaches_the_next() {
    for round in 0..50 {
        let (_, _, limiter) = limited();
        a_new_window(&limiter).await;
        sleep(MOMENT).await;
        limiter.permits(10).await.unwrap();
        let next = limiter.permits(10).wait_for(SECOND).await;
        assert!(next.is_ok(), "round {round}: {next:?}");
    }
}

#[test]
fn without_a_runtime_it_says_so() {
    let (_, _, limiter) = limited();
    for patience in [Duration::ZERO, SECOND] {
        let call = limiter.permit().wait_for(patience).into_future();
        let refused = futures::executor::block_on(call);
        assert!(matches!(refused, Err(Error::NoRuntime)), "{refused:?}");
    }
}

/// The second caller needs the next request, and is polled by a thread without a runtime meanwhile.
#[test]
fn a_caller_that_is_polled_without_a_runtime_holds_up_nobody() {
    let (store, _, limiter) = limited();
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_all().start_paused(true).build().unwrap();
    let mut second = limiter.permit().into_future();
    runtime.block_on(async {
        store.gates.close(0);
        let first = tokio::spawn(limiter.permit().into_future());
        store.gates.reached().await;
        assert!((&mut second).now_or_never().is_none());
        store.gates.open();
        first.await.unwrap().unwrap();
    });
    let polled = (&mut second).now_or_never();
    assert!(!matches!(polled, Some(Err(_))), "{polled:?}");
    runtime.block_on(async {
        let start = Instant::now();
        limiter.permit().await.unwrap();
        if polled.is_none() {
            second.await.unwrap();
        }
        assert!(start.elapsed() < SECOND, "{:?}", start.elapsed());
    });
}

/// The runtime of the first use has ended, and the caller is polled elsewhere.
#[test]
fn a_caller_whose_runtime_has_ended_is_told_so() {
    let (store, _, limiter) = limited();
    let runtime = || {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        builder.enable_all().build().unwrap()
    };
    let gone = runtime();
    store.gates.close(0);
    let mut caller = limiter.permit().into_future();
    gone.block_on(async {
        assert!(timeout(MOMENT, &mut caller).await.is_err());
    });
    drop(gone);
    store.gates.open();
    runtime().block_on(async {
        let ended = timeout(PATIENCE, caller).await.unwrap();
        assert!(matches!(ended, Err(Error::RuntimeEnded)), "{ended:?}");
        let next = limiter.permit().await;
        assert!(matches!(next, Err(Error::RuntimeEnded)), "{next:?}");
    });
}

/// Random faults of the network, with callers of all kinds that come and go.
#[tokio::test(start_paused = true)]
async fn whatever_happens_nobody_hangs_and_the_limit_holds() {
    for seed in 0..200 {
        let mut random = fastrand::Rng::with_seed(seed);
        let (store, leases) = setup();
        let millis = |most| Duration::from_millis(most);
        let window = millis([100, 1_000, 5_000][random.usize(..3)]);
        let limit = random.u32(1..=8);
        let fates = std::iter::repeat_with(|| match random.u8(..7) {
            0 => Fate::NotSent,
            1 => Fate::AnswerLost,
            2 => Fate::AnswerCut,
            3 => Fate::Late(millis(random.u64(..6_000))),
            4 => Fate::AnswerLate(millis(random.u64(..6_000))),
            5 => Fate::AnswerLate(millis(random.u64(..30))),
            _ => Fate::Late(millis(random.u64(..30))),
        });
        store.next(fates.take(20).collect::<Vec<_>>());
        let limiter = leases.limiter("key", limit, window);
        let callers = (0..60).map(|_| {
            let (limiter, way) = (limiter.clone(), random.u8(..4));
            let permits = random.u32(1..=limit);
            let (comes, stays) = (millis(random.u64(..3_000)), millis(random.u64(..4_000)));
            tokio::spawn(async move {
                sleep(comes).await;
                let call = limiter.permits(permits);
                let granted = match way {
                    0 => match limiter.try_permits(permits).await {
                        Ok(PermitAttempt::Granted(permit)) => Some(permit),
                        _ => None,
                    },
                    1 => call.wait_for(stays).await.ok(),
                    2 => timeout(stays, call).await.ok().and_then(Result::ok),
                    _ => call.await.ok(),
                };
                granted.map(|it| (it.granted_at().timestamp_millis(), it.permits()))
            })
        });
        let mut windows = BTreeMap::<i64, u32>::new();
        for caller in callers.collect::<Vec<_>>() {
            let granted = timeout(2_000 * SECOND, caller).await;
            let granted = granted.unwrap_or_else(|_| panic!("seed {seed}: a caller hangs"));
            if let Some((at, permits)) = granted.unwrap() {
                let number = at.div_euclid(window.as_millis() as i64);
                *windows.entry(number).or_default() += permits;
            }
        }
        let most = windows.values().max().copied().unwrap_or_default();
        assert!(most <= limit, "seed {seed}: {most} of {limit} in a window");
    }
}

#[tokio::test(start_paused = true)]
async fn limiters_that_nobody_has_leave_nothing_behind() {
    let (_, leases, limiter) = limited();
    let first = limiter.clone();
    limiter.permits(10).await.unwrap();
    drop(limiter);
    assert!(is_full(&first).await);
    drop(first);
    for number in 0..100 {
        let limiter = leases.limiter(format!("key {number}"), 1, SECOND);
        limiter.permit().await.unwrap();
    }
    sleep(MOMENT).await;
    let tasks = tokio::runtime::Handle::current().metrics();
    assert!(tasks.num_alive_tasks() < 10, "{tasks:?}");
    leases.close().await;
}
