//! Tasks of one process that wait for the same key.

use std::{sync::Arc, time::Duration};

use futures::{FutureExt, future::join_all};
use leasehold::{Attempt, Error, Lease, Leases};
use parking_lot::Mutex;
use tokio::{
    task::{JoinHandle, yield_now},
    time::{Instant, sleep, timeout},
};

use super::{Fate, FlakyStore, LIMIT, MARGIN, MOMENT, TTL, setup, until_free};

type Waiter = JoinHandle<Result<Lease, Error>>;

/// Starts a task that waits for the key. It is in the queue when this returns.
async fn wait(leases: &Leases) -> Waiter {
    let waiter = tokio::spawn(leases.acquire("key", TTL).into_future());
    stand_in_line().await;
    waiter
}

/// Lets every task run until it waits.
async fn stand_in_line() {
    for _ in 0..20 {
        yield_now().await;
    }
}

/// The handle of another process with the same locks.
fn elsewhere(store: &FlakyStore) -> Leases {
    Leases::new(store.memory.clone())
}

#[tokio::test(start_paused = true)]
async fn they_are_served_in_the_order_in_which_they_came() {
    let (_, leases) = setup();
    let holder = leases.acquire("key", TTL).await.unwrap();
    let served = Arc::new(Mutex::new(Vec::new()));
    let mut waiters = Vec::new();
    for number in 0..50 {
        let (leases, served) = (leases.clone(), served.clone());
        waiters.push(tokio::spawn(async move {
            let lease = leases.acquire("key", TTL).await.unwrap();
            served.lock().push(number);
            sleep(MOMENT).await;
            lease.release().await.unwrap();
        }));
        stand_in_line().await;
    }
    holder.release().await.unwrap();
    join_all(waiters).await;
    assert_eq!(*served.lock(), (0..50).collect::<Vec<_>>());
}

#[tokio::test(start_paused = true)]
async fn a_release_in_this_process_wakes_the_next_at_once() {
    let ways: [fn(Lease); 2] = [drop, |lease| {
        drop(tokio::spawn(lease.release()));
    }];
    for end in ways {
        let (_, leases) = setup();
        let holder = leases.acquire("key", TTL * 10).await.unwrap();
        let waiter = wait(&leases).await;
        // By now the waiter polls at its slowest pace.
        sleep(TTL).await;
        let start = Instant::now();
        end(holder);
        let lease = waiter.await.unwrap().unwrap();
        assert_eq!(start.elapsed(), Duration::ZERO);
        lease.release().await.unwrap();
    }
}

/// Waits this long for a key that another process holds, and returns how many requests that took.
async fn requests_of(waiters: usize, patience: Duration) -> usize {
    let (store, leases) = setup();
    let other = elsewhere(&store);
    let holder = other.acquire("key", TTL * 100).await.unwrap();
    let acquire = || leases.acquire("key", TTL).wait_for(patience);
    let waiting = join_all((0..waiters).map(|_| acquire().into_future())).await;
    for outcome in waiting {
        let Err(Error::WaitTimedOut { held, waited }) = outcome else {
            panic!("{outcome:?}");
        };
        assert_eq!(held.owner(), holder.owner());
        assert!(waited >= patience);
    }
    // The last waiter gives up the place of the process.
    sleep(MOMENT).await;
    let mut requests = store.calls();
    assert_eq!(requests.pop(), Some("leave"));
    assert!(requests.iter().all(|&call| call == "acquire"));
    requests.len()
}

#[tokio::test(start_paused = true)]
async fn a_thousand_waiters_send_no_more_requests_than_one() {
    let patience = Duration::from_secs(60);
    let (one, thousand) = (
        requests_of(1, patience).await,
        requests_of(1_000, patience).await,
    );
    // Each pause has a random length, between half of its full length and all of it.
    assert!(one >= 60 && thousand <= 2 * 60 + 10, "{one} and {thousand}");
}

