//! Jobs that run once per tick.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures::FutureExt;
use leasehold::{
    Error, LossReason,
    jobs::{Once, OnceAttempt, OnceError, Tick},
};
use tokio::time::{Instant, sleep};

use super::{Fate, FlakyStore, LIMIT, MOMENT, TTL, is_free, setup, until_free};

const TICK: Tick = Tick::counter(7);
const NEXT: Tick = Tick::counter(8);

type Outcome = Result<Once<u32>, OnceError<&'static str>>;

async fn run(leases: &leasehold::Leases, tick: Tick) -> Outcome {
    leases.once("key", tick).run(async |_| Ok(42)).await
}

fn is_done(outcome: &Outcome, tick: Tick) -> bool {
    matches!(outcome, Ok(Once::Done(done)) if done.tick == tick)
}

/// Whether the answer is that this tick is left out, because the other one is done.
fn is_left_out(outcome: &Outcome, left_out: Tick, newest: Tick) -> bool {
    matches!(outcome, Ok(Once::Superseded { tick, done }) if (*tick, done.tick) == (left_out, newest))
}

#[tokio::test(start_paused = true)]
async fn a_tick_runs_once_under_a_lease_that_is_kept_alive() {
    let (store, leases) = setup();
    let ran = leases
        .once("key", TICK)
        .ttl(TTL)
        .owner("one")
        .run(async |lease| {
            sleep(TTL * 10).await;
            assert!(lease.is_live());
            Ok::<_, Error>(42)
        });
    assert_eq!(ran.await.unwrap(), Once::Ran(42));
    assert!(
        is_free(&store).await,
        "it is released when the call returns"
    );
    let again = run(&leases, TICK).await;
    assert!(is_done(&again, TICK), "{again:?}");
    let done = leases.last_done("key").await.unwrap().unwrap();
    assert_eq!((done.tick, &*done.by), (TICK, "one"));
    assert_eq!(run(&leases, NEXT).await.unwrap(), Once::Ran(42));
    assert!(is_done(&run(&leases, NEXT).await, NEXT));
}

