//! Several tasks use a key that stays, and one of them has lost it, gives it away, or does not go on.

use std::{future::IntoFuture, pin::pin};

use futures::future::join_all;
use leasehold::{Attempt, Error, LossReason, Mode, Resumed, Upgrade};
use tokio::time::{Instant, sleep, timeout};

use super::{IDLE, SECOND, asked, elsewhere, is_held, plain, sticky};
use crate::{Fate, MOMENT, PATIENCE, TTL, is_free, setup, until_free};

#[tokio::test(start_paused = true)]
async fn the_ticket_of_a_lease_that_is_lost_is_of_no_lease() {
    let (store, leases) = setup();
    drop(leases.acquire("key", 2 * TTL).sticky(IDLE).await.unwrap());
    let stuck = leases.acquire("key", SECOND).await.unwrap();
    let next = plain(&leases).await;
    let ticket = stuck.into_ticket();
    let resumed = elsewhere(&store).resume(&ticket).await.unwrap();
    assert!(!matches!(resumed, Resumed::Live(_)), "{resumed:?}");
    assert!(next.is_live());
    next.release().await.unwrap();
    plain(&leases).await.release().await.unwrap();
    assert_eq!(asked(&store).0, 1, "the key stays");
}

#[tokio::test(start_paused = true)]
async fn a_lost_lease_that_is_detached_keeps_nothing() {
    let (store, leases) = setup();
    drop(leases.acquire("key", 2 * TTL).sticky(IDLE).await.unwrap());
    let stuck = leases.acquire("key", SECOND).await.unwrap();
    let next = plain(&leases).await;
    stuck.detach();
    next.release().await.unwrap();
    let next = timeout(PATIENCE, plain(&leases)).await.unwrap();
    next.release().await.unwrap();
    assert_eq!(asked(&store).0, 1, "the key stays");
}

