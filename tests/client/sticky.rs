//! Leases that stay with their process after their last use.

use std::time::Duration;

use futures::future::join_all;
use leasehold::{Attempt, Error, Fence, Lease, Leases, LossReason, MemoryStore, Resumed, Upgrade};
use tokio::time::{Instant, sleep, timeout};

use super::{Fate, FlakyStore, MOMENT, PATIENCE, TTL, is_free, setup, until_free};

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
    let task = async |_| {
        let lease = sticky(&leases).await;
        sleep(SECOND / 10).await;
        lease.release().await.unwrap();
    };
    join_all((0..20).map(task)).await;
    assert_eq!(asked(&store), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn a_process_that_waits_gets_the_key_and_it_does_not_stay_for_a_while() {
    let (store, leases) = setup();
    sticky(&leases).await.release().await.unwrap();
    let other = elsewhere(&store);
    assert!(is_held(&other).await, "it stays here");
    let start = Instant::now();
    let got = plain(&other).await;
    // The look, and the pause of the process that waits.
    assert!(start.elapsed() <= 3 * SECOND, "{:?}", start.elapsed());
    drop(got);
    sleep(SECOND).await;
    store.calls();
    for _ in 0..10 {
        sticky(&leases).await.release().await.unwrap();
    }
    assert_eq!(asked(&store), (10, 10), "it does not stay");
    assert!(!is_held(&other).await);
    sleep(31 * SECOND).await;
    store.calls();
    for _ in 0..10 {
        sticky(&leases).await.release().await.unwrap();
    }
    assert_eq!(asked(&store), (1, 0), "it stays again");
}

#[tokio::test(start_paused = true)]
async fn a_key_in_use_is_recalled_from_the_tasks_that_wait_here_too() {
    let (store, leases) = setup();
    let first = sticky(&leases).await;
    let here = async |_| {
        for _ in 0..200 {
            let lease = plain(&leases).await;
            sleep(SECOND / 20).await;
            lease.release().await.unwrap();
        }
    };
    let other = elsewhere(&store);
    let start = Instant::now();
    let there = async {
        let lease = plain(&other).await;
        let took = start.elapsed();
        lease.release().await.unwrap();
        took
    };
    drop(first);
    let (_, took) = tokio::join!(join_all((0..3).map(here)), there);
    assert!(took <= 3 * SECOND, "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn it_goes_back_when_nobody_has_used_it_for_long_enough() {
    let (store, leases) = setup();
    sticky(&leases).await.release().await.unwrap();
    sleep(IDLE - 2 * SECOND).await;
    assert!(!is_free(&store).await);
    plain(&leases).await.release().await.unwrap();
    sleep(IDLE - 2 * SECOND).await;
    assert!(!is_free(&store).await, "it was used meanwhile");
    assert!(until_free(&store).await <= 4 * SECOND);
}

#[tokio::test(start_paused = true)]
async fn a_lease_from_memory_ends_at_its_own_ttl_and_the_key_goes_on() {
    let (store, leases) = setup();
    let short = SECOND;
    let stuck = leases.acquire("key", 2 * TTL).sticky(IDLE).await.unwrap();
    drop(stuck);
    let stuck = leases.acquire("key", short).await.unwrap();
    assert_eq!(asked(&store), (1, 0));
    let start = Instant::now();
    let next = plain(&leases).await;
    assert_eq!(start.elapsed(), short);
    assert!(!stuck.is_live() && next.is_live() && stuck.fence() < next.fence());
    assert!(matches!(stuck.lost().await, LossReason::Expired));
    assert!(matches!(stuck.renew().await, Err(Error::Lost { .. })));
    assert!(matches!(stuck.release().await, Err(Error::Lost { .. })));
    assert!(
        next.is_live(),
        "the late release is not that of the next lease"
    );
    next.release().await.unwrap();
    assert_eq!(asked(&store), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn a_lease_from_memory_is_renewed_and_kept_alive_without_the_store() {
    let (store, leases) = setup();
    drop(sticky(&leases).await);
    let lease = leases.acquire("key", 3 * SECOND).await.unwrap();
    for _ in 0..10 {
        sleep(2 * SECOND).await;
        lease.renew().await.unwrap();
    }
    lease.release().await.unwrap();
    let kept = leases
        .acquire("key", 3 * SECOND)
        .keep_alive()
        .await
        .unwrap();
    sleep(10 * TTL).await;
    assert!(kept.is_live());
    kept.release().await.unwrap();
    assert_eq!(asked(&store), (1, 0));
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
async fn nothing_is_granted_here_after_the_lease_is_lost() {
    let (store, leases) = setup();
    let lease = leases
        .acquire("key", TTL)
        .sticky(IDLE)
        .keep_alive()
        .await
        .unwrap();
    let evicted = elsewhere(&store).evict("key").await.unwrap().unwrap();
    assert_eq!(evicted.evicted.len(), 1);
    // The next renewal tells it.
    let reason = timeout(PATIENCE, lease.lost()).await.unwrap();
    assert!(matches!(reason, LossReason::TakenOver), "{reason:?}");
    let fence = lease.fence();
    let next = plain(&leases).await;
    assert!(next.fence() > fence);
    assert!(matches!(lease.release().await, Err(Error::Lost { .. })));
    assert!(next.is_live());
    next.release().await.unwrap();
    assert!(is_free(&store).await);
}

#[tokio::test(start_paused = true)]
async fn an_eviction_by_this_process_ends_it_at_once() {
    let (store, leases) = setup();
    let lease = sticky(&leases).await;
    leases.evict("key").await.unwrap();
    assert!(!lease.is_live());
    store.calls();
    let next = plain(&leases).await;
    assert_eq!(asked(&store).0, 1);
    assert!(next.fence() > lease.fence());
}

#[tokio::test(start_paused = true)]
async fn a_store_that_does_not_answer_ends_it() {
    let (store, leases) = setup();
    let lease = leases
        .acquire("key", TTL)
        .sticky(IDLE)
        .keep_alive()
        .await
        .unwrap();
    store.next(vec![Fate::NotSent; 1_000]);
    let reason = timeout(PATIENCE, lease.lost()).await.unwrap();
    assert!(matches!(reason, LossReason::Unreachable(_)), "{reason:?}");
    let late = timeout(SECOND, leases.acquire("key", TTL)).await;
    assert!(late.is_err(), "it waits for the store");
}

#[tokio::test(start_paused = true)]
async fn a_close_ends_it() {
    let (store, leases) = setup();
    let lease = sticky(&leases).await;
    drop(leases.acquire("other", TTL).sticky(IDLE).await.unwrap());
    let waiting = leases.acquire("key", TTL);
    let (late, ()) = tokio::join!(waiting, leases.close());
    assert!(matches!(late, Err(Error::Closed)), "{late:?}");
    assert!(!lease.is_live());
    assert!(matches!(lease.lost().await, LossReason::Closed));
    assert!(is_free(&store).await);
    let late = leases.try_acquire("other", TTL).await;
    assert!(matches!(late, Err(Error::Closed)), "{late:?}");
    assert!(matches!(lease.release().await, Err(Error::Lost { .. })));
}

#[tokio::test(start_paused = true)]
async fn the_drop_of_the_last_handle_releases_it() {
    let (store, leases) = setup();
    let lease = sticky(&leases).await;
    drop(leases);
    sleep(10 * SECOND).await;
    assert!(!is_free(&store).await, "the guard holds it");
    drop(lease);
    assert!(until_free(&store).await <= SECOND);
}

#[tokio::test(start_paused = true)]
async fn a_maximum_hold_ends_one_lease_from_memory_and_not_the_stay() {
    let (store, leases) = setup();
    drop(sticky(&leases).await);
    let acquire = leases.acquire("key", 5 * SECOND).keep_alive();
    let held = acquire.max_hold(10 * SECOND).await.unwrap();
    let start = Instant::now();
    assert!(matches!(held.lost().await, LossReason::HeldTooLong));
    assert_eq!(start.elapsed(), 10 * SECOND);
    let next = plain(&leases).await;
    assert!(next.fence() > held.fence());
    assert_eq!(asked(&store), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn what_needs_the_document_asks_the_store() {
    let (store, leases) = setup();
    type Ask = fn(&Leases) -> leasehold::TryAcquire;
    let asks: [(&str, Ask); 5] = [
        ("min_hold", |it| it.try_acquire("key", TTL).min_hold(MOMENT)),
        ("owner", |it| it.try_acquire("key", TTL).owner("me")),
        ("note", |it| it.try_acquire("key", TTL).note("note")),
        ("permits", |it| it.try_acquire("key", TTL).permits(1, 2)),
        ("permit", |it| it.try_acquire("key", TTL).permits(1, 1)),
    ];
    for (name, ask) in asks {
        drop(sticky(&leases).await);
        store.calls();
        let Attempt::Acquired(lease) = ask(&leases).await.unwrap() else {
            panic!("{name}: it was in the way of itself");
        };
        assert_eq!(asked(&store), (1, 1), "{name}");
        sleep(SECOND).await;
        lease.release().await.unwrap();
        until_free(&store).await;
    }
    drop(sticky(&leases).await);
    let once = leases.once("key", leasehold::Tick::counter(7));
    let ran = once.run(async |_| Ok::<_, std::io::Error>(())).await;
    assert!(matches!(ran, Ok(leasehold::Once::Ran(()))), "{ran:?}");
    assert!(leases.last_done("key").await.unwrap().is_some());
}

#[tokio::test(start_paused = true)]
async fn a_request_that_needs_the_document_waits_for_the_holder() {
    let (_store, leases) = setup();
    let lease = sticky(&leases).await;
    let waiting = async { leases.acquire("key", TTL).min_hold(MOMENT).await.unwrap() };
    let start = Instant::now();
    let release = async {
        sleep(5 * SECOND).await;
        assert!(lease.is_live());
        lease.release().await.unwrap();
    };
    let (next, ()) = tokio::join!(waiting, release);
    assert!(start.elapsed() >= 5 * SECOND);
    drop(next);
}

#[tokio::test(start_paused = true)]
async fn a_reentrant_lease_enters_the_lease_from_memory() {
    let (store, leases) = setup();
    let outer = sticky(&leases).await;
    let inner = leases.acquire("key", TTL).reentrant().await.unwrap();
    assert_eq!(inner.fence(), outer.fence());
    drop(outer);
    let waiting = timeout(SECOND, leases.acquire("key", TTL)).await;
    assert!(
        waiting.is_ok(),
        "the reentrant lease takes no turn of its own"
    );
    drop((inner, waiting));
    assert_eq!(asked(&store), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn shared_leases_are_granted_beside_each_other_with_fences() {
    let (store, leases) = setup();
    drop(sticky(&leases).await);
    let share = async || leases.acquire("key", TTL).shared().await.unwrap();
    let (one, two) = (share().await, share().await);
    assert!(one.fence() < two.fence());
    assert!(is_held(&leases).await);
    let Upgrade::Held(held) = one.upgrade().await.unwrap() else {
        panic!("two readers");
    };
    assert!(!held.holders().is_empty());
    drop(two);
    assert_eq!(asked(&store), (1, 0));
    let before = one.fence();
    assert_eq!(one.upgrade().await.unwrap(), Upgrade::Exclusive);
    assert!(one.fence() > before, "an upgrade has a new fence");
    let fence = one.fence();
    one.release().await.unwrap();
    assert!(
        is_free(&store).await,
        "the upgrade took the lease for itself"
    );
    assert!(plain(&elsewhere(&store)).await.fence() > fence);
}

#[tokio::test(start_paused = true)]
async fn a_downgrade_lets_readers_of_other_processes_in() {
    let (store, leases) = setup();
    let lease = sticky(&leases).await;
    let fence = lease.fence();
    assert_eq!(lease.upgrade().await.unwrap(), Upgrade::Exclusive);
    lease.downgrade().await.unwrap();
    assert_eq!(
        (lease.mode(), lease.fence()),
        (leasehold::Mode::Shared, fence)
    );
    let reader = elsewhere(&store)
        .acquire("key", TTL)
        .shared()
        .await
        .unwrap();
    assert!(reader.fence() > fence);
    lease.release().await.unwrap();
    reader.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_ticket_takes_the_lease_to_another_process() {
    let (store, leases) = setup();
    let lease = sticky(&leases).await;
    let fence = lease.fence();
    let ticket = lease.into_ticket();
    assert!(ticket.fence() >= fence);
    let other = elsewhere(&store);
    let Resumed::Live(resumed) = other.resume(&ticket).await.unwrap() else {
        panic!("gone");
    };
    assert!(is_held(&leases).await, "nothing is granted here any more");
    assert_eq!(resumed.fence(), ticket.fence());
    resumed.release().await.unwrap();
    assert!(plain(&leases).await.fence() > ticket.fence());
}

#[tokio::test(start_paused = true)]
async fn a_detached_lease_holds_the_key_until_its_ttl_is_over() {
    let (store, leases) = setup();
    sticky(&leases).await.detach();
    assert!(is_held(&leases).await);
    let took = until_free(&store).await;
    assert!(took > TTL / 2 && took <= TTL, "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn the_least_recently_used_key_goes_back_if_too_many_stay() {
    let leases = Leases::builder(MemoryStore::new()).sticky(IDLE).build();
    let key = |n: usize| format!("k{n}");
    for n in 0..4_096 {
        drop(leases.acquire(key(n), TTL).await.unwrap());
        if n % 1_024 == 0 {
            sleep(MOMENT).await;
        }
    }
    sleep(MOMENT).await;
    drop(leases.acquire(key(0), TTL).await.unwrap());
    drop(leases.acquire("another", TTL).await.unwrap());
    sleep(MOMENT).await;
    let free = async |n| {
        let state = leases.inspect(key(n)).await.unwrap().unwrap();
        state.is_free()
    };
    assert!(!free(0).await, "it was used");
    let mut gone = 0;
    for n in 0..4_096 {
        gone += usize::from(free(n).await);
    }
    assert_eq!(gone, 1);
}

#[tokio::test(start_paused = true)]
async fn a_key_that_stays_idle_says_so() {
    let (store, leases) = setup();
    let lease = sticky(&leases).await;
    let other = elsewhere(&store);
    let idle = async || match other.try_acquire("key", TTL).await.unwrap() {
        Attempt::Held(held) => held.holders()[0].idle_since.is_some(),
        Attempt::Acquired(_) => panic!("it stays"),
    };
    sleep(TTL / 2).await;
    assert!(!idle().await);
    lease.release().await.unwrap();
    sleep(TTL / 2).await;
    assert!(idle().await, "a renewal has said it");
    let lease = plain(&leases).await;
    sleep(TTL / 2).await;
    assert!(!idle().await);
    drop(lease);
}

#[tokio::test(start_paused = true)]
async fn shared_leases_stay_in_several_processes() {
    let (store, leases) = setup();
    let other = elsewhere(&store);
    let share = async |leases: &Leases| {
        let acquire = leases.acquire("key", TTL);
        acquire.sticky_shared(IDLE).await.unwrap()
    };
    for _ in 0..10 {
        let (one, two) = (share(&leases).await, share(&leases).await);
        let three = share(&other).await;
        assert!(one.is_live() && two.is_live() && three.is_live());
        one.release().await.unwrap();
        drop(two);
        three.release().await.unwrap();
    }
    assert_eq!(asked(&store), (1, 0));
    // A plain shared lease has a fence, so the store grants it, beside that which stays.
    let fenced = leases.acquire("key", TTL).shared().await.unwrap();
    assert_eq!(asked(&store), (1, 0));
    drop(fenced);
    // A writer gets the key from both.
    let start = Instant::now();
    let writer = plain(&elsewhere(&store)).await;
    assert!(start.elapsed() <= 4 * SECOND, "{:?}", start.elapsed());
    drop(writer);
}

#[tokio::test(start_paused = true)]
async fn a_writer_of_the_same_process_gets_the_key_from_its_readers() {
    let (store, leases) = setup();
    let acquire = leases.acquire("key", TTL);
    let reader = acquire.sticky_shared(IDLE).await.unwrap();
    let write = async {
        let lease = plain(&leases).await;
        lease.release().await.unwrap();
    };
    let read = async {
        sleep(SECOND).await;
        assert!(reader.is_live());
        reader.release().await.unwrap();
    };
    tokio::join!(write, read);
    assert!(is_free(&store).await);
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
async fn processes_that_share_a_key_are_not_slowed_down_for_long() {
    let (store, leases) = setup();
    let other = elsewhere(&store);
    let work = async |leases: &Leases| {
        let mut count = 0;
        let start = Instant::now();
        while start.elapsed() < 120 * SECOND {
            let lease = sticky(leases).await;
            sleep(MOMENT).await;
            lease.release().await.unwrap();
            count += 1;
        }
        count
    };
    let (here, there) = tokio::join!(work(&leases), work(&other));
    let total = here + there;
    let share = f64::from(here) / f64::from(total);
    assert!((0.3..0.7).contains(&share), "{here} and {there}");
}

/// The work of a task that must not be interrupted by another one, beside guards that see rising fences.
#[tokio::test(start_paused = true)]
async fn fences_rise_over_processes_recalls_and_evictions() {
    let (store, _) = setup();
    let greatest = parking_lot::Mutex::new(Fence::new(0));
    let process = async |n: u64| {
        let leases = Leases::builder(store.memory.clone())
            .sticky(5 * SECOND)
            .build();
        for round in 0..60_u64 {
            let lease = plain(&leases).await;
            if lease.is_live() {
                let mut greatest = greatest.lock();
                assert!(lease.fence() > *greatest, "round {round} of {n}");
                *greatest = lease.fence();
            }
            sleep(Duration::from_millis((n * 37 + round * 101) % 400)).await;
            drop(lease);
            sleep(Duration::from_millis((n * 53 + round * 211) % 2_000)).await;
        }
    };
    let operator = async {
        for _ in 0..20 {
            sleep(Duration::from_millis(4_321)).await;
            let _ = elsewhere(&store).evict("key").await.unwrap();
        }
    };
    tokio::join!(join_all((0..4).map(process)), operator);
}

#[tokio::test(start_paused = true)]
async fn a_holder_that_hangs_loses_a_recalled_key_at_its_own_ttl() {
    let (store, leases) = setup();
    let start = Instant::now();
    let stuck = sticky(&leases).await;
    let next = plain(&elsewhere(&store)).await;
    let took = start.elapsed();
    assert!(took >= TTL && took <= TTL + 2 * SECOND, "{took:?}");
    assert!(!stuck.is_live() && next.fence() > stuck.fence());
    assert!(matches!(stuck.release().await, Err(Error::Lost { .. })));
    assert!(next.is_live());
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

#[tokio::test(start_paused = true)]
async fn a_store_that_does_not_say_who_waits_gets_the_keys_back() {
    let (store, leases) = setup();
    sticky(&leases).await.release().await.unwrap();
    store.fail_reads(true);
    let took = until_free(&store).await;
    assert!(took <= 10 * SECOND, "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn tasks_that_use_up_the_fences_take_no_place_in_the_queue_of_the_key() {
    let (store, leases) = setup();
    // Each answer takes a while, so that all tasks see that the fences are used up before the release is answered.
    store.next(vec![Fate::AnswerLate(MOMENT); 100]);
    let task = async |_| {
        for _ in 0..2_000 {
            let lease = sticky(&leases).await;
            tokio::task::yield_now().await;
            lease.release().await.unwrap();
        }
    };
    join_all((0..8).map(task)).await;
    // 16,000 grants take four blocks.
    assert_eq!(asked(&store), (4, 3));
}
