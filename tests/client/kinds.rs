//! Shared leases, permits, re-entry, sets and tickets, as the client handles them.

use std::time::Duration;

use futures::future::{join_all, try_join_all};
use leasehold::{
    Attempt, Error, Key, Lease, Leases, LossReason, Mode, Resumed, Store, Ticket, Upgrade,
    limits::{MAX_HOLDERS, MAX_TTL},
    store::AcquireRequest,
};
use tokio::time::{Instant, sleep, timeout};

use super::{Fate, LIMIT, MOMENT, TTL, is_free, setup, until_free};

/// Another process may have a later permit that was known before this task asked.
#[tokio::test(start_paused = true)]
async fn a_permit_of_a_task_that_gave_up_is_not_for_one_that_asked_later() {
    let (store, leases) = setup();
    let permit = |leases: &Leases| leases.acquire("key", TTL).permits(1, 3);
    store.next([Fate::AnswerLate(MOMENT * 50)]);
    let gives_up = tokio::spawn(permit(&leases).into_future());
    sleep(MOMENT).await;
    let others = permit(&Leases::new(store.memory.clone())).await.unwrap();
    let later = tokio::spawn(permit(&leases).into_future());
    sleep(MOMENT).await;
    gives_up.abort();
    let later = later.await.unwrap().unwrap();
    assert!(later.fence() > others.fence(), "{later:?} {others:?}");
    drop(later);
    drop(others);
    until_free(&store).await;
}

#[tokio::test(start_paused = true)]
async fn bad_terms_are_refused_before_anything_is_sent() {
    let (store, leases) = setup();
    let acquire = || leases.acquire("key", TTL);
    for (permits, of) in [(0, 0), (0, 4), (5, 4)] {
        let error = acquire().permits(permits, of).await.unwrap_err();
        assert!(
            matches!(error, Error::InvalidPermits { .. }),
            "{permits} of {of}: {error:?}"
        );
    }
    let error = acquire().note("x".repeat(1_025)).await.unwrap_err();
    assert!(matches!(error, Error::InvalidNote { bytes: 1_025 }));
    let error = acquire().owner("").await.unwrap_err();
    assert!(matches!(error, Error::InvalidOwner { bytes: 0 }));
    let too_long = MAX_TTL + Duration::from_millis(1);
    let error = acquire().min_hold(too_long).await.unwrap_err();
    assert!(matches!(error, Error::InvalidMinHold { .. }));
    let error = leases.acquire_all(["a", ""], TTL).await.unwrap_err();
    assert!(matches!(error, Error::InvalidKey { bytes: 0 }));
    assert!(store.calls().is_empty());

    let permit = acquire().permits(1, 2).await.unwrap();
    let error = permit.upgrade().await.unwrap_err();
    assert!(matches!(error, Error::InvalidConversion), "{error:?}");
}

#[tokio::test(start_paused = true)]
async fn readers_that_wait_enter_together() {
    let (_, leases) = setup();
    let writer = leases.acquire("key", TTL).await.unwrap();
    let reading = (0..20).map(|_| tokio::spawn(leases.acquire("key", TTL).shared().into_future()));
    let reading: Vec<_> = reading.collect();
    sleep(MOMENT).await;
    let start = Instant::now();
    writer.release().await.unwrap();
    let readers = join_all(reading).await;
    assert_eq!(start.elapsed(), Duration::ZERO);
    let waiting = tokio::spawn(leases.acquire("key", TTL).into_future());
    sleep(MOMENT).await;
    for reader in readers {
        assert!(!waiting.is_finished());
        reader.unwrap().unwrap().release().await.unwrap();
    }
    drop(waiting.await.unwrap().unwrap());
    assert!(start.elapsed() < MOMENT * 2);
}

