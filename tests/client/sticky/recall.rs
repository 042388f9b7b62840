//! Recalls: another process waits for a key that stays.

use std::{future::IntoFuture, time::Duration};

use futures::future::join_all;
use leasehold::{Attempt, Error, Fence, Key, Leases, Store};
use tokio::time::{Instant, sleep};

use super::{IDLE, SECOND, asked, elsewhere, is_held, plain, sticky};
use crate::{Fate, MOMENT, TTL, is_free, setup, until_free};

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
async fn shared_leases_stay_in_several_processes() {
    let (store, leases) = setup();
    let other = elsewhere(&store);
    let share = async |leases: &Leases| {
        let acquire = leases.acquire("key", TTL);
        acquire.shared().sticky(IDLE).await.unwrap()
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
    // A plain shared lease shows the fence of the one that stays.
    let plain_one = leases.acquire("key", TTL).shared().await.unwrap();
    assert_eq!(asked(&store), (0, 0));
    drop(plain_one);
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
    let reader = acquire.shared().sticky(IDLE).await.unwrap();
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

/// A resource that checks the fence sees it rise, whichever process is granted the key, from memory or by the store.
#[tokio::test(start_paused = true)]
async fn fences_rise_over_processes_and_recalls() {
    let (store, _) = setup();
    let greatest = parking_lot::Mutex::new(Fence::new(0));
    let process = async |n: u64| {
        let leases = Leases::builder(store.memory.clone())
            .sticky(5 * SECOND)
            .build();
        for round in 0..60_u64 {
            let lease = plain(&leases).await;
            {
                let mut greatest = greatest.lock();
                assert!(lease.fence() > *greatest, "round {round} of {n}");
                *greatest = lease.fence();
            }
            sleep(Duration::from_millis((n * 37 + round * 101) % 400)).await;
            drop(lease);
            sleep(Duration::from_millis((n * 53 + round * 211) % 2_000)).await;
        }
    };
    join_all((0..4).map(process)).await;
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
async fn a_store_that_does_not_say_who_waits_gets_the_keys_back() {
    let (store, leases) = setup();
    sticky(&leases).await.release().await.unwrap();
    store.fail_reads(true);
    let took = until_free(&store).await;
    // An outage that is over soon does not matter.
    assert!(took >= 2 * SECOND, "{took:?}");
    assert!(took <= 10 * SECOND, "{took:?}");
}

/// The store does not answer who waits. The key goes back nevertheless when no task has used it for long enough.
#[tokio::test(start_paused = true)]
async fn a_store_that_hangs_does_not_hold_up_what_has_to_go_back() {
    let (store, leases) = setup();
    let idle = 3 * SECOND;
    drop(leases.acquire("key", TTL).sticky(idle).await.unwrap());
    store.hang_on("key");
    let took = until_free(&store).await;
    assert!(took <= idle + SECOND, "{took:?}");
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

#[tokio::test(start_paused = true)]
async fn an_acquire_waits_for_the_release_of_the_lease_that_goes_back() {
    let (store, leases) = setup();
    sticky(&leases).await.release().await.unwrap();
    store.next([Fate::Late(SECOND)]);
    // It needs the document, so the lease goes back. Its release takes a second.
    let first = async {
        let lease = leases.acquire("key", TTL).note("me").await.unwrap();
        lease.release().await.unwrap();
    };
    let second = async {
        sleep(MOMENT).await;
        plain(&leases).await.release().await.unwrap();
    };
    let start = Instant::now();
    tokio::join!(first, second);
    assert!(start.elapsed() >= SECOND);
    let refused = store
        .memory
        .inspect(&Key::new("key").unwrap())
        .await
        .unwrap();
    assert!(refused.unwrap().waiters.is_empty());
    assert!(
        asked(&store).0 <= 4,
        "nobody asked while the release was under way"
    );
}

#[tokio::test(start_paused = true)]
async fn a_key_that_was_waited_for_here_does_not_stay() {
    let (store, leases) = setup();
    let other = elsewhere(&store);
    let held = plain(&other).await;
    let wait = async { sticky(&leases).await.release().await.unwrap() };
    let release = async {
        sleep(SECOND).await;
        held.release().await.unwrap();
    };
    tokio::join!(wait, release);
    assert!(is_free(&store).await, "another process uses the key too");
    sticky(&leases).await.release().await.unwrap();
    assert!(is_free(&store).await, "nor does it stay the next time");
}

#[tokio::test(start_paused = true)]
async fn a_recalled_key_goes_to_the_other_process_before_the_tasks_that_wait_here() {
    let (store, leases) = setup();
    let other = elsewhere(&store);
    let order = parking_lot::Mutex::new(Vec::new());
    let first = sticky(&leases).await;
    let there = async {
        let lease = plain(&other).await;
        order.lock().push("there");
        lease.release().await.unwrap();
    };
    let here = async {
        sleep(MOMENT).await;
        let lease = plain(&leases).await;
        order.lock().push("here");
        lease.release().await.unwrap();
    };
    let release = async {
        // Long enough for the recall, after which the task here waits in the queue of the store too.
        sleep(5 * SECOND).await;
        first.release().await.unwrap();
    };
    tokio::join!(there, here, release);
    assert_eq!(order.into_inner(), ["there", "here"]);
}

/// The second task gets the key in place of the lease of the first, and its own requests are never refused.
#[tokio::test(start_paused = true)]
async fn a_key_that_another_process_has_had_does_not_stay_after_it_was_handed_on() {
    let (store, leases) = setup();
    let held = plain(&elsewhere(&store)).await;
    // Both begin before the first one is refused.
    store.next([Fate::AnswerLate(MOMENT)]);
    let waits = || tokio::spawn(leases.acquire("key", TTL).sticky(IDLE).into_future());
    let (one, two) = (waits(), waits());
    sleep(2 * MOMENT).await;
    held.release().await.unwrap();
    one.await.unwrap().unwrap().release().await.unwrap();
    two.await.unwrap().unwrap().release().await.unwrap();
    assert!(is_free(&store).await);
}

/// The task that waits has asked the store before the lease began to stay, and has taken a place.
#[tokio::test(start_paused = true)]
async fn the_place_of_a_task_of_this_process_recalls_nothing() {
    let (store, leases) = setup();
    store.next([Fate::AnswerLate(MOMENT); 2]);
    let start = Instant::now();
    let first = async {
        let first = leases.try_acquire("key", TTL).sticky(IDLE).await.unwrap();
        let Attempt::Acquired(first) = first else {
            panic!("the key is free");
        };
        sleep(3 * SECOND).await;
        first.release().await.unwrap();
    };
    let second = async { plain(&leases).await.release().await.unwrap() };
    tokio::join!(first, second);
    let took = start.elapsed();
    assert!(took <= 3 * SECOND + 3 * MOMENT, "{took:?}");
    sleep(5 * SECOND).await;
    plain(&leases).await.release().await.unwrap();
    assert_eq!(asked(&store), (2, 0), "it stays");
}

/// The attempt is refused behind a task of its own process.
#[tokio::test(start_paused = true)]
async fn a_task_of_this_process_that_waits_does_not_keep_the_key_from_staying() {
    let (store, leases) = setup();
    let held = plain(&leases).await;
    let waits = tokio::spawn(leases.acquire("key", TTL).into_future());
    sleep(MOMENT).await;
    let refused = leases.try_acquire("key", TTL).sticky(IDLE).await.unwrap();
    assert!(matches!(refused, Attempt::Held(_)));
    held.release().await.unwrap();
    waits.await.unwrap().unwrap().release().await.unwrap();
    sticky(&leases).await.release().await.unwrap();
    assert!(!is_free(&store).await, "it stays");
}

/// The lease was not acquired in the queue of the key, so its grant does not concern the queue otherwise.
#[tokio::test(start_paused = true)]
async fn a_lease_that_begins_to_stay_wakes_the_task_that_waits() {
    let (store, leases) = setup();
    store.next([
        Fate::AnswerLate(3 * SECOND),
        Fate::AnswerLate(Duration::ZERO),
    ]);
    let first = async {
        let first = leases.try_acquire("key", TTL).sticky(IDLE).await.unwrap();
        assert!(matches!(first, Attempt::Acquired(_)));
        Instant::now()
    };
    let second = async {
        plain(&leases).await.release().await.unwrap();
        Instant::now()
    };
    let (first, second) = tokio::join!(first, second);
    assert!(second <= first + MOMENT, "{:?}", second - first);
}
