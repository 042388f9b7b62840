//! A panic in the application's `tracing` subscriber, and what it does to the renewal task and to releases.

use std::{
    error::Error as _,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};

use futures::{FutureExt, StreamExt, executor};
use leasehold::{Error, Filter, Lease, Leases};
use tokio::time::{sleep, timeout};
use tracing::{
    Event, Subscriber,
    span::{Attributes, Id},
    subscriber::DefaultGuard,
};
use tracing_subscriber::{
    Layer,
    layer::{Context, SubscriberExt},
};

use super::{
    super::{Fate, MOMENT, TTL, is_free, setup, until_free},
    journal,
};

/// A subscriber that panics in events with this field, this many times.
struct Panics(&'static str, Arc<AtomicUsize>);

impl<S: Subscriber> Layer<S> for Panics {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        if event.metadata().fields().field(self.0).is_some() {
            let one_less = |times: usize| times.checked_sub(1);
            let left = self.1.fetch_update(Relaxed, Relaxed, one_less);
            assert!(left.is_err(), "the subscriber is broken");
        }
    }
}

/// A subscriber that panics when a span of this name is made.
struct PanicsInSpan(&'static str);

impl<S: Subscriber> Layer<S> for PanicsInSpan {
    fn on_new_span(&self, span: &Attributes<'_>, _: &Id, _: Context<'_, S>) {
        assert_ne!(span.metadata().name(), self.0, "the subscriber is broken");
    }
}

/// Makes events with this field panic on this thread, this many times.
pub fn panic_in(field: &'static str, times: usize) -> (DefaultGuard, Arc<AtomicUsize>) {
    journal::ask_each_thread();
    let times = Arc::new(AtomicUsize::new(times));
    let subscriber = tracing_subscriber::registry().with(Panics(field, times.clone()));
    (tracing::subscriber::set_default(subscriber), times)
}

/// The events of renewals that are sent, of leases that are counted, and of a loss have these fields.
#[tokio::test(start_paused = true)]
async fn it_keeps_no_lease_from_its_renewals() {
    for field in ["lag", "kept", "reason", "left"] {
        let (_default, panics) = panic_in(field, usize::MAX);
        let (store, leases) = setup();
        let keep = |key| leases.acquire(key, TTL).keep_alive().into_future();
        let (lease, other) = (keep("key").await.unwrap(), keep("other").await.unwrap());
        sleep(TTL * 2).await;
        assert!(lease.is_live() && other.is_live(), "{field}");
        // Both hear of the loss of one, whose event panics.
        Leases::new(store.memory.clone())
            .evict("other")
            .await
            .unwrap();
        timeout(TTL, other.lost())
            .await
            .unwrap_or_else(|_| panic!("{field}"));
        sleep(TTL * 2).await;
        assert!(lease.is_live(), "{field}");
        panics.store(0, Relaxed);
        lease.release().await.unwrap();
        drop(catch_unwind(AssertUnwindSafe(|| drop(other))));
    }
}

#[tokio::test(start_paused = true)]
async fn it_ends_a_background_release_which_is_not_sent_again() {
    let (store, leases) = setup();
    let (lease, other) = (leases.acquire("key", TTL), leases.acquire("other", TTL));
    let (lease, other) = (lease.await.unwrap(), other.await.unwrap());
    store.calls();
    // The event of a release has this field.
    let (_default, panics) = panic_in("by", 3);
    drop(lease);
    sleep(TTL).await;
    assert!(is_free(&store).await);
    assert_eq!((store.calls(), panics.load(Relaxed)), (vec!["release"], 2));
    // Releases that begin later are sent, and a close does not wait for one that has panicked.
    drop(other);
    timeout(TTL, leases.close()).await.unwrap();
    assert_eq!((store.calls(), panics.load(Relaxed)), (vec!["release"], 1));
}

#[tokio::test(start_paused = true)]
async fn a_release_with_a_caller_is_sent_once_more_after_it() {
    let (store, leases) = setup();
    let lease = leases.acquire("key", TTL).await.unwrap();
    store.calls();
    let (_default, panics) = panic_in("by", 3);
    let error = lease.release().await.unwrap_err();
    assert_eq!(error.source().unwrap().to_string(), "it panicked");
    // The second release panics in the background, and is not sent again.
    timeout(TTL, leases.close()).await.unwrap();
    assert!(is_free(&store).await);
    assert_eq!(
        (store.calls(), panics.load(Relaxed)),
        (vec!["release"; 2], 1)
    );
}

/// The fields are those of the events of a lease that is given up, and of one that is lost.
#[tokio::test(start_paused = true)]
async fn in_the_end_of_a_lease_it_keeps_the_key_from_nobody() {
    let ways: [fn(Lease); 2] = [drop, |lease| {
        drop(executor::block_on(lease.release()));
    }];
    for ends in ways {
        let (store, leases) = setup();
        let lease = leases.acquire("key", TTL).await.unwrap();
        let (default, panics) = panic_in("held", 1);
        let ended = catch_unwind(AssertUnwindSafe(|| ends(lease)));
        assert!(ended.is_err() && panics.load(Relaxed) == 0);
        drop(default);
        assert!(until_free(&store).await <= MOMENT);
        timeout(TTL, leases.close()).await.unwrap();
    }
}

/// The span of a release is made when the lease is given up already.
#[tokio::test(start_paused = true)]
async fn in_the_span_of_a_release_it_keeps_the_key_from_nobody() {
    let (store, leases) = setup();
    let lease = leases.acquire("key", TTL).await.unwrap();
    journal::ask_each_thread();
    let subscriber = tracing_subscriber::registry().with(PanicsInSpan("leasehold.release"));
    let default = tracing::subscriber::set_default(subscriber);
    let released = AssertUnwindSafe(lease.release()).catch_unwind().await;
    assert!(released.is_err());
    drop(default);
    assert!(until_free(&store).await <= MOMENT);
    timeout(TTL, leases.close()).await.unwrap();
}

/// A guard is dropped by a panic of the application, and the subscriber panics too. That does not end the program.
#[tokio::test(start_paused = true)]
async fn while_a_guard_is_dropped_by_another_panic_it_is_harmless() {
    let (store, leases) = setup();
    let lease = leases.acquire("key", TTL).await.unwrap();
    let (default, _) = panic_in("held", 1);
    let work = catch_unwind(AssertUnwindSafe(move || {
        let _lease = lease;
        panic!("the work is broken");
    }));
    let why = work.unwrap_err();
    assert_eq!(why.downcast_ref(), Some(&"the work is broken"));
    drop(default);
    assert!(until_free(&store).await <= MOMENT);
}

/// A close loses each lease, and ends the stay of the one that stays. All of them are released in the background,
/// whichever event panics. The fields are those of the events of a loss, and of a lease that goes back.
#[tokio::test(start_paused = true)]
async fn in_a_close_it_loses_no_release() {
    for (field, times) in [("reason", 1), ("reason", 2), ("at_once", 1)] {
        let (store, leases) = setup();
        let stays = leases.acquire("stays", TTL).sticky(TTL).await.unwrap();
        drop(stays);
        let mut held = Vec::new();
        for number in 0..4 {
            held.push(leases.acquire(format!("key {number}"), TTL).await.unwrap());
        }
        let (default, panics) = panic_in(field, times);
        let closing = leases.clone();
        let closed = AssertUnwindSafe(async move { closing.close().await });
        assert!(closed.catch_unwind().await.is_err());
        assert_eq!(panics.load(Relaxed), 0);
        drop(default);
        timeout(TTL, leases.close()).await.unwrap();
        let mut list = Leases::new(store.memory.clone()).list(Filter::new().live());
        let left = list.next().await;
        assert!(left.is_none(), "{field}, {times}: {left:?}");
        drop(held);
    }
}

/// The answer to an acquire that was carried out is lost. The field is that of the events of calls that fail.
#[tokio::test(start_paused = true)]
async fn in_the_event_of_a_failed_call_it_keeps_the_key_from_nobody() {
    for times in [1, usize::MAX] {
        let (store, leases) = setup();
        store.next([Fate::AnswerLost; 4]);
        let (default, _) = panic_in("retryable", times);
        let failed = leases.try_acquire("key", TTL).await;
        assert!(failed.is_err(), "{failed:?}");
        assert!(until_free(&store).await < TTL / 2);
        drop(default);
        timeout(TTL, leases.close()).await.unwrap();
    }
}

/// What tries again goes on: a limiter, and the renewals of a lease.
#[tokio::test(start_paused = true)]
async fn in_the_event_of_a_failed_call_it_ends_nothing_that_goes_on() {
    let (store, leases) = setup();
    let limiter = leases.limiter("key", 10, TTL);
    let (_default, panics) = panic_in("retryable", 3);
    store.next([Fate::NotSent]);
    limiter.permit().await.unwrap();
    assert_eq!(panics.load(Relaxed), 2);
    let kept = leases.acquire("kept", TTL).keep_alive().await.unwrap();
    store.next([Fate::NotSent; 2]);
    sleep(TTL * 3).await;
    assert!(kept.is_live());
    assert_eq!(panics.load(Relaxed), 0);
}

/// The request of a release in the background does not reach the store.
#[tokio::test(start_paused = true)]
async fn in_the_event_of_a_failed_release_it_keeps_the_key_from_nobody() {
    let (store, leases) = setup();
    let lease = leases.acquire("key", TTL).await.unwrap();
    let (_default, panics) = panic_in("retryable", 1);
    store.next([Fate::NotSent]);
    drop(lease);
    assert!(until_free(&store).await < TTL / 2);
    assert_eq!(panics.load(Relaxed), 0);
}

/// A task that waits takes a place, and the event of that has this field. The task waits on.
#[tokio::test(start_paused = true)]
async fn in_the_event_of_a_place_it_leaves_none() {
    let (store, leases) = setup();
    let held = Leases::new(store.memory.clone());
    let held = held.acquire("key", TTL).await.unwrap();
    let (default, panics) = panic_in("ahead", 1);
    let waited = leases.acquire("key", TTL).wait_for(TTL / 2).await;
    assert!(
        matches!(waited, Err(Error::WaitTimedOut { .. })),
        "{waited:?}"
    );
    assert_eq!(panics.load(Relaxed), 0);
    drop(default);
    sleep(MOMENT).await;
    let state = leases.inspect("key").await.unwrap().unwrap();
    assert_eq!(state.waiters, []);
    held.release().await.unwrap();
}

/// A sticky lease goes back when it was not used for a while, and the event of that has this field.
#[tokio::test(start_paused = true)]
async fn in_the_end_of_a_stay_it_ends_no_timer() {
    let (store, leases) = setup();
    for key in ["first", "second"] {
        drop(leases.acquire(key, TTL).sticky(TTL / 3).await.unwrap());
        sleep(MOMENT).await;
    }
    let (default, panics) = panic_in("at_once", 1);
    sleep(TTL / 2).await;
    assert_eq!(panics.load(Relaxed), 0);
    drop(default);
    let mut list = Leases::new(store.memory.clone()).list(Filter::new().live());
    let left = list.next().await;
    assert!(left.is_none(), "{left:?}");
}