/// `try_acquire` gets an error at once. A waiter gets the first place that becomes free, or the error when its time
/// limit is over.
#[tokio::test(start_paused = true)]
async fn a_reader_too_many_is_told_so_or_waits_for_a_place() {
    let (_, leases) = setup();
    let mut readers = a_reader_too_many(&leases).await;
    let one_more = || leases.acquire("key", TTL).shared();
    let enters_again = one_more().reentrant().wait_for(MOMENT).await;
    let error = enters_again.unwrap_err();
    assert!(matches!(error, Error::TooManyHolders { .. }), "{error:?}");
    let waiting = tokio::spawn(one_more().into_future());
    sleep(MOMENT).await;
    assert!(!waiting.is_finished());
    readers.pop().unwrap().release().await.unwrap();
    let last = timeout(MOMENT, waiting).await.unwrap().unwrap().unwrap();
    let state = leases.inspect("key").await.unwrap().unwrap();
    assert_eq!(state.holders.len(), MAX_HOLDERS);
    assert!(state.holders.iter().any(|holder| holder.lease == last.id()));
}

/// As many readers as a key can have. One more is told so, and a writer is not. Each reader has an owner of its own:
/// those of one owner would have one lease together.
async fn a_reader_too_many(leases: &Leases) -> Vec<Lease> {
    let read = |n| leases.acquire("key", TTL).shared().owner(format!("{n}"));
    let reading = (0..MAX_HOLDERS).map(|n| read(n).into_future());
    let readers = try_join_all(reading).await.unwrap();
    let one_more = || leases.acquire("key", TTL).shared();
    let errors = [
        leases.try_acquire("key", TTL).shared().await.map(drop),
        one_more().wait_for(Duration::ZERO).await.map(drop),
        one_more().wait_for(MOMENT).await.map(drop),
    ];
    for error in errors.map(Result::unwrap_err) {
        assert!(matches!(error, Error::TooManyHolders { .. }), "{error:?}");
        assert!(error.is_retryable() && !error.is_ambiguous());
        assert!(error.to_string().contains("several keys"), "{error}");
    }
    let set = leases.acquire_all(["another", "key"], TTL).shared();
    let error = set.wait_for(MOMENT).await.unwrap_err();
    assert!(matches!(error, Error::TooManyHolders { .. }), "{error:?}");
    let another = leases.inspect("another").await.unwrap();
    assert!(another.unwrap().is_free());
    // A writer conflicts with the readers, however many they are.
    let writer = leases.try_acquire("key", TTL).await.unwrap();
    assert!(matches!(writer, Attempt::Held(_)), "{writer:?}");
    let error = leases.acquire("key", TTL).wait_for(MOMENT).await;
    assert!(
        matches!(error, Err(Error::WaitTimedOut { .. })),
        "{error:?}"
    );
    readers
}

#[tokio::test(start_paused = true)]
async fn what_is_taken_of_a_set_is_kept_alive_while_the_rest_is_waited_for() {
    let (_, leases) = setup();
    let last = leases.acquire("z", TTL * 10).await.unwrap();
    let waiting = tokio::spawn(leases.acquire_all(["a", "z"], TTL).into_future());
    sleep(TTL * 5).await;
    last.release().await.unwrap();
    let set = waiting.await.unwrap().unwrap();
    assert!(set.is_live() && set.remaining() > TTL / 2);
    // From here on the leases are not renewed, because the caller did not ask for keep-alive.
    let (_, reason) = timeout(TTL, set.lost()).await.unwrap();
    assert!(matches!(reason, LossReason::Expired), "{reason:?}");

    let kept = leases
        .acquire_all(["a", "b"], TTL)
        .keep_alive()
        .await
        .unwrap();
    sleep(TTL * 5).await;
    assert!(kept.is_live());
    leases.evict("b").await.unwrap();
    let (key, reason) = kept.lost().await;
    assert_eq!(key.as_str(), "b");
    assert!(matches!(reason, LossReason::TakenOver), "{reason:?}");
    assert!(!kept.is_live() && kept.get("a").unwrap().is_live());
}

#[tokio::test(start_paused = true)]
async fn a_set_that_is_dropped_or_not_to_be_had_leaves_no_lock() {
    let (store, leases) = setup();
    let last = leases.acquire("z", TTL * 10).await.unwrap();
    let short = leases.acquire_all(["key", "z"], TTL).wait_for(TTL);
    let error = short.await.unwrap_err();
    assert!(matches!(error, Error::WaitTimedOut { .. }), "{error:?}");
    assert!(
        is_free(&store).await,
        "it is given back before that is told"
    );
    let dropped = timeout(TTL, leases.acquire_all(["key", "z"], TTL));
    assert!(dropped.await.is_err());
    assert!(until_free(&store).await < MOMENT);
    drop(leases.acquire_all(["key", "other"], TTL).await.unwrap());
    assert!(until_free(&store).await < MOMENT);
    last.release().await.unwrap();
}

