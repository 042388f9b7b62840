//! Leases that stay with their process after their last use.

mod document;
mod ends;
mod order;
mod recall;
mod runtimes;
mod several;

use std::time::Duration;

use futures::future::join_all;
use leasehold::{Attempt, Error, Lease, Leases};
use tokio::time::{Instant, sleep, timeout};

use super::{Fate, FlakyStore, MOMENT, TTL, is_free, setup};

const IDLE: Duration = Duration::from_secs(60);
const SECOND: Duration = Duration::from_secs(1);

/// How many acquires and releases the store got since the last look.
fn asked(store: &FlakyStore) -> (usize, usize) {
    let calls = store.calls();
    let count = |name| calls.iter().filter(|call| **call == name).count();
    (count("acquire"), count("release"))
}

async fn sticky(leases: &Leases) -> Lease {
    leases.acquire("key", TTL).sticky(IDLE).await.unwrap()
}

async fn plain(leases: &Leases) -> Lease {
    leases.acquire("key", TTL).await.unwrap()
}

/// Another process, with the same store.
fn elsewhere(store: &FlakyStore) -> Leases {
    Leases::new(store.memory.clone())
}

async fn is_held(leases: &Leases) -> bool {
    matches!(
        leases.try_acquire("key", TTL).await.unwrap(),
        Attempt::Held(_)
    )
}

#[tokio::test(start_paused = true)]
async fn only_the_first_acquire_asks_the_store() {
    let (store, leases) = setup();
    let mut last = None;
    for n in 0..100 {
        let lease = if n % 2 == 0 {
            sticky(&leases).await
        } else {
            plain(&leases).await
        };
        assert!(last < Some(lease.fence()), "fences rise");
        last = Some(lease.fence());
        if n % 3 == 0 {
            drop(lease);
        } else {
            lease.release().await.unwrap();
        }
    }
    assert_eq!(asked(&store), (1, 0));
    leases.close().await;
    assert!(is_free(&store).await);
    let next = plain(&elsewhere(&store)).await;
    assert!(
        last < Some(next.fence()),
        "the fence of the next process is above all"
    );
}

#[tokio::test(start_paused = true)]
async fn a_block_of_fences_is_followed_by_another_one() {
    let (store, leases) = setup();
    let mut last = None;
    for _ in 0..10_000 {
        let lease = sticky(&leases).await;
        assert!(last < Some(lease.fence()));
        last = Some(lease.fence());
        lease.release().await.unwrap();
    }
    assert_eq!(asked(&store), (3, 2));
}

#[tokio::test(start_paused = true)]
async fn the_tasks_of_the_process_exclude_each_other_and_come_in_turn() {
    let (store, leases) = setup();
    let held = std::sync::atomic::AtomicBool::new(false);
    let order = parking_lot::Mutex::new(Vec::new());
    let first = sticky(&leases).await;
    let task = async |n: usize| {
        // They begin to wait one after the other.
        sleep(MOMENT * n as u32).await;
        let lease = plain(&leases).await;
        assert!(!held.swap(true, std::sync::atomic::Ordering::SeqCst));
        order.lock().push((n, lease.fence()));
        sleep(SECOND / 10).await;
        held.store(false, std::sync::atomic::Ordering::SeqCst);
        lease.release().await.unwrap();
    };
    let release = async {
        sleep(SECOND).await;
        first.release().await.unwrap();
    };
    let ((), _) = tokio::join!(release, join_all((0..20).map(task)));
    let order = order.into_inner();
    assert!(order.iter().map(|it| it.0).eq(0..20), "{order:?}");
    assert!(order.iter().map(|it| it.1).is_sorted());
    assert_eq!(asked(&store), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn tasks_that_waited_before_the_lease_began_to_stay_get_it_from_memory() {
    let (store, leases) = setup();
    // The answer takes a while, so all tasks wait when the lease begins to stay.
    store.next([Fate::AnswerLate(MOMENT)]);
    let task = async |_| {
        let lease = sticky(&leases).await;
        sleep(SECOND / 10).await;
        lease.release().await.unwrap();
    };
    let start = Instant::now();
    join_all((0..20).map(task)).await;
    // Each task gets its turn as soon as the one before it is done.
    let took = start.elapsed();
    assert!(took <= 2 * SECOND + 2 * MOMENT, "{took:?}");
    assert_eq!(asked(&store), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn a_lease_from_memory_is_renewed_by_the_store_and_kept_alive_without_it() {
    let (store, leases) = setup();
    drop(sticky(&leases).await);
    let lease = leases.acquire("key", 3 * SECOND).await.unwrap();
    for _ in 0..10 {
        // Never at the same instant as a renewal in the background.
        sleep(2 * SECOND - MOMENT).await;
        store.calls();
        lease.renew().await.unwrap();
        assert_eq!(store.calls(), ["renew"]);
    }
    lease.release().await.unwrap();
    let kept = leases
        .acquire("key", 3 * SECOND)
        .keep_alive()
        .await
        .unwrap();
    sleep(10 * TTL).await;
    assert!(kept.is_live());
    // The lease in the store is renewed at each third of its ttl, and the guard adds nothing to that.
    let calls = store.calls();
    let renewals = calls.iter().filter(|call| **call == "renew").count();
    assert!(renewals <= 31, "{renewals}");
    kept.release().await.unwrap();
    assert_eq!(asked(&store), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_has_little_time_left_asks_the_store() {
    let (store, leases) = setup();
    drop(sticky(&leases).await);
    // The lease that stays has at most 30 s, less than half of this.
    let long = leases.acquire("key", 3 * TTL).sticky(IDLE).await.unwrap();
    assert!(long.remaining() > 2 * TTL);
    assert_eq!(asked(&store), (2, 1));
    drop(long);
    plain(&leases).await.release().await.unwrap();
    assert_eq!(asked(&store), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn a_dropped_acquire_leaves_the_queue_of_the_tasks() {
    let (_store, leases) = setup();
    let lease = sticky(&leases).await;
    for _ in 0..10 {
        let waiting = timeout(MOMENT, leases.acquire("key", TTL)).await;
        assert!(waiting.is_err());
    }
    let bounded = leases.acquire("key", TTL).wait_for(SECOND).await;
    assert!(
        matches!(bounded, Err(Error::WaitTimedOut { .. })),
        "{bounded:?}"
    );
    lease.release().await.unwrap();
    plain(&leases).await.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn tasks_that_wait_until_a_time_are_told_who_has_the_key() {
    let (_store, leases) = setup();
    let hold = async {
        let lease = sticky(&leases).await;
        sleep(5 * SECOND).await;
        drop(lease);
    };
    let wait = async |_| {
        sleep(MOMENT / 10).await;
        let waited = leases.acquire("key", TTL).wait_for(SECOND).await;
        assert!(
            matches!(waited, Err(Error::WaitTimedOut { .. })),
            "{waited:?}"
        );
    };
    tokio::join!(hold, join_all((0..3).map(wait)));
}

/// On a runtime with one thread: a task that gets the key from memory all the time waits for nothing.
#[tokio::test(start_paused = true)]
async fn grants_from_memory_let_other_tasks_run() {
    let (_store, leases) = setup();
    let ran = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let runs = ran.clone();
    let other = tokio::spawn(async move {
        loop {
            runs.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
            tokio::task::yield_now().await;
        }
    });
    for _ in 0..10_000 {
        sticky(&leases).await.release().await.unwrap();
    }
    let ran = ran.load(std::sync::atomic::Ordering::SeqCst);
    assert!(ran >= 50, "it ran {ran} times beside 10,000 grants");
    other.abort();
}