#[tokio::test(start_paused = true)]
async fn a_thousand_waiters_that_come_at_once_to_a_free_key_take_turns() {
    let (store, leases) = setup();
    let serve = async |_| {
        let lease = leases.acquire("key", TTL).await.unwrap();
        sleep(MOMENT).await;
        lease.release().await.unwrap();
    };
    let start = Instant::now();
    join_all((0..1_000).map(serve)).await;
    // Between two turns the key is free for other processes.
    let took = start.elapsed();
    assert!((MOMENT * 1_000..MOMENT * 1_070).contains(&took), "{took:?}");
    let calls = store.calls();
    // A turn lasts for ten of them, and takes an acquire and a release. The next one asks while the last still works.
    assert!((195..320).contains(&calls.len()), "{}", calls.len());
}

#[tokio::test(start_paused = true)]
async fn one_that_goes_away_does_not_hold_up_those_behind_it() {
    let (store, leases) = setup();
    let holder = elsewhere(&store).acquire("key", TTL * 10).await.unwrap();
    let mut waiters = Vec::new();
    for _ in 0..10 {
        waiters.push(wait(&leases).await);
    }
    // These are the first waiter, which sends the requests for all, the last one, and one in between.
    for gone in [9, 4, 0] {
        waiters.remove(gone).abort();
    }
    sleep(TTL).await;
    holder.release().await.unwrap();
    for waiter in waiters {
        let lease = timeout(TTL, waiter).await.unwrap().unwrap().unwrap();
        lease.release().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn one_that_goes_away_in_the_middle_of_its_request_neither() {
    let (store, leases) = setup();
    store.next([Fate::Late(TTL / 10)]);
    let first = wait(&leases).await;
    let second = wait(&leases).await;
    first.abort();
    let start = Instant::now();
    let lease = second.await.unwrap().unwrap();
    // The next one goes on with the claim, whose request is repeated after a second.
    assert!(start.elapsed() < Duration::from_secs(1) + MOMENT);
    // The request of the first waiter arrives, is refused, and changes nothing.
    sleep(TTL / 5).await;
    let state = leases.inspect("key").await.unwrap().unwrap();
    assert_eq!(state.holders[0].lease, lease.id());
}

#[tokio::test(start_paused = true)]
async fn one_whose_time_is_over_does_not_hold_up_those_behind_it() {
    let (store, leases) = setup();
    let holder = elsewhere(&store).acquire("key", TTL * 10).await.unwrap();
    let short = tokio::spawn(leases.acquire("key", TTL).wait_for(TTL).into_future());
    stand_in_line().await;
    let behind = wait(&leases).await;
    let error = short.await.unwrap().unwrap_err();
    assert!(matches!(error, Error::WaitTimedOut { .. }), "{error:?}");
    holder.release().await.unwrap();
    drop(timeout(TTL, behind).await.unwrap().unwrap().unwrap());
}

/// A future that is kept but not polled, as in a `select!` whose other branch runs.
#[tokio::test(start_paused = true)]
async fn one_that_is_not_polled_does_not_hold_up_those_behind_it() {
    let (store, leases) = setup();
    let holder = elsewhere(&store).acquire("key", TTL * 10).await.unwrap();
    let mut idle = leases.acquire("key", TTL).into_future();
    assert!((&mut idle).now_or_never().is_none());
    stand_in_line().await;
    let behind = wait(&leases).await;
    holder.release().await.unwrap();
    // The key is granted to the waiter that is not polled. Its lease expires, and the next waiter gets the key.
    let start = Instant::now();
    let lease = behind.await.unwrap().unwrap();
    assert!(start.elapsed() <= TTL + MARGIN + Duration::from_secs(1));
    assert!(lease.is_live());
    // It gets the key when it is polled again.
    idle.await.unwrap().release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_grant_that_its_waiter_does_not_live_to_see_goes_to_the_next() {
    let (store, leases) = setup();
    let holder = leases.acquire("key", TTL).await.unwrap();
    let first = wait(&leases).await;
    let second = wait(&leases).await;
    store.next([Fate::AnswerLate(MOMENT)]);
    let release = tokio::spawn(holder.release());
    sleep(MOMENT / 2).await;
    first.abort();
    drop(first);
    release.await.unwrap().unwrap();
    let start = Instant::now();
    drop(timeout(TTL / 2, second).await.unwrap().unwrap().unwrap());
    assert!(start.elapsed() < Duration::from_secs(2));
    until_free(&store).await;
}

#[tokio::test(start_paused = true)]
async fn errors_reach_every_waiter() {
    let (store, leases) = setup();
    store.next([Fate::Denied; 3]);
    let waiting = (0..3).map(|_| leases.acquire("key", TTL).into_future());
    for outcome in join_all(waiting).await {
        assert!(matches!(outcome, Err(Error::Denied { .. })), "{outcome:?}");
    }
    // If the store cannot be reached, each waiter gets an error when its own time limit is over.
    store.next(std::iter::repeat_n(Fate::NotSent, 10_000));
    let start = Instant::now();
    let waiting = (0..100).map(|_| leases.acquire("key", TTL).wait_for(TTL).into_future());
    for outcome in join_all(waiting).await {
        assert!(
            matches!(outcome, Err(Error::Unreachable { .. })),
            "{outcome:?}"
        );
    }
    assert!(start.elapsed() < TTL * 2);
}

#[tokio::test(start_paused = true)]
async fn who_does_not_wait_does_not_stand_in_the_queue() {
    let (store, leases) = setup();
    let holder = elsewhere(&store).acquire("key", TTL * 10).await.unwrap();
    let waiter = wait(&leases).await;
    sleep(TTL).await;
    let start = Instant::now();
    let attempt = leases.try_acquire("key", TTL).await.unwrap();
    assert!(matches!(attempt, Attempt::Held(_)));
    let now = leases.acquire("key", TTL).wait_for(Duration::ZERO).await;
    assert!(matches!(now, Err(Error::WaitTimedOut { .. })), "{now:?}");
    assert_eq!(start.elapsed(), Duration::ZERO);
    holder.release().await.unwrap();
    drop(waiter.await.unwrap().unwrap());
}

/// An acquire with keep-alive is granted a lease, and its future is not polled.
#[tokio::test(start_paused = true)]
async fn what_nobody_polls_is_not_kept_alive() {
    let (store, leases) = setup();
    store.next([Fate::AnswerLate(MOMENT)]);
    let mut idle = leases.acquire("key", TTL).keep_alive().into_future();
    assert!((&mut idle).now_or_never().is_none());
    let next = timeout(TTL * 2, leases.acquire("key", TTL)).await;
    next.unwrap().unwrap().release().await.unwrap();
    // It gets the key when it is polled again.
    idle.await.unwrap().release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn waiters_that_come_one_after_the_other_send_no_more_requests_than_one() {
    async fn requests_of(waiters: usize) -> usize {
        let (store, leases) = setup();
        let holder = elsewhere(&store).acquire("key", TTL * 10).await.unwrap();
        let mut waiting = Vec::new();
        for _ in 0..waiters {
            let acquire = leases.acquire("key", TTL).wait_for(Duration::from_secs(5));
            waiting.push(tokio::spawn(acquire.into_future()));
            sleep(Duration::from_millis(2)).await;
        }
        for outcome in join_all(waiting).await {
            assert!(matches!(outcome.unwrap(), Err(Error::WaitTimedOut { .. })));
        }
        drop(holder);
        store.calls().len()
    }
    let (one, thousand) = (requests_of(1).await, requests_of(1_000).await);
    assert!(thousand < one * 3, "{one} and {thousand}");
}

#[tokio::test(start_paused = true)]
async fn waiters_without_a_bound_give_up_together_when_the_store_hangs() {
    let (store, leases) = setup();
    store.next(std::iter::repeat_n(Fate::Late(TTL * 1_000), 10_000));
    let start = Instant::now();
    let waiting = (0..50).map(|_| leases.acquire("key", TTL).into_future());
    for outcome in join_all(waiting).await {
        assert!(
            matches!(outcome, Err(Error::TimedOut { .. })),
            "{outcome:?}"
        );
    }
    assert!(start.elapsed() < LIMIT * 5, "{:?}", start.elapsed());
}

/// Time limits beyond the end of time, and call timeouts of nothing and of for ever.
#[tokio::test]
async fn no_length_of_time_is_too_long() {
    for limit in [Duration::ZERO, Duration::MAX] {
        let store = FlakyStore::new();
        let leases = Leases::builder(store).call_timeout(limit).build();
        let acquire = leases
            .acquire("key", leasehold::limits::MAX_TTL)
            .keep_alive();
        let lease = acquire.wait_for(Duration::MAX).await.unwrap();
        for patience in [u64::MAX / 4, i64::MAX as u64 - 3_000_000] {
            let waiting = leases.acquire("key", leasehold::limits::MAX_TTL);
            let waiting = waiting.wait_for(Duration::from_secs(patience));
            assert!(timeout(MOMENT, waiting).await.is_err());
        }
        assert!(timeout(MOMENT, lease.lost()).await.is_err());
        assert!(timeout(MOMENT, lease.at_risk()).await.is_err());
        lease.release().await.unwrap();
    }
}

/// An `Instant` cannot express the end of the longest wait. It is a bound all the same: without one, errors end a wait.
#[tokio::test(start_paused = true)]
async fn errors_do_not_end_a_wait_that_has_the_longest_bound() {
    for bound in [Duration::from_secs(1 << 40), Duration::MAX] {
        for reentrant in [false, true] {
            let (store, leases) = setup();
            store.next(vec![Fate::NotSent; 10_000]);
            let acquire = leases.acquire("key", TTL).wait_for(bound);
            let acquire = if reentrant {
                acquire.reentrant()
            } else {
                acquire
            };
            let ended = timeout(LIMIT * 10, acquire).await;
            assert!(ended.is_err(), "after {bound:?}: {ended:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn who_waits_has_a_key_at_once_that_this_process_frees_by_force() {
    let (store, leases) = setup();
    for evicts in [true, false] {
        let other = Leases::builder(store.memory.clone()).owner("other").build();
        let holder = other.acquire("key", TTL * 100).await.unwrap();
        let waiter = tokio::spawn(leases.acquire("key", TTL).into_future());
        sleep(TTL).await;
        let start = Instant::now();
        if evicts {
            leases.evict("key").await.unwrap();
        } else {
            assert_eq!(leases.release_owner("other").await.unwrap(), 1);
        }
        let lease = waiter.await.unwrap().unwrap();
        assert_eq!(start.elapsed(), Duration::ZERO, "evicts: {evicts}");
        lease.release().await.unwrap();
        holder.detach().unwrap();
    }
}

/// The caller does not wait until its request is answered.
#[tokio::test(start_paused = true)]
async fn who_waits_has_a_key_at_once_that_an_abandoned_request_has_freed() {
    let (store, leases) = setup();
    for evicts in [true, false] {
        let other = Leases::builder(store.memory.clone()).owner("other").build();
        let holder = other.acquire("key", TTL * 100).await.unwrap();
        let waiter = tokio::spawn(leases.acquire("key", TTL).into_future());
        sleep(TTL).await;
        let start = Instant::now();
        let call = if evicts { "evict" } else { "release" };
        store.next_of(call, Fate::AnswerLate(MOMENT));
        let abandoned = if evicts {
            timeout(MOMENT / 2, leases.evict("key")).await.is_err()
        } else {
            timeout(MOMENT / 2, leases.release_owner("other"))
                .await
                .is_err()
        };
        assert!(abandoned);
        let lease = waiter.await.unwrap().unwrap();
        assert!(start.elapsed() <= MOMENT, "evicts: {evicts}");
        lease.release().await.unwrap();
        holder.detach().unwrap();
    }
}

/// The last answer before its end is the grant to another task of its process.
#[tokio::test(start_paused = true)]
async fn whose_time_ends_after_a_handoff_is_told_who_has_the_key() {
    let (_, leases) = setup();
    let holder = leases.acquire("key", TTL).await.unwrap();
    let wait = || leases.acquire("key", TTL).owner("next").into_future();
    let second = tokio::spawn(wait());
    sleep(MOMENT).await;
    let _third = tokio::spawn(wait());
    sleep(MOMENT).await;
    let fourth = leases.acquire("key", TTL).wait_for(MOMENT * 5);
    let fourth = tokio::spawn(fourth.into_future());
    sleep(MOMENT).await;
    holder.release().await.unwrap();
    let next = second.await.unwrap().unwrap();
    match fourth.await.unwrap() {
        Err(Error::WaitTimedOut { held, .. }) => {
            let [holder] = held.holders() else {
                panic!("{held:?}");
            };
            assert_eq!((holder.lease, holder.fence), (next.id(), next.fence()));
            assert_eq!(&*holder.owner, "next");
        }
        outcome => panic!("{outcome:?}"),
    }
}
