//! Several tasks use a key that stays, and one of them has lost it, gives it away, or does not go on.

use std::{future::IntoFuture, pin::pin, sync::Arc};

use leasehold::{Attempt, Error, Lease, Leases, LossReason, Mode, Resumed, Upgrade};
use parking_lot::Mutex;
use tokio::time::{Instant, sleep, timeout};

use super::{IDLE, SECOND, asked, elsewhere, is_held, plain, sticky};
use crate::{Fate, MOMENT, PATIENCE, TTL, is_free, setup, until_free};

/// A lease from memory that has expired, and the one of the next task.
async fn lost_and_next(leases: &Leases) -> (Lease, Lease) {
    drop(leases.acquire("key", 2 * TTL).sticky(IDLE).await.unwrap());
    let lost = leases.acquire("key", SECOND).await.unwrap();
    let next = timeout(PATIENCE, plain(leases)).await.unwrap();
    (lost, next)
}

#[tokio::test(start_paused = true)]
async fn the_ticket_of_a_lease_that_is_lost_is_of_no_lease() {
    let (store, leases) = setup();
    let (lost, next) = lost_and_next(&leases).await;
    let ticket = lost.into_ticket();
    let resumed = elsewhere(&store).resume(&ticket).await.unwrap();
    assert!(!matches!(resumed, Resumed::Live(_)), "{resumed:?}");
    assert!(next.is_live());
    next.release().await.unwrap();
    plain(&leases).await.release().await.unwrap();
    assert_eq!(asked(&store).0, 1, "the key stays");
}

#[tokio::test(start_paused = true)]
async fn the_ticket_of_a_lease_that_is_lost_is_of_no_lease_although_the_key_is_free() {
    let (store, leases) = setup();
    drop(leases.acquire("key", 2 * TTL).sticky(IDLE).await.unwrap());
    let lost = leases.acquire("key", SECOND).await.unwrap();
    sleep(SECOND).await;
    let ticket = lost.into_ticket();
    let resumed = elsewhere(&store).resume(&ticket).await.unwrap();
    assert!(!matches!(resumed, Resumed::Live(_)), "{resumed:?}");
}