#[tokio::test(start_paused = true)]
async fn one_of_several_leases_that_is_detached_keeps_the_key_for_a_ttl() {
    let (store, leases) = setup();
    drop(sticky(&leases).await);
    let shared = async || leases.acquire("key", TTL).shared().await.unwrap();
    let (one, two) = (shared().await, shared().await);
    one.detach();
    assert!(two.is_live());
    two.release().await.unwrap();
    assert!(is_held(&leases).await);
    let took = until_free(&store).await;
    assert!(took <= TTL, "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn the_ticket_of_one_of_several_leases_is_of_no_lease() {
    let (store, leases) = setup();
    drop(sticky(&leases).await);
    let shared = async || leases.acquire("key", TTL).shared().await.unwrap();
    let (one, two) = (shared().await, shared().await);
    let ticket = one.into_ticket();
    let other = elsewhere(&store);
    let resumed = other.resume(&ticket).await.unwrap();
    assert!(!matches!(resumed, Resumed::Live(_)), "{resumed:?}");
    assert!(two.is_live() && is_held(&other).await);
    // The last one takes the lease in the store with it.
    let ticket = two.into_ticket();
    let resumed = other.resume(&ticket).await.unwrap();
    assert!(matches!(resumed, Resumed::Live(_)), "{resumed:?}");
}

#[tokio::test(start_paused = true)]
async fn a_downgrade_that_is_not_waited_for_changes_the_mode() {
    let (store, leases) = setup();
    let lease = sticky(&leases).await;
    store.next([Fate::AnswerLate(MOMENT)]);
    assert!(timeout(MOMENT / 2, lease.downgrade()).await.is_err());
    sleep(MOMENT).await;
    assert_eq!(lease.mode(), Mode::Shared);
    let other = elsewhere(&store);
    let reader = other.try_acquire("key", TTL).shared().await.unwrap();
    assert!(matches!(reader, Attempt::Acquired(_)));
    let upgrade = lease.upgrade().await.unwrap();
    assert!(matches!(upgrade, Upgrade::Held(_)), "{upgrade:?}");
}

#[tokio::test(start_paused = true)]
async fn a_lost_lease_does_not_end_the_stay_of_the_next_one() {
    let (store, leases) = setup();
    drop(leases.acquire("key", 2 * TTL).sticky(IDLE).await.unwrap());
    let stuck = leases.acquire("key", SECOND).await.unwrap();
    plain(&leases).await.release().await.unwrap();
    assert!(matches!(stuck.downgrade().await, Err(Error::Lost { .. })));
    assert!(matches!(stuck.upgrade().await, Err(Error::Lost { .. })));
    let outer = plain(&leases).await;
    assert!(matches!(stuck.upgrade().await, Err(Error::Lost { .. })));
    let inner = leases.acquire("key", TTL).reentrant().await.unwrap();
    inner.release().await.unwrap();
    outer.release().await.unwrap();
    assert_eq!(asked(&store), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn the_upgrade_of_an_exclusive_lease_changes_nothing_after_a_recall_either() {
    let (store, leases) = setup();
    let lease = sticky(&leases).await;
    let fence = lease.fence();
    let other = elsewhere(&store);
    let wait = async { plain(&other).await.release().await.unwrap() };
    let work = async {
        // The holder hears of the process that waits.
        sleep(3 * SECOND).await;
        assert_eq!(lease.upgrade().await.unwrap(), Upgrade::Exclusive);
        assert_eq!(lease.fence(), fence);
        lease.release().await.unwrap();
    };
    tokio::join!(wait, work);
    assert!(!store.calls().contains(&"convert"));
}

#[tokio::test(start_paused = true)]
async fn a_release_by_the_name_of_the_owner_ends_it() {
    let (store, leases) = setup();
    sticky(&leases).await.release().await.unwrap();
    let lease = plain(&leases).await;
    let released = leases.release_owner(leases.owner()).await.unwrap();
    assert_eq!(released, 1);
    assert!(!lease.is_live());
    let _next = plain(&elsewhere(&store)).await;
    assert!(is_held(&leases).await, "nothing is granted from memory");
    let reason = timeout(PATIENCE, lease.lost()).await.unwrap();
    assert!(matches!(reason, LossReason::TakenOver), "{reason:?}");
}

/// The turn has come to a task that does not take it.
#[tokio::test(start_paused = true)]
async fn a_future_that_is_not_polled_any_more_keeps_the_key_from_nobody_for_long() {
    let (_store, leases) = setup();
    let first = leases.acquire("key", TTL).sticky(60 * IDLE).await.unwrap();
    let mut not_polled = pin!(leases.acquire("key", TTL).into_future());
    assert!(futures::poll!(not_polled.as_mut()).is_pending());
    first.release().await.unwrap();
    let start = Instant::now();
    let next = plain(&leases).await;
    assert!(start.elapsed() <= 2 * SECOND, "{:?}", start.elapsed());
    next.release().await.unwrap();
    not_polled.await.unwrap().release().await.unwrap();
}

/// As before, but the task behind the one that does not take its turn waits since before the turn came.
#[tokio::test(start_paused = true)]
async fn a_task_that_waits_behind_a_future_that_is_not_polled_waits_no_longer() {
    let (_store, leases) = setup();
    let first = leases.acquire("key", TTL).sticky(60 * IDLE).await.unwrap();
    let mut not_polled = pin!(leases.acquire("key", TTL).into_future());
    assert!(futures::poll!(not_polled.as_mut()).is_pending());
    let start = Instant::now();
    let release = async {
        sleep(SECOND).await;
        first.release().await.unwrap();
    };
    let (next, ()) = tokio::join!(plain(&leases), release);
    assert!(start.elapsed() <= 4 * SECOND, "{:?}", start.elapsed());
    next.release().await.unwrap();
}

/// The request of the second task needs the document, and takes no place among the processes that wait.
#[tokio::test(start_paused = true)]
async fn a_task_that_needs_the_document_ends_a_stay_that_began_while_it_waited() {
    let (store, leases) = setup();
    store.next([Fate::AnswerLate(MOMENT)]);
    let start = Instant::now();
    let first = async { sticky(&leases).await.release().await.unwrap() };
    let second = async {
        let asked = leases.acquire("key", TTL).note("another").barging();
        asked.await.unwrap().release().await.unwrap();
    };
    let third = async { plain(&leases).await.release().await.unwrap() };
    tokio::join!(first, second, third);
    assert!(start.elapsed() <= 5 * SECOND, "{:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn tasks_that_waited_before_the_lease_began_to_stay_come_before_later_ones() {
    let (store, leases) = setup();
    store.next([Fate::AnswerLate(4 * MOMENT)]);
    let order = parking_lot::Mutex::new(Vec::new());
    let task = async |n: u32| {
        // The last two ask when the first one has had the key for a while.
        sleep(if n < 6 {
            MOMENT / 10 * n
        } else {
            5 * MOMENT + n * MOMENT / 10
        })
        .await;
        let lease = sticky(&leases).await;
        order.lock().push(n);
        let mut another = pin!(leases.acquire("key", TTL).into_future());
        if n == 0 {
            // This one asks at once, before any of those that wait.
            assert!(futures::poll!(another.as_mut()).is_pending());
        }
        sleep(SECOND / 10).await;
        lease.release().await.unwrap();
        if n == 0 {
            let lease = another.await.unwrap();
            order.lock().push(100);
            lease.release().await.unwrap();
        }
    };
    join_all((0..8).map(task)).await;
    let order = order.into_inner();
    assert_eq!(order, [0, 1, 2, 3, 4, 5, 100, 6, 7]);
    assert_eq!(asked(&store), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn a_set_that_is_refused_keeps_none_of_its_keys() {
    let (store, leases) = setup();
    let other = elsewhere(&store);
    let held = other.acquire("other", 10 * TTL).await.unwrap();
    drop(sticky(&leases).await);
    for wait in [std::time::Duration::ZERO, SECOND] {
        let set = leases.acquire_all(["key", "other"], TTL).sticky(IDLE);
        let refused = set.wait_for(wait).await.unwrap_err();
        assert!(matches!(refused, Error::WaitTimedOut { .. }), "{refused:?}");
        assert!(is_free(&store).await);
    }
    held.release().await.unwrap();
}

/// Shared leases of one key stay one after the other, and each has a guard that hangs.
#[tokio::test(start_paused = true)]
async fn every_lease_that_has_ended_goes_back_at_the_ttl_of_a_guard_that_hangs() {
    let (store, leases) = setup();
    let mut hung = Vec::new();
    for _ in 0..3 {
        let shared = leases.acquire("key", TTL).sticky_shared(IDLE).await;
        hung.push(shared.unwrap());
        assert!(is_held(&leases).await, "a writer ends the stay of readers");
    }
    let took = until_free(&store).await;
    assert!(took <= TTL + 2 * SECOND, "{took:?}");
    drop(hung);
}