/// A migration that is merged late is such a tick. If it counted as done, nobody would learn that it never ran.
#[tokio::test(start_paused = true)]
async fn a_tick_before_the_newest_done_one_is_left_out_and_not_told_as_done() {
    let (_, leases) = setup();
    let late = Tick::counter(6);
    assert_eq!(run(&leases, TICK).await.unwrap(), Once::Ran(42));
    let told = run(&leases, late).await;
    assert!(is_left_out(&told, late, TICK), "{told:?}");
    let attempt = leases.once("key", late).acquire().await.unwrap();
    let OnceAttempt::Superseded { tick, done } = attempt else {
        panic!("{attempt:?}");
    };
    assert_eq!((tick, done.tick), (late, TICK));
    // One that did run is told in the same way: the store knows the newest done tick only.
    assert_eq!(run(&leases, NEXT).await.unwrap(), Once::Ran(42));
    let told = run(&leases, TICK).await;
    assert!(is_left_out(&told, TICK, NEXT), "{told:?}");
    // A key for each version: each of them runs, whatever the order, and only once.
    for version in [Tick::version(1, 5, 0), Tick::version(1, 4, 0)] {
        let migrate = || {
            let migration = leases.once(format!("migrate/{version}"), version);
            migration.run(async |_| Ok::<_, Error>(42))
        };
        assert_eq!(migrate().await.unwrap(), Once::Ran(42));
        let again = migrate().await;
        assert!(
            matches!(&again, Ok(Once::Done(done)) if done.tick == version),
            "{again:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn work_that_fails_or_panics_or_is_dropped_is_run_again() {
    let (store, leases) = setup();
    let fails = leases.once("key", TICK).run(async |_| Err::<(), _>("no"));
    assert!(matches!(fails.await, Err(OnceError::Work("no"))));
    assert!(is_free(&store).await);

    let work = async |_: &leasehold::Lease| -> Result<(), Error> { panic!("on purpose") };
    let panics = leases.once("key", TICK).run(work);
    assert!(
        std::panic::AssertUnwindSafe(panics)
            .catch_unwind()
            .await
            .is_err()
    );
    until_free(&store).await;

    let mut dropped = Box::pin(leases.once("key", TICK).run(async |_| {
        sleep(TTL).await;
        Ok::<_, Error>(())
    }));
    assert!((&mut dropped).now_or_never().is_none());
    sleep(MOMENT).await;
    assert!((&mut dropped).now_or_never().is_none());
    assert!(!is_free(&store).await, "it has not begun");
    drop(dropped);
    until_free(&store).await;

    assert_eq!(leases.last_done("key").await.unwrap(), None);
    assert_eq!(run(&leases, TICK).await.unwrap(), Once::Ran(42));
}

#[tokio::test(start_paused = true)]
async fn nothing_is_done_under_a_lease_that_was_lost() {
    let (_, leases) = setup();
    let evictor = leases.clone();
    let work = leases.once("key", TICK).ttl(TTL).run(async |_| {
        evictor.evict("key").await?;
        sleep(TTL * 10).await;
        Ok::<_, Error>(())
    });
    let error = work.await.unwrap_err();
    assert!(matches!(error, OnceError::Lost { .. }), "{error:?}");
    // The client does not know of the loss before the work has ended, but the store does.
    let work = leases.once("key", TICK).ttl(TTL).run(async |_| {
        evictor.evict("key").await?;
        Ok::<_, Error>(())
    });
    let error = work.await.unwrap_err();
    assert!(
        matches!(
            &error,
            OnceError::Lost {
                reason: LossReason::TakenOver,
                ..
            }
        ),
        "{error:?}"
    );
    assert_eq!(leases.last_done("key").await.unwrap(), None);
    assert_eq!(run(&leases, TICK).await.unwrap(), Once::Ran(42));
}

#[tokio::test(start_paused = true)]
async fn a_tick_whose_answer_was_lost_is_found_by_the_repeated_request() {
    for fate in [Fate::AnswerLost, Fate::NotSent, Fate::AnswerLate(LIMIT * 2)] {
        let (store, leases) = setup();
        let flaky = store.clone();
        let ran = leases.once("key", TICK).ttl(TTL * 10).run(async |_| {
            flaky.next([fate]);
            Ok::<_, Error>(42)
        });
        assert_eq!(ran.await.unwrap(), Once::Ran(42), "{fate:?}");
        assert!(is_done(&run(&leases, TICK).await, TICK), "{fate:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_tick_that_is_not_confirmed_is_told_and_done_later() {
    let (store, leases) = setup();
    let flaky = store.clone();
    let work = leases.once("key", TICK).ttl(TTL).run(async |_| {
        flaky.next([Fate::NotSent; 5]);
        Ok::<_, Error>(())
    });
    let error = work.await.unwrap_err();
    assert!(matches!(error, OnceError::NotConfirmed(_)), "{error:?}");
    until_free(&store).await;
    assert!(is_done(&run(&leases, TICK).await, TICK));
}

#[tokio::test(start_paused = true)]
async fn a_repeated_request_that_finds_a_later_tick_is_no_loss() {
    let (store, leases) = setup();
    let attempt = leases.once("key", TICK).acquire().await.unwrap();
    let OnceAttempt::Acquired(lease) = attempt else {
        panic!("{attempt:?}");
    };
    store.next([Fate::AnswerLost]);
    let completing = tokio::spawn(lease.complete());
    sleep(Duration::from_millis(1)).await;
    // The first request is carried out. Before it is repeated, another process does the next tick.
    let other = leasehold::Leases::new(store.memory.clone());
    assert_eq!(run(&other, NEXT).await.unwrap(), Once::Ran(42));
    let error = completing.await.unwrap().unwrap_err();
    assert!(error.is_ambiguous(), "{error:?}");
}

/// The handle of a second process on the same store.
fn other(store: &FlakyStore) -> leasehold::Leases {
    leasehold::Leases::new(store.clone())
}

#[tokio::test(start_paused = true)]
async fn who_comes_while_it_runs_is_told_so_or_waits_for_its_end() {
    for fails in [false, true] {
        let (store, leases) = setup();
        let first = leases.clone();
        let running = tokio::spawn(async move {
            let work = first.once("key", TICK).run(async |_| {
                sleep(TTL).await;
                if fails { Err("no") } else { Ok(1) }
            });
            work.await
        });
        sleep(MOMENT).await;
        let others = [leases.clone(), other(&store)];
        for leases in &others {
            let told = run(leases, TICK).await.unwrap();
            assert!(matches!(told, Once::Running(_)), "{told:?}");
        }
        let short = leases
            .once("key", TICK)
            .wait_for(MOMENT)
            .run(async |_| Ok::<_, Error>(2));
        assert!(matches!(short.await.unwrap(), Once::Running(_)));
        let start = Instant::now();
        let ran = Arc::new(AtomicUsize::new(0));
        let waiting = others.map(|leases| {
            let ran = ran.clone();
            tokio::spawn(async move {
                let work = leases.once("key", TICK).wait_for(TTL * 10).run(async |_| {
                    ran.fetch_add(1, Ordering::SeqCst);
                    Ok::<_, Error>(2)
                });
                work.await.unwrap()
            })
        });
        for waiting in waiting {
            let outcome = waiting.await.unwrap();
            assert!(
                matches!(outcome, Once::Done(_) | Once::Ran(2)),
                "{outcome:?}"
            );
        }
        assert_eq!(ran.load(Ordering::SeqCst), usize::from(fails));
        assert!(start.elapsed() >= TTL - MOMENT * 3);
        assert_eq!(running.await.unwrap().is_err(), fails);
        assert_eq!(
            leases.last_done("key").await.unwrap().map(|it| it.tick),
            Some(TICK)
        );
    }
}

#[tokio::test(start_paused = true)]
async fn the_release_of_a_tick_hands_the_key_to_no_waiter_of_this_process() {
    let (store, leases) = setup();
    let work = leases.once("key", TICK).acquire().await.unwrap();
    let OnceAttempt::Acquired(lease) = work else {
        panic!("{work:?}");
    };
    let next = leases.clone();
    let waiter = tokio::spawn(async move { next.acquire("key", TTL).await });
    sleep(MOMENT).await;
    store.calls();
    lease.complete().await.unwrap();
    let waiter = waiter.await.unwrap().unwrap();
    assert!(is_done(&run(&other(&store), TICK).await, TICK));
    assert_eq!(store.calls()[..2], ["release", "acquire"]);
    assert_eq!(store.undoable.lock().as_slice(), [false]);
    waiter.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn what_makes_no_sense_is_told() {
    let (_, leases) = setup();
    let held = leases.acquire("key", TTL).await.unwrap();
    // An ordinary lock holds the key as well as a job that runs.
    assert!(matches!(
        run(&leases, TICK).await.unwrap(),
        Once::Running(_)
    ));
    held.release().await.unwrap();
    assert_eq!(run(&leases, TICK).await.unwrap(), Once::Ran(42));
    let other = run(&leases, Tick::version(9, 0, 0)).await.unwrap_err();
    assert!(
        matches!(
            other,
            OnceError::NotAcquired(Error::OtherTickKind { done: TICK, .. })
        ),
        "{other:?}"
    );
    let work = leases.once("", TICK).run(async |_| Ok::<_, Error>(1));
    assert!(matches!(
        work.await,
        Err(OnceError::NotAcquired(Error::InvalidKey { .. }))
    ));
    let short = leases.once("key", NEXT).ttl(TTL).max_hold(TTL / 2);
    assert!(matches!(
        short.acquire().await,
        Err(Error::InvalidMaxHold { .. })
    ));
}

#[tokio::test(start_paused = true)]
async fn a_tick_that_hangs_is_lost_at_its_maximum_hold() {
    let (_, leases) = setup();
    let work = leases
        .once("key", TICK)
        .ttl(TTL)
        .max_hold(TTL * 3)
        .run(async |_| {
            sleep(TTL * 100).await;
            Ok::<_, Error>(())
        });
    let error = work.await.unwrap_err();
    assert!(
        matches!(
            error,
            OnceError::Lost {
                reason: LossReason::HeldTooLong,
                ..
            }
        ),
        "{error:?}"
    );
    assert_eq!(run(&leases, TICK).await.unwrap(), Once::Ran(42));
}

/// The first waiter of a process sends its requests. Other tasks of it have no answer of their own.
#[tokio::test(start_paused = true)]
async fn a_tick_that_is_done_is_told_to_a_task_that_is_not_the_first_to_wait() {
    let (store, leases) = setup();
    let other = leasehold::Leases::new(store.memory.clone());
    assert_eq!(run(&leases, TICK).await.unwrap(), Once::Ran(42));
    let held = other.acquire("key", TTL * 100).await.unwrap();
    let first = tokio::spawn(leases.acquire("key", TTL).into_future());
    sleep(MOMENT).await;
    let start = Instant::now();
    let waits = |tick| {
        let once = leases.once("key", tick).wait_for(TTL);
        once.run(async |_| Ok::<_, Error>(42))
    };
    let told = waits(TICK).await;
    assert!(
        matches!(&told, Ok(Once::Done(done)) if done.tick == TICK),
        "{told:?}"
    );
    assert_eq!(start.elapsed(), Duration::ZERO);
    let late = Tick::counter(6);
    let told = waits(late).await;
    assert!(
        matches!(&told, Ok(Once::Superseded { tick, done }) if (*tick, done.tick) == (late, TICK)),
        "{told:?}"
    );
    let kind = waits(Tick::version(1, 0, 0)).await;
    assert!(
        matches!(
            kind,
            Err(OnceError::NotAcquired(Error::OtherTickKind { .. }))
        ),
        "{kind:?}"
    );

    // A tick that is done meanwhile.
    let waiting = tokio::spawn({
        let leases = leases.clone();
        async move {
            let once = leases.once("key", NEXT).wait_for(TTL);
            once.run(async |_| Ok::<_, Error>(42)).await
        }
    });
    sleep(MOMENT).await;
    other.evict("key").await.unwrap();
    drop(held);
    let first = first.await.unwrap().unwrap();
    first.release().await.unwrap();
    assert_eq!(waiting.await.unwrap().unwrap(), Once::Ran(42));
}

#[tokio::test(start_paused = true)]
async fn a_task_that_is_not_the_first_to_wait_learns_at_the_end_that_the_tick_is_done() {
    let (store, leases) = setup();
    let other = leasehold::Leases::new(store.memory.clone());
    let job = other.once("key", TICK).acquire().await.unwrap();
    let OnceAttempt::Acquired(job) = job else {
        panic!("{job:?}")
    };
    let first = tokio::spawn(leases.acquire("key", TTL * 100).into_future());
    sleep(MOMENT).await;
    let start = Instant::now();
    let waiting = leases.once("key", TICK).wait_for(TTL);
    let waiting = tokio::spawn(waiting.run(async |_| Ok::<_, Error>(42)));
    sleep(MOMENT).await;
    job.complete().await.unwrap();
    let _next = other.acquire("key", TTL * 100).barging().await.unwrap();
    let told = waiting.await.unwrap();
    assert!(
        matches!(&told, Ok(Once::Done(done)) if done.tick == TICK),
        "{told:?}"
    );
    assert!(!first.is_finished());
    assert!(start.elapsed() <= TTL + MOMENT);
}

/// The request of the first waiter has failed, so its process has no place yet.
#[tokio::test(start_paused = true)]
async fn an_acquire_for_a_tick_passes_no_task_that_waits() {
    let (store, leases) = setup();
    store.next([Fate::NotSent]);
    let first = tokio::spawn(leases.acquire("key", TTL).into_future());
    sleep(Duration::from_millis(1)).await;
    let once = leases.once("key", TICK).wait_for(TTL);
    let once = tokio::spawn(once.run(async |_| Ok::<_, Error>(42)));
    let first = first.await.unwrap().unwrap();
    sleep(MOMENT).await;
    assert!(!once.is_finished());
    first.release().await.unwrap();
    assert_eq!(once.await.unwrap().unwrap(), Once::Ran(42));
}

#[tokio::test(start_paused = true)]
async fn a_tick_that_is_done_is_told_beside_a_lease_that_stays() {
    let (_, leases) = setup();
    assert_eq!(run(&leases, TICK).await.unwrap(), Once::Ran(42));
    let lease = leases.acquire("key", TTL).sticky(TTL * 10).await.unwrap();
    let start = Instant::now();
    let once = leases.once("key", TICK).wait_for(TTL);
    let told = once.run(async |_| Ok::<_, Error>(42)).await;
    assert!(
        matches!(&told, Ok(Once::Done(done)) if done.tick == TICK),
        "{told:?}"
    );
    assert_eq!(start.elapsed(), Duration::ZERO);
    lease.release().await.unwrap();
}
