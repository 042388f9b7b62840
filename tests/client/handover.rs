//! A holder that hands its key to the next waiter of this process.

use std::time::Duration;

use futures::future::join_all;
use leasehold::{Error, Key, Lease, Leases, Store, store::LeaseId};
use tokio::{
    runtime,
    task::{JoinHandle, yield_now},
    time::{Instant, sleep, timeout},
};

use super::{Fate, FlakyStore, LIMIT, MOMENT, PATIENCE, TTL, setup, until_free};

/// A holder of the key, and a waiter in the queue for it.
async fn pair(leases: &Leases) -> (Lease, JoinHandle<Result<Lease, Error>>) {
    let holder = leases.acquire("key", TTL).await.unwrap();
    let waiter = tokio::spawn(leases.acquire("key", TTL).into_future());
    for _ in 0..20 {
        yield_now().await;
    }
    (holder, waiter)
}

async fn holds(store: &FlakyStore, lease: LeaseId) -> bool {
    let state = store.memory.inspect(&Key::new("key").unwrap()).await;
    let holders = state.unwrap().unwrap().holders;
    holders.iter().any(|holder| holder.lease == lease)
}

#[tokio::test(start_paused = true)]
async fn a_release_and_the_next_grant_need_no_request() {
    let (store, leases) = setup();
    let (holder, waiter) = pair(&leases).await;
    store.calls();
    let (fence, start) = (holder.fence(), Instant::now());
    holder.release().await.unwrap();
    let next = waiter.await.unwrap().unwrap();
    assert_eq!(store.calls(), [""; 0]);
    assert_eq!(start.elapsed(), Duration::ZERO);
    assert!(next.fence() > fence && next.is_live() && holds(&store, next.id()).await);
    next.release().await.unwrap();
    assert_eq!(store.calls(), ["release"]);
    until_free(&store).await;
}

#[tokio::test(start_paused = true)]
async fn a_dropped_guard_hands_its_key_over_too() {
    let (store, leases) = setup();
    let (holder, waiter) = pair(&leases).await;
    store.calls();
    drop(holder);
    drop(waiter.await.unwrap().unwrap());
    until_free(&store).await;
    assert_eq!(store.calls(), ["release"]);
}

/// Whatever happens to the request, the holder is told that its lease was released, the waiter gets the key, and no
/// lock is left behind.
#[tokio::test(start_paused = true)]
async fn a_hand_over_that_goes_wrong_is_a_release_and_an_acquire() {
    let late = LIMIT * 2;
    let fates = [
        Fate::NotSent,
        Fate::AnswerLost,
        Fate::AnswerCut,
        Fate::Late(late),
        Fate::AnswerLate(late),
        Fate::CutAndLate(MOMENT),
        Fate::Late(MOMENT),
        Fate::AnswerLate(MOMENT),
        Fate::Panic,
    ];
    for fate in fates {
        let (store, leases) = setup();
        let (holder, waiter) = pair(&leases).await;
        store.next([fate]);
        holder.release().await.unwrap();
        let next = timeout(TTL, waiter).await.unwrap().unwrap().unwrap();
        assert!(next.is_live() && holds(&store, next.id()).await, "{fate:?}");
        next.release().await.unwrap();
        until_free(&store).await;
        sleep(late * 2).await;
        assert_eq!(until_free(&store).await, Duration::ZERO, "{fate:?}");
    }
}

