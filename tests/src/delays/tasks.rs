//! The tasks of a process that wait for one another, or for a store that is late.

use std::{
    future::pending,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::{Duration, Instant},
};

use futures::{FutureExt, future::join_all};
use leasehold::{
    Error, Lease, Leases,
    jobs::{Once, Term},
};
use parking_lot::Mutex;
use tokio::{
    runtime::Builder,
    spawn,
    sync::{Notify, mpsc},
    task::{spawn_blocking, yield_now},
    time::{sleep, timeout},
};

use super::{
    Connect, Fate, LIMIT, LONG, STEP, both, released, spawned, state, succeeds, takes_less_than,
    until_free,
};

/// After this time an offer that its task has not taken goes to others.
const UNCLAIMED: Duration = Duration::from_millis(500);

/// Also when the key begins to stay, and one of the tasks needs its document.
pub async fn a_task_with_a_note_is_served_in_turn(connect: &impl Connect) {
    let (delayed, _) = both(connect).await;
    let leases = delayed.leases();
    for sticky in [false, true] {
        succeeds(async |key| {
            let granted = Arc::new(Mutex::new(Vec::new()));
            let key = format!("{key} {sticky}");
            let first = leases.acquire(&key, LONG).await.unwrap();
            let mut tasks = Vec::new();
            for number in 0..10 {
                let mut acquire = leases.acquire(&key, LONG);
                if sticky {
                    acquire = acquire.sticky(LONG);
                }
                if number == 8 {
                    acquire = acquire.note("nightly");
                }
                let mut acquire = acquire.into_future();
                // They ask in this order.
                assert!((&mut acquire).now_or_never().is_none());
                let granted = granted.clone();
                tasks.push(spawn(async move {
                    let lease = acquire.await.unwrap();
                    granted.lock().push((number, Instant::now()));
                    lease.release().await.unwrap();
                }));
            }
            let start = Instant::now();
            first.release().await.unwrap();
            for task in tasks {
                timeout(LIMIT, task).await.unwrap().unwrap();
            }
            let granted = granted.lock();
            if granted.iter().map(|it| it.0).eq(0..10) {
                return Ok(());
            }
            let granted_at = granted.iter().map(|it| it.1);
            let times: Vec<_> = [start].into_iter().chain(granted_at).collect();
            let is_slow = times.windows(2).any(|two| two[1] - two[0] >= UNCLAIMED);
            assert!(is_slow, "{sticky}: {granted:?}");
            Err(granted.clone())
        })
        .await;
    }
}

/// The others pass it. It is on a runtime that nothing drives.
pub async fn a_first_waiter_that_is_not_polled_is_passed_over(connect: &impl Connect) {
    let (delayed, other) = both(connect).await;
    let leases = delayed.leases();
    let holder = leases.acquire("key", LONG).await.unwrap();
    let idle = Builder::new_current_thread().enable_all().build().unwrap();
    let mut silent = leases.acquire("key", LONG).into_future();
    {
        let _there = idle.enter();
        assert!((&mut silent).now_or_never().is_none());
    }
    let waiting = spawned(leases.acquire("key", LONG));
    sleep(STEP).await;
    holder.release().await.unwrap();
    timeout(LIMIT, released(waiting)).await.unwrap();
    // Later ones do not wait for it either.
    let late = leases.acquire("key", LONG).wait_for(LIMIT).await;
    late.unwrap().release().await.unwrap();
    drop(silent);
    idle.shutdown_background();
    until_free(&other, "key").await;
}

/// The answer to the request of the first task never comes, and the call timeout is longer than the test.
pub async fn an_answer_that_never_comes_stalls_nobody_for_the_call_timeout(connect: &impl Connect) {
    let (delayed, _) = both(connect).await;
    let leases = delayed.leases();
    delayed.next([Fate::Unanswered]);
    let two = [(); 2].map(|()| released(spawned(leases.acquire("key", LONG))));
    timeout(LIMIT, join_all(two)).await.unwrap();
}

/// The store could not be reached, so each acquire that was given up is released.
pub async fn after_an_outage_each_lease_is_released_twice_at_most(connect: &impl Connect) {
    const GIVEN_UP: usize = 50;
    let (delayed, _) = both(connect).await;
    let call_timeout = Duration::from_secs(5);
    let leases = delayed.leases_with(call_timeout);
    delayed.is_down.store(true, SeqCst);
    let give_up = async |number| {
        let asked = leases.try_acquire(format!("key {number}"), LONG).await;
        assert!(asked.is_err(), "{asked:?}");
    };
    join_all((0..GIVEN_UP).map(give_up)).await;
    delayed.is_down.store(false, SeqCst);
    let start = Instant::now();
    while delayed.releases_by_lease().len() < GIVEN_UP {
        assert!(start.elapsed() < LIMIT, "they are not released");
        sleep(STEP).await;
    }
    sleep(2 * call_timeout).await;
    let releases = delayed.releases_by_lease();
    assert!(releases.iter().all(|times| *times <= 2), "{releases:?}");
}