/// A lease that a failed set gives back has done no work. If it left a minimum hold, the set would wait for its own
/// lease.
#[tokio::test(start_paused = true)]
async fn a_set_that_was_not_to_be_had_leaves_no_minimum_hold() {
    let (store, leases) = setup();
    let ask = || leases.acquire_all(["key", "z"], TTL).min_hold(TTL * 100);
    let last = leases.acquire("z", TTL * 10).await.unwrap();
    let error = ask().wait_for(TTL).await.unwrap_err();
    assert!(matches!(error, Error::WaitTimedOut { .. }), "{error:?}");
    assert!(is_free(&store).await);
    assert!(timeout(TTL, ask()).await.is_err(), "dropped while it waits");
    assert!(until_free(&store).await < MOMENT);
    last.release().await.unwrap();

    let start = Instant::now();
    let set = ask().await.unwrap();
    assert!(start.elapsed() < MOMENT);
    set.release().await.unwrap();
    sleep(TTL * 99).await;
    assert!(!is_free(&store).await, "a whole set has its minimum hold");
    sleep(TTL * 2).await;
    assert!(is_free(&store).await);
}

/// The answer came after the caller had been dropped, or the caller did not take it in time.
#[tokio::test(start_paused = true)]
async fn a_grant_that_nobody_took_leaves_no_minimum_hold() {
    let (store, leases) = setup();
    for late in [MOMENT * 2, TTL] {
        store.next([Fate::AnswerLate(MOMENT)]);
        let acquire = leases.acquire("key", TTL).min_hold(TTL * 100);
        let mut acquire = acquire.into_future();
        assert!(futures::poll!(&mut acquire).is_pending());
        sleep(late).await;
        if late == TTL {
            assert!(acquire.await.is_err())
        } else {
            drop(acquire)
        }
        assert!(until_free(&store).await < TTL);
    }
}