#[tokio::test(start_paused = true)]
async fn a_lost_lease_that_is_detached_keeps_nothing() {
    let (store, leases) = setup();
    let (lost, next) = lost_and_next(&leases).await;
    let detached = lost.detach();
    assert!(matches!(detached, Err(Error::Lost { .. })), "{detached:?}");
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
    one.detach().unwrap();
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

/// The store carries out the downgrade, but its answer has not come.
#[tokio::test(start_paused = true)]
async fn an_upgrade_after_a_downgrade_without_an_answer_asks_the_store() {
    let (store, leases) = setup();
    let lease = sticky(&leases).await;
    store.next([Fate::AnswerLate(2 * TTL)]);
    assert!(timeout(MOMENT, lease.downgrade()).await.is_err());
    let other = elsewhere(&store);
    let reader = other.try_acquire("key", TTL).shared().await.unwrap();
    assert!(matches!(reader, Attempt::Acquired(_)));
    let upgrade = lease.upgrade().await.unwrap();
    assert!(matches!(upgrade, Upgrade::Held(_)), "{upgrade:?}");
}

#[tokio::test(start_paused = true)]
async fn a_lost_lease_does_not_end_the_stay_of_the_next_one() {
    let (store, leases) = setup();
    let (lost, next) = lost_and_next(&leases).await;
    next.release().await.unwrap();
    assert!(matches!(lost.downgrade().await, Err(Error::Lost { .. })));
    assert!(matches!(lost.upgrade().await, Err(Error::Lost { .. })));
    let outer = plain(&leases).await;
    assert!(matches!(lost.upgrade().await, Err(Error::Lost { .. })));
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

#[tokio::test(start_paused = true)]
async fn a_release_by_the_name_of_another_owner_does_not_end_it() {
    let (store, leases) = setup();
    let shared = leases.acquire("key", TTL).shared().sticky(IDLE).await;
    let shared = shared.unwrap();
    let other = elsewhere(&store);
    let theirs = other.acquire("key", TTL).shared().owner("other");
    let theirs = theirs.await.unwrap();
    assert_eq!(leases.release_owner("other").await.unwrap(), 1);
    assert!(shared.is_live());
    shared.release().await.unwrap();
    store.calls();
    let again = leases.acquire("key", TTL).shared().sticky(IDLE).await;
    again.unwrap().release().await.unwrap();
    assert_eq!(asked(&store), (0, 0), "it stays");
    drop(theirs);
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
    store.next([Fate::AnswerLate(MOMENT)]);
    let order = Arc::new(Mutex::new(Vec::new()));
    let take = {
        let (leases, order) = (leases.clone(), order.clone());
        move |n: u32| {
            let (leases, order) = (leases.clone(), order.clone());
            async move {
                let lease = sticky(&leases).await;
                order.lock().push(n);
                lease
            }
        }
    };
    let takes = take.clone();
    let mut tasks = vec![tokio::spawn(async move {
        let lease = takes(0).await;
        // The task asks again at once, while those that wait are only about to ask.
        let mut again = Box::pin(takes(6));
        assert!(futures::poll!(again.as_mut()).is_pending());
        lease.release().await.unwrap();
        again.await.release().await.unwrap();
    })];
    for n in 1..6 {
        tokio::task::yield_now().await;
        let taken = take(n);
        tasks.push(tokio::spawn(async move {
            let lease = taken.await;
            sleep(SECOND / 10).await;
            lease.release().await.unwrap();
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
    let order = order.lock().clone();
    assert!(order.iter().copied().eq(0..7), "{order:?}");
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
        let shared = leases.acquire("key", TTL).shared().sticky(IDLE).await;
        hung.push(shared.unwrap());
        assert!(is_held(&leases).await, "a writer ends the stay of readers");
    }
    let took = until_free(&store).await;
    assert!(took <= TTL + IDLE + 2 * SECOND, "{took:?}");
    drop(hung);
}

#[tokio::test(start_paused = true)]
async fn a_reentrant_lease_enters_the_one_that_is_there_after_the_end_too() {
    let (store, leases) = setup();
    let outer = sticky(&leases).await;
    let needs_document = leases.acquire("key", TTL).note("another").wait_for(MOMENT);
    assert!(needs_document.await.is_err());
    sleep(MOMENT).await;
    store.calls();
    let inner = leases.acquire("key", TTL).reentrant().await.unwrap();
    let tried = leases.try_acquire("key", TTL).reentrant().await.unwrap();
    let Attempt::Acquired(tried) = tried else {
        panic!("it is refused");
    };
    assert_eq!(asked(&store), (0, 0));
    assert_eq!([inner.fence(), tried.fence()], [outer.fence(); 2]);
    outer.release().await.unwrap();
    tried.release().await.unwrap();
    assert!(inner.is_live() && !is_free(&store).await);
    inner.release().await.unwrap();
    assert!(is_free(&store).await);
}

#[tokio::test(start_paused = true)]
async fn an_exclusive_lease_with_another_one_inside_is_exclusive_already() {
    let (store, leases) = setup();
    let outer = sticky(&leases).await;
    let inner = leases.acquire("key", TTL).reentrant().await.unwrap();
    assert_eq!(outer.upgrade().await.unwrap(), Upgrade::Exclusive);
    assert_eq!(inner.upgrade().await.unwrap(), Upgrade::Exclusive);
    assert!(!store.calls().contains(&"convert"));
}

#[tokio::test(start_paused = true)]
async fn a_refused_upgrade_names_the_other_leases_only() {
    let (_store, leases) = setup();
    let reader = async || leases.acquire("key", TTL).sticky(IDLE).shared().await;
    let mine = reader().await.unwrap();
    let _other = leases
        .acquire("key", TTL)
        .shared()
        .sticky(IDLE)
        .await
        .unwrap();
    let Upgrade::Held(held) = mine.upgrade().await.unwrap() else {
        panic!("it is exclusive beside another one");
    };
    assert_eq!(held.holders().len(), 1);
}

/// The lease of the other task has expired, and nothing has looked at it since.
#[tokio::test(start_paused = true)]
async fn a_lease_that_has_expired_is_not_beside_the_one_that_is_given_away() {
    let (store, leases) = setup();
    drop(leases.acquire("key", 2 * TTL).sticky(IDLE).await.unwrap());
    sleep(SECOND / 2).await;
    let expires = leases.acquire("key", SECOND).shared().await.unwrap();
    let lease = leases.acquire("key", TTL).shared().await.unwrap();
    sleep(SECOND + MOMENT).await;
    let ticket = lease.into_ticket();
    let resumed = elsewhere(&store).resume(&ticket).await.unwrap();
    assert!(matches!(resumed, Resumed::Live(_)), "{resumed:?}");
    assert!(!expires.is_live());
}

/// As for tasks that wait, but this one does not.
#[tokio::test(start_paused = true)]
async fn a_future_that_is_not_polled_any_more_keeps_the_key_from_no_attempt_for_long() {
    let (_store, leases) = setup();
    let first = leases.acquire("key", TTL).sticky(60 * IDLE).await.unwrap();
    let mut not_polled = pin!(leases.acquire("key", TTL).into_future());
    assert!(futures::poll!(not_polled.as_mut()).is_pending());
    first.release().await.unwrap();
    sleep(2 * SECOND).await;
    let attempt = leases.try_acquire("key", TTL).await.unwrap();
    assert!(matches!(attempt, Attempt::Acquired(_)), "{attempt:?}");
}

/// The release of the lease is not offered to the task that waits for it.
#[tokio::test(start_paused = true)]
async fn a_task_that_needs_the_document_of_an_idle_key_waits_for_no_offer() {
    let (store, leases) = setup();
    store.next([Fate::AnswerLate(MOMENT); 2]);
    let start = Instant::now();
    let first = async {
        let first = leases.try_acquire("key", TTL).sticky(IDLE).await.unwrap();
        assert!(matches!(first, Attempt::Acquired(_)));
    };
    let second = async { leases.acquire("key", TTL).note("another").await.unwrap() };
    let ((), _second) = tokio::join!(first, second);
    assert!(start.elapsed() <= 10 * MOMENT, "{:?}", start.elapsed());
}

/// Two tasks wait for their turn when the lease has to go back. Then the first of them asks the store, which does not
/// answer in time.
#[tokio::test(start_paused = true)]
async fn a_task_behind_one_that_asks_is_told_that_the_key_was_held() {
    let (store, leases) = setup();
    store.next([Fate::AnswerLate(MOMENT)]);
    let waits = async || {
        let asked = leases.acquire("key", TTL).sticky(IDLE);
        asked.wait_for(2 * SECOND).await.map(drop).unwrap_err()
    };
    let holds = async {
        let lease = sticky(&leases).await;
        sleep(SECOND).await;
        let needs_document = leases.try_acquire("key", TTL).note("another");
        assert!(matches!(needs_document.await.unwrap(), Attempt::Held(_)));
        store.next([Fate::AnswerLate(5 * SECOND)]);
        sleep(2 * SECOND).await;
        lease.release().await.unwrap();
    };
    let ((), one, two) = tokio::join!(holds, waits(), waits());
    for error in [one, two] {
        assert!(matches!(error, Error::WaitTimedOut { .. }), "{error:?}");
    }
}

/// No task waits for the answer to the downgrade, which names the fence that the lease had before the upgrade.
#[tokio::test(start_paused = true)]
async fn a_downgrade_that_comes_late_does_not_undo_the_upgrade_of_another_lease() {
    let (store, leases) = setup();
    let outer = sticky(&leases).await;
    let inner = leases.acquire("key", TTL).reentrant().shared();
    let inner = inner.await.unwrap();
    store.next([Fate::Late(SECOND)]);
    assert!(timeout(MOMENT, outer.downgrade()).await.is_err());
    drop(outer);
    assert_eq!(inner.upgrade().await.unwrap(), Upgrade::Exclusive);
    sleep(SECOND).await;
    let reader = elsewhere(&store).try_acquire("key", TTL).shared();
    let reader = reader.await.unwrap();
    assert!(matches!(reader, Attempt::Held(_)), "{reader:?}");
    assert_eq!(inner.mode(), Mode::Exclusive);
}