/// The tasks of one thread: one of them is granted the key from memory again and again.
pub async fn grants_from_memory_let_other_tasks_run(connect: &impl Connect) {
    let (delayed, other) = both(connect).await;
    let leases = delayed.leases();
    let asked = delayed.asked.clone();
    let one_thread = Builder::new_current_thread().enable_all().build().unwrap();
    let grants = spawn_blocking(move || {
        one_thread.block_on(async move {
            let again = || leases.acquire("key", LONG).sticky(LONG).into_future();
            drop::<Lease>(again().await.unwrap());
            let ran = Arc::new(AtomicUsize::new(0));
            let counter = ran.clone();
            let counts = spawn(async move {
                loop {
                    counter.fetch_add(1, SeqCst);
                    yield_now().await;
                }
            });
            // The next one after 4,096 asks the store.
            for _ in 0..4_000 {
                drop(again().await.unwrap());
            }
            counts.abort();
            assert_eq!(asked.load(SeqCst), 1);
            assert!(ran.load(SeqCst) > 0, "nothing else ran");

            // Another process waits. This one learns of it beside its grants.
            takes_less_than(Duration::from_secs(5), async |key| {
                drop(leases.acquire(key, LONG).sticky(LONG).await.unwrap());
                let start = Instant::now();
                let waiting = spawn(released(spawned(other.acquire(key, LONG))));
                while !waiting.is_finished() && start.elapsed() < LIMIT {
                    drop(leases.acquire(key, LONG).sticky(LONG).await.unwrap());
                }
                let time = start.elapsed();
                waiting.await.unwrap();
                time
            })
            .await;
        })
    });
    grants.await.unwrap();
}

/// Work under a lease is late by what its grant was late, unless the lease is renewed before.
pub async fn work_under_a_lease_that_was_granted_late_begins_with_most_of_the_ttl(
    connect: &impl Connect,
) {
    let (delayed, _) = both(connect).await;
    let leases = delayed.leases();
    let ttl = Duration::from_secs(6);
    let late = Fate::Takes(Duration::ZERO, ttl / 2);
    let margin = Duration::from_millis(200);
    let left = |left: Duration| {
        let has_most = left + margin >= ttl * 2 / 3;
        if has_most { Ok(()) } else { Err(left) }
    };
    let work = async |lease: &Lease| Ok::<_, Error>(lease.remaining());
    succeeds(async |key| {
        delayed.next([late]);
        let remaining = leases.acquire(key, ttl).with(work).await;
        left(remaining.unwrap_or_default())
    })
    .await;
    succeeds(async |key| {
        delayed.next([late]);
        let ran = leases.once(format!("once {key}"), 7_i64).ttl(ttl);
        match ran.run(work).await {
            Ok(Once::Ran(remaining)) => left(remaining),
            _ => Err(Duration::ZERO),
        }
    })
    .await;
    // A term is at risk when less than that is left.
    succeeds(async |key| {
        delayed.next([late]);
        let (tell, mut told) = mpsc::unbounded_channel();
        let leader = leases.leader(format!("leader {key}"), ttl);
        let leads = spawn(leader.run(async move |term: &Term| {
            let _ = tell.send(term.at_risk().now_or_never());
            pending::<Result<(), Error>>().await
        }));
        let is_at_risk = timeout(LIMIT, told.recv()).await.unwrap().unwrap();
        leads.abort();
        is_at_risk.map_or(Ok(()), Err)
    })
    .await;
}

/// The second caller is polled by a thread without a runtime, while the request of the first one is under way.
pub async fn a_caller_of_a_limiter_without_a_runtime_holds_up_nobody(connect: &impl Connect) {
    let (delayed, _) = both(connect).await;
    let leases = delayed.leases();
    // If the second caller kept its turn, the third one would wait for five seconds.
    takes_less_than(Duration::from_secs(4), async |key| {
        let limiter = leases.limiter(key, 1_000, Duration::from_secs(1));
        let mut first = limiter.permit().into_future();
        let _ = (&mut first).now_or_never();
        let mut second = limiter.permit().into_future();
        let _ = (&mut second).now_or_never();
        let polled = std::thread::spawn(move || {
            let mut second = second;
            let polled = (&mut second).now_or_never();
            assert!(!matches!(polled, Some(Err(_))), "{polled:?}");
            (second, polled.is_none())
        });
        let (second, waits) = spawn_blocking(|| polled.join().unwrap()).await.unwrap();
        first.await.unwrap();
        let start = Instant::now();
        limiter.permit().await.unwrap();
        if waits {
            second.await.unwrap();
        }
        start.elapsed()
    })
    .await;
}

/// The work of a leader hangs, and another process leads after the longest hold.
pub async fn a_leader_with_a_longest_hold_hands_over(connect: &impl Connect) {
    let (delayed, other) = both(connect).await;
    let ttl = Duration::from_secs(3);
    let leads = Arc::new(Notify::new());
    let lead = |leases: &Leases, owner: &'static str, leads: Arc<Notify>| {
        let leader = leases.leader("key", ttl).owner(owner).max_hold(ttl);
        spawn(leader.run(async move |_: &Term| {
            leads.notify_one();
            pending::<Result<(), Error>>().await
        }))
    };
    let first = lead(&delayed.leases(), "first", leads.clone());
    timeout(LIMIT, leads.notified()).await.unwrap();
    let leads = Arc::new(Notify::new());
    let second = lead(&other, "second", leads.clone());
    timeout(LIMIT, leads.notified()).await.unwrap();
    first.abort();
    second.abort();
}

/// A guard that is dropped at the end of `main` is released by a close. Without one it holds its key for its ttl.
pub async fn what_is_dropped_at_the_end_of_main_is_free_only_after_a_close(connect: &impl Connect) {
    let (delayed, other) = both(connect).await;
    for closes in [true, false] {
        let (leases, key) = (delayed.leases(), format!("key {closes}"));
        let own = key.clone();
        let main = spawn_blocking(move || {
            let runtime = Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                drop(leases.acquire(own, LONG).await.unwrap());
                if closes {
                    leases.close().await;
                }
            });
        });
        main.await.unwrap();
        assert_eq!(state(&other, &key).await.is_free(), closes);
    }
}