#[tokio::test(start_paused = true)]
async fn a_ticket_travels_as_text() {
    let (store, leases) = setup();
    let lease = leases.acquire("key", TTL).min_hold(TTL * 2).await.unwrap();
    let (id, fence) = (lease.id(), lease.fence());
    let text = serde_json::to_string(&lease.into_ticket()).unwrap();
    sleep(TTL / 2).await;
    assert!(!is_free(&store).await);

    let ticket: Ticket = serde_json::from_str(&text).unwrap();
    assert_eq!((ticket.key().as_str(), ticket.fence()), ("key", fence));
    store.next([Fate::NotSent, Fate::AnswerLost]);
    let Resumed::Live(lease) = leases.resume(&ticket).keep_alive().await.unwrap() else {
        panic!("the lease is gone");
    };
    assert_eq!((lease.id(), lease.fence()), (id, fence));
    sleep(TTL * 3).await;
    assert!(lease.is_live());
    lease.release().await.unwrap();
    assert!(is_free(&store).await, "the minimum hold is over");
    let gone = leases.resume(&ticket).await.unwrap();
    assert!(matches!(gone, Resumed::Gone(_)), "{gone:?}");

    let bad = text.replace("\"key\":\"key\"", "\"key\":\"\"");
    assert!(serde_json::from_str::<Ticket>(&bad).is_err());

    let permits = leases.acquire("permits", TTL).permits(2, 3).await.unwrap();
    let text = serde_json::to_string(&permits.into_ticket()).unwrap();
    let bad = text.replace("\"permits\":2", "\"permits\":0");
    assert_ne!(bad, text);
    let ticket: Ticket = serde_json::from_str(&bad).unwrap();
    let refused = leases.resume(&ticket).await;
    assert!(
        matches!(refused, Err(Error::InvalidPermits { .. })),
        "{refused:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_minimum_hold_holds_though_the_answer_to_the_release_was_lost() {
    let (store, leases) = setup();
    let start = Instant::now();
    let lease = leases.acquire("key", TTL * 10).min_hold(TTL).await.unwrap();
    store.next([Fate::AnswerLost]);
    lease.release().await.unwrap();
    sleep(TTL - MOMENT - start.elapsed()).await;
    assert!(!is_free(&store).await);
    until_free(&store).await;
    assert!(start.elapsed() < TTL + MOMENT);
    // An acquire that gives up has done no work, so it leaves no minimum hold behind.
    store.next([Fate::AnswerLost; 3]);
    leases
        .try_acquire("key", TTL)
        .min_hold(TTL)
        .await
        .unwrap_err();
    assert!(until_free(&store).await < LIMIT);
}

#[tokio::test(start_paused = true)]
async fn a_conversion_whose_answer_was_lost_is_found_again() {
    let (store, leases) = setup();
    let lease = leases
        .acquire("key", TTL)
        .shared()
        .keep_alive()
        .await
        .unwrap();
    let before = lease.fence();
    store.next([Fate::AnswerLost]);
    let upgraded = lease.upgrade().await.unwrap();
    assert_eq!(upgraded, leasehold::Upgrade::Exclusive);
    assert!(lease.fence() > before);
    sleep(TTL * 3).await;
    assert!(lease.is_live(), "renewals know the new fence");
    store.next([Fate::AnswerLost]);
    lease.downgrade().await.unwrap();
    assert_eq!(lease.mode(), leasehold::Mode::Shared);
}

/// If a set takes a good part of the ttl to acquire, the first leases are renewed before it is returned.
#[tokio::test(start_paused = true)]
async fn a_set_that_took_long_is_renewed_and_another_is_not() {
    let (store, leases) = setup();
    let quick = leases.acquire_all(["a", "b", "c"], TTL).await.unwrap();
    assert_eq!(store.calls(), ["acquire"; 3]);
    quick.release().await.unwrap();
    store.calls();
    let late = TTL / 5;
    store.next([Fate::AnswerLate(late)]);
    let slow = leases.acquire_all(["a", "b", "c"], TTL).await.unwrap();
    assert_eq!(store.calls(), [["acquire"; 3], ["renew"; 3]].concat());
    assert!(slow.remaining() > TTL - late, "{:?}", slow.remaining());
    slow.release().await.unwrap();
}

/// A late request of the acquire may be granted the lease id anew, after the lease was lost.
#[tokio::test(start_paused = true)]
async fn after_a_refused_upgrade_a_lease_that_was_granted_anew_is_another() {
    let (store, leases) = setup();
    let lease = leases.acquire("key", TTL).shared().await.unwrap();
    let beside = leases.acquire("key", TTL).shared().await.unwrap();
    let refused = lease.upgrade().await.unwrap();
    assert!(matches!(refused, Upgrade::Held(_)), "{refused:?}");
    let key = Key::new("key").unwrap();
    store.memory.evict(&key).await.unwrap();
    let late = AcquireRequest::exclusive(key, lease.id(), "a late request".into(), TTL).shared();
    store.memory.acquire(&late).await.unwrap();
    let renewed = lease.renew().await;
    assert!(matches!(renewed, Err(Error::Lost { .. })), "{renewed:?}");
    drop(beside);
}

/// The answer to the first request is lost. The answer to the next one says that the lease is exclusive, so the first
/// one cannot change it any more.
#[tokio::test(start_paused = true)]
async fn after_a_repeated_upgrade_a_lease_that_was_granted_anew_is_another() {
    let (store, leases) = setup();
    let lease = leases.acquire("key", TTL).shared().await.unwrap();
    store.next([Fate::AnswerLost]);
    store.calls();
    assert_eq!(lease.upgrade().await.unwrap(), Upgrade::Exclusive);
    assert_eq!(store.calls(), ["convert", "convert"]);
    let key = Key::new("key").unwrap();
    store.memory.evict(&key).await.unwrap();
    let late = AcquireRequest::exclusive(key, lease.id(), "a late request".into(), TTL).shared();
    store.memory.acquire(&late).await.unwrap();
    let renewed = lease.renew().await;
    assert!(matches!(renewed, Err(Error::Lost { .. })), "{renewed:?}");
}

/// Two guards stand for one lease. Whichever of them is given up, and in whichever way, the other keeps the lease
/// alive.
#[tokio::test(start_paused = true)]
async fn a_ticket_that_is_resumed_twice_gives_two_guards_that_are_kept_alive() {
    for ends_first in [true, false] {
        let (_, leases) = setup();
        let ticket = leases.acquire("key", TTL).await.unwrap().into_ticket();
        let resume = async || match leases.resume(&ticket).keep_alive().await.unwrap() {
            Resumed::Live(lease) => lease,
            Resumed::Gone(why) => panic!("{why}"),
        };
        let (first, second) = (resume().await, resume().await);
        sleep(TTL * 2).await;
        assert!(first.is_live() && second.is_live());
        let (ends, stays) = if ends_first {
            (first, second)
        } else {
            (second, first)
        };
        ends.detach().unwrap();
        sleep(TTL * 2).await;
        assert!(stays.is_live());
        // A close releases the remaining guard.
        leases.close().await;
        assert!(matches!(stays.lost().await, LossReason::Closed));
    }
}

/// The handle that resumes it is open, and says so.
#[tokio::test(start_paused = true)]
async fn a_ticket_of_a_lease_that_is_being_released_here_is_gone() {
    let (store, leases) = setup();
    let ticket = leases.acquire("key", TTL).await.unwrap().into_ticket();
    let Resumed::Live(lease) = leases.resume(&ticket).await.unwrap() else {
        panic!("the lease is live");
    };
    store.next([Fate::Late(LIMIT / 2)]);
    drop(lease);
    sleep(MOMENT).await;
    let again = leases.resume(&ticket).await;
    assert!(matches!(again, Ok(Resumed::Gone(_))), "{again:?}");
    until_free(&store).await;
}

/// The answer to a conversion comes after that to the next conversion.
#[tokio::test(start_paused = true)]
async fn the_late_answer_to_a_conversion_changes_nothing() {
    let (store, leases) = setup();
    let lease = leases.acquire("key", TTL).await.unwrap();
    store.next([Fate::AnswerLate(MOMENT * 10)]);
    assert!(timeout(MOMENT, lease.downgrade()).await.is_err());
    assert_eq!(lease.upgrade().await.unwrap(), Upgrade::Exclusive);
    let fence = lease.fence();
    sleep(MOMENT * 20).await;
    lease.renew().await.unwrap();
    assert_eq!((lease.fence(), lease.mode()), (fence, Mode::Exclusive));
    lease.release().await.unwrap();
}

/// The answer to an upgrade comes after that to the downgrade that was sent later.
#[tokio::test(start_paused = true)]
async fn the_late_answer_to_an_upgrade_does_not_undo_a_downgrade() {
    let (store, leases) = setup();
    let lease = leases.acquire("key", TTL).shared().await.unwrap();
    store.next([Fate::AnswerLate(MOMENT * 10)]);
    assert!(timeout(MOMENT, lease.upgrade()).await.is_err());
    lease.downgrade().await.unwrap();
    sleep(MOMENT * 20).await;
    assert_eq!(lease.mode(), Mode::Shared, "another reader may have come");
    lease.release().await.unwrap();
}

/// A close that begins while the answer is on its way does not release the lease of a ticket.
#[tokio::test(start_paused = true)]
async fn a_ticket_outlives_the_close_of_a_client_that_resumes_it() {
    let (store, leases) = setup();
    let ticket = leases.acquire("key", TTL).await.unwrap().into_ticket();
    store.next([Fate::AnswerLate(MOMENT * 2)]);
    let resumes = tokio::spawn(leases.resume(&ticket).into_future());
    sleep(MOMENT).await;
    leases.close().await;
    let closed = resumes.await.unwrap();
    assert!(matches!(closed, Err(Error::Closed)), "{closed:?}");
    sleep(MOMENT * 4).await;
    let other = Leases::new(store.memory.clone());
    let resumed = other.resume(&ticket).await.unwrap();
    assert!(matches!(resumed, Resumed::Live(_)), "{resumed:?}");
}