/// The answer to the handoff is lost, and the answer to the release that follows it as well.
#[tokio::test(start_paused = true)]
async fn a_hand_over_without_an_answer_and_a_release_that_comes_after_it() {
    let (store, leases) = setup();
    let (holder, waiter) = pair(&leases).await;
    // The handoff is carried out. The release finds that the lease is gone.
    store.next([Fate::AnswerLost, Fate::AnswerLost]);
    holder.release().await.unwrap();
    let next = waiter.await.unwrap().unwrap();
    assert!(holds(&store, next.id()).await);
    next.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_waiter_that_goes_away_in_the_middle_leaves_no_lock() {
    for fate in [Fate::Late(MOMENT), Fate::AnswerLate(MOMENT)] {
        let (store, leases) = setup();
        let (holder, waiter) = pair(&leases).await;
        store.next([fate]);
        let release = tokio::spawn(holder.release());
        sleep(MOMENT / 2).await;
        waiter.abort();
        release.await.unwrap().unwrap();
        until_free(&store).await;
        let last = leases.acquire("key", TTL).await.unwrap();
        sleep(LIMIT * 2).await;
        assert!(last.is_live() && holds(&store, last.id()).await);
    }
}

/// The lease is shared in the store, because a downgrade was carried out whose answers were lost. The waiter was
/// granted the key beside it, and the answer was lost too, so its next request changes nothing. The holder's release
/// has to be sent.
#[tokio::test(start_paused = true)]
async fn a_waiter_that_may_have_been_granted_the_key_takes_no_lease_over() {
    let (store, leases) = setup();
    let holder = leases.acquire("key", TTL * 100).await.unwrap();
    store.next([Fate::AnswerLost; 3]);
    holder.downgrade().await.unwrap_err();
    store.fates_now([Fate::AnswerLost]);
    let waiter = tokio::spawn(leases.acquire("key", TTL * 100).shared().into_future());
    while store.calls().last() != Some(&"acquire") {
        yield_now().await;
    }
    for _ in 0..20 {
        yield_now().await;
    }
    let id = holder.id();
    holder.release().await.unwrap();
    waiter.await.unwrap().unwrap().release().await.unwrap();
    assert!(!holds(&store, id).await, "the release was not sent");
}

/// When a key changes hands within a process, it is set free for other processes from time to time: after 100 ms.
#[tokio::test(start_paused = true)]
async fn hand_overs_within_a_process_come_to_an_end() {
    for (answer_in, run) in [(1, 20), (10, 20)] {
        let (store, leases) = setup();
        let fate = Fate::AnswerLate(Duration::from_millis(answer_in));
        store.next(std::iter::repeat_n(fate, 1_000));
        let serve = async |_| {
            let lease = leases.acquire("key", TTL).await.unwrap();
            sleep(Duration::from_millis(5)).await;
            lease.release().await
        };
        join_all((0..100).map(serve)).await;
        let released = store.calls().iter().filter(|it| **it == "release").count();
        let expected = 100 / run..100 / run + 3;
        assert!(
            expected.contains(&released),
            "{answer_in} ms: {released} releases"
        );
        // Other processes hear of a release once a majority has it. This process waits for that before it asks again.
        let undoable = std::mem::take(&mut *store.undoable.lock());
        let (last, left_to_others) = undoable.split_last().unwrap();
        assert!(*last && !left_to_others.contains(&true), "{undoable:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn what_others_share_or_has_to_stay_is_released() {
    let (store, leases) = setup();
    for kind in 0..3 {
        let holder = leases.acquire("key", TTL);
        let holder = match kind {
            0 => holder.shared().await,
            1 => holder.permits(1, 1).await,
            _ => holder.min_hold(MOMENT).await,
        };
        let holder = holder.unwrap();
        let waiter = tokio::spawn(leases.acquire("key", TTL).into_future());
        sleep(MOMENT).await;
        store.calls();
        holder.release().await.unwrap();
        assert_eq!(store.calls()[0], "release", "{kind}");
        waiter.await.unwrap().unwrap().release().await.unwrap();
    }
}

/// The waiter's runtime stands still, but the release does not need it.
#[tokio::test(start_paused = true)]
async fn a_waiter_that_nobody_drives_holds_up_a_release_for_a_moment_only() {
    let (store, leases) = setup();
    let holder = leases.acquire("key", TTL).await.unwrap();
    let still = runtime::Builder::new_current_thread();
    let still = { still }.enable_all().build().unwrap();
    let waiting = leases.clone();
    // The waiter joins the queue, and nothing polls it afterwards.
    let still = std::thread::spawn(move || {
        still.block_on(async {
            let _ = timeout(
                Duration::from_millis(50),
                tokio::spawn(waiting.acquire("key", TTL).into_future()),
            )
            .await;
        });
        still
    })
    .join()
    .unwrap();
    let start = Instant::now();
    holder.release().await.unwrap();
    assert!(start.elapsed() <= Duration::from_millis(200));
    until_free(&store).await;
    still.shutdown_background();
}

/// A caller of a runtime that then stands still has dropped its wait for the key, as the first in the queue or as the
/// second. The others are granted the key, and the release does not wait for the one that has gone.
#[tokio::test(start_paused = true)]
async fn a_waiter_that_was_dropped_stops_nobody_though_its_runtime_stands_still() {
    for with_others in [false, true] {
        let (store, leases) = setup();
        let holder = leases.acquire("key", TTL).await.unwrap();
        let still = runtime::Builder::new_current_thread();
        let still = { still }.enable_all().build().unwrap();
        let first = (!with_others).then(|| tokio::spawn(leases.acquire("key", TTL).into_future()));
        sleep(MOMENT).await;
        let waiting = leases.clone();
        // Its operation becomes a task of this runtime, and nothing polls it.
        let still = std::thread::spawn(move || {
            still.block_on(async {
                let waiting = waiting.acquire("key", TTL).into_future();
                let _ = timeout(Duration::from_millis(50), waiting).await;
            });
            still
        })
        .join()
        .unwrap();
        let second = tokio::spawn(leases.acquire("key", TTL).into_future());
        sleep(MOMENT).await;
        let start = Instant::now();
        holder.release().await.unwrap();
        for waiter in first.into_iter().chain([second]) {
            let granted = timeout(PATIENCE, waiter).await.expect("it waits for ever");
            granted.unwrap().unwrap().release().await.unwrap();
        }
        assert!(start.elapsed() <= MOMENT, "{:?}", start.elapsed());
        assert_eq!(until_free(&store).await, Duration::ZERO);
        // The place of the operation that stands still is given up when it goes on.
        let runs = tokio::task::spawn_blocking(move || {
            still.block_on(async { sleep(MOMENT).await });
            still
        });
        runs.await.unwrap().shutdown_background();
        timeout(PATIENCE, leases.close()).await.unwrap();
    }
}

/// A process that sees another one hold the key lets that one ask for it as well. This holds with many tasks, and also
/// with so few that at times nobody waits.
#[tokio::test(start_paused = true)]
async fn two_processes_share_a_key_that_both_want() {
    for (tasks_here, tasks_there, least) in [(4, 4, 0.3), (2, 2, 0.3), (2, 1, 0.18), (1, 2, 0.18)] {
        let (store, here) = setup();
        let there = Leases::new(store.clone());
        store.next(std::iter::repeat_n(
            Fate::AnswerLate(Duration::from_millis(1)),
            1_000_000,
        ));
        let end = Instant::now() + TTL / 2;
        let work = async |leases: &Leases| {
            let mut grants = 0;
            while Instant::now() < end {
                let lease = leases.acquire("key", TTL).await.unwrap();
                sleep(Duration::from_millis(5)).await;
                lease.release().await.unwrap();
                grants += 1;
            }
            grants
        };
        let of = async |leases: &Leases, tasks| join_all((0..tasks).map(|_| work(leases))).await;
        let (here, there) = tokio::join!(of(&here, tasks_here), of(&there, tasks_there));
        let [here, there] = [here, there].map(|grants| grants.iter().sum::<u32>());
        let share = f64::from(here.min(there)) / f64::from(here + there);
        let case = format!("{tasks_here} and {tasks_there} tasks: {here} and {there}");
        assert!(share > least, "{case}");
        // Without pauses there would be one grant in 6 ms.
        assert!(here + there > 15_000 / 6 / 3, "{case}");
    }
}

/// The first request of the inner acquire was granted, and its answer is lost. A repeated grant changes nothing, so it
/// does not end the outer lease, which is released by itself.
#[tokio::test(start_paused = true)]
async fn a_lease_is_not_handed_to_a_request_that_may_have_been_granted() {
    let (store, leases) = setup();
    let acquire = || leases.acquire("key", TTL).owner("me");
    let outer = acquire().await.unwrap();
    store.next([Fate::AnswerLost, Fate::AnswerLost]);
    let inner = tokio::spawn(acquire().reentrant().into_future());
    sleep(Duration::from_millis(1)).await;
    outer.release().await.unwrap();
    inner.await.unwrap().unwrap().release().await.unwrap();
    assert_eq!(until_free(&store).await, Duration::ZERO);
}
