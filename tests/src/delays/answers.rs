//! Late requests, and answers that are lost: whose the lease is, and what is left of them.

use std::{
    panic::AssertUnwindSafe,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::{Duration, Instant},
};

use futures::{FutureExt, future::join_all};
use leasehold::{Attempt, Error, Leases, Resumed, store::AcquireAnswer};
use tokio::{
    runtime::Handle,
    spawn,
    task::spawn_blocking,
    time::{sleep, timeout},
};
use tracing::{Event, Subscriber, instrument::WithSubscriber};
use tracing_subscriber::layer::{Context, SubscriberExt};

use super::{
    Connect, Fate, LIMIT, LONG, STEP, both, released, spawned, state, takes_less_than, until_free,
};

/// How long a place counts that is taken late, if nobody gives it up.
const LONG_PLACE: Duration = Duration::from_secs(60);

/// One thread closes the handle, and another one gives the lease to another process. Either the lease is valid there and
/// stays, or it is given to nobody and is released.
pub async fn a_lease_that_a_close_releases_is_given_to_nobody(connect: &impl Connect) {
    let (delayed, other) = both(connect).await;
    let mut given = [0; 2];
    for number in 0..1_000 {
        let (leases, key) = (delayed.leases(), format!("key {number}"));
        let lease = leases.acquire(&key, LONG).await.unwrap();
        // The release comes to the store after whatever the other process does with the lease.
        let late = Fate::Takes(STEP, Duration::ZERO);
        delayed.releases.lock().push_back(late);
        let closing = spawn(async move {
            sleep(Duration::from_micros(fastrand::u64(..2_000))).await;
            leases.close().await;
        });
        let pause = Duration::from_micros(fastrand::u64(..2_000));
        let (second, runtime) = (other.clone(), Handle::current());
        let gives = move || {
            std::thread::sleep(pause);
            if number % 2 == 0 {
                return lease.detach().is_ok();
            }
            let ticket = lease.into_ticket();
            let resumed = runtime.block_on(second.resume(&ticket).into_future());
            match resumed.unwrap() {
                Resumed::Live(lease) => {
                    lease.detach().unwrap();
                    true
                }
                Resumed::Gone(_) => false,
            }
        };
        let is_given = spawn_blocking(gives).await.unwrap();
        closing.await.unwrap();
        let third = other.try_acquire(&key, LONG).await.unwrap();
        let is_free = matches!(third, Attempt::Acquired(_));
        assert_eq!(is_free, !is_given, "{third:?}");
        delayed.releases.lock().clear();
        given[usize::from(is_given)] += 1;
        if number >= 20 && given.iter().all(|times| *times > 0) {
            return;
        }
    }
    panic!("one of the two always came first: {given:?}");
}

/// A close ends the lease while its upgrade is under way, and releases it.
pub async fn an_upgrade_during_a_close_is_that_of_a_lost_lease(connect: &impl Connect) {
    let (delayed, other) = both(connect).await;
    let leases = delayed.leases();
    let lease = leases.acquire("key", LONG).shared().await.unwrap();
    let close = async {
        delayed.converts.notified().await;
        let mut closing = pin!(leases.close());
        // This ends the lease.
        assert!((&mut closing).now_or_never().is_none());
        delayed.may_convert.notify_one();
        closing.await;
    };
    let (upgraded, ()) = tokio::join!(lease.upgrade(), close);
    assert!(matches!(upgraded, Err(Error::Lost { .. })), "{upgraded:?}");
    until_free(&other, "key").await;
}

/// A reader was granted the key, and its answer was lost. A writer of its own process waits behind it.
pub async fn a_lease_whose_answer_was_lost_does_not_wait_behind_its_own_process(
    connect: &impl Connect,
) {
    let (delayed, _) = both(connect).await;
    let leases = delayed.leases();
    let first = leases.acquire("key", LONG).shared().await.unwrap();
    // The first reader serves no others any more.
    sleep(STEP).await;
    delayed.next([Fate::AnswerLost(2 * STEP)]);
    let reader = spawned(leases.acquire("key", LONG).shared());
    sleep(STEP).await;
    let writer = spawned(leases.acquire("key", LONG));
    sleep(4 * STEP).await;
    first.release().await.unwrap();
    let all = join_all([reader, writer].map(released));
    timeout(LIMIT, all)
        .await
        .expect("it waits for its own lease");
}

/// The same for the request of a reentrant acquire whose connection broke, and that is carried out late.
pub async fn a_late_reentrant_request_does_not_wait_behind_its_own_process(connect: &impl Connect) {
    let (delayed, other) = both(connect).await;
    let leases = delayed.leases();
    let elsewhere = other.acquire("key", LONG).await.unwrap();
    let first = spawned(leases.acquire("key", LONG));
    while state(&other, "key").await.waiters.is_empty() {
        sleep(STEP).await;
    }
    delayed.next([Fate::ReentrantIsKept]);
    let reentrant = spawned(leases.acquire("key", LONG).reentrant());
    while !delayed.acquires.lock().is_empty() {
        sleep(STEP).await;
    }
    // The first waiter may be granted the key before.
    elsewhere.release().await.unwrap();
    let late = delayed.carry_out_kept().await;
    assert!(
        matches!(late, AcquireAnswer::Granted(_) | AcquireAnswer::Held(_)),
        "{late:?}"
    );
    let all = join_all([first, reentrant].map(released));
    timeout(LIMIT, all)
        .await
        .expect("it waits for its own lease");
}

/// The acquire is carried out late. A release is answered late too, when the store cannot be reached any more: that
/// answer says nothing of the time after it was carried out.
pub async fn a_late_answer_ends_no_release_that_is_still_due(connect: &impl Connect) {
    let (delayed, other) = both(connect).await;
    let call_timeout = Duration::from_secs(5);
    let leases = delayed.leases_with(call_timeout);
    delayed.next([Fate::CutAndKept]);
    let lease = leases.acquire("key", LONG).await.unwrap();
    let late = Fate::Takes(Duration::ZERO, call_timeout * 3 / 2);
    delayed.releases.lock().push_back(late);
    let releasing = spawn(lease.release());
    until_free(&other, "key").await;
    delayed.is_down.store(true, SeqCst);
    let late = delayed.carry_out_kept().await;
    assert!(matches!(late, AcquireAnswer::Granted(_)), "{late:?}");
    // The answer of the first release may come before that of those that fail, on a slow machine.
    let _ = releasing.await.unwrap();
    sleep(call_timeout * 2).await;
    assert!(!state(&other, "key").await.is_free());
    delayed.is_down.store(false, SeqCst);
    until_free(&other, "key").await;
}

/// Panics in the events of calls that fail.
struct Panics(Arc<AtomicUsize>);

impl<S: Subscriber> tracing_subscriber::Layer<S> for Panics {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        if event.metadata().fields().field("retryable").is_some() {
            self.0.fetch_add(1, SeqCst);
            panic!("the subscriber is broken");
        }
    }
}

/// The answers to an acquire that was carried out are lost, and the event of that panics.
pub async fn a_subscriber_that_panics_leaves_no_key_taken(connect: &impl Connect) {
    // With a second subscriber, `tracing` asks each of them, and not the one that is met first.
    let _ = tracing::subscriber::set_global_default(tracing_subscriber::registry());
    let (delayed, other) = both(connect).await;
    // A close waits for a late answer, for as long as a call may take.
    let leases = delayed.leases_with(Duration::from_secs(2));
    let panics = Arc::new(AtomicUsize::new(0));
    let start = Instant::now();
    // A request that takes long is polled by a task without this subscriber.
    while panics.load(SeqCst) == 0 {
        assert!(start.elapsed() < LIMIT, "there is no such event");
        delayed.next([Fate::AnswerLost(Duration::ZERO); 4]);
        let broken = tracing_subscriber::registry().with(Panics(panics.clone()));
        let asks = leases.try_acquire("key", LONG).into_future();
        let asked = AssertUnwindSafe(asks.with_subscriber(broken));
        let asked = asked.catch_unwind().await;
        assert!(!matches!(asked, Ok(Ok(_))), "{asked:?}");
        delayed.acquires.lock().clear();
        until_free(&other, "key").await;
    }
    timeout(LIMIT, leases.close()).await.unwrap();
}

/// A writer gives up while its request is under way, and a reader of its process waits for the key. The late request of
/// the writer takes a place.
pub async fn a_place_that_a_writer_takes_after_it_has_given_up_is_given_up(connect: &impl Connect) {
    let (delayed, other) = both(connect).await;
    let leases = delayed.leases();
    takes_less_than(LONG_PLACE / 2, async |key| {
        let elsewhere = other.acquire(key, LONG).shared().await.unwrap();
        // The second request of the writer is late. The reader waits for it for a second.
        let (at_once, late) = (Duration::ZERO, 30 * STEP);
        delayed.next([Fate::Takes(at_once, at_once), Fate::TakesLongPlace(late)]);
        let writer = spawned(leases.acquire(key, LONG));
        while !delayed.acquires.lock().is_empty() {
            sleep(STEP / 10).await;
        }
        let reader = spawned(leases.acquire(key, LONG).shared());
        sleep(STEP).await;
        writer.abort();
        let start = Instant::now();
        released(reader).await;
        elsewhere.release().await.unwrap();
        no_place_is_left(&other, key, late).await;
        start.elapsed()
    })
    .await;
}

/// Waits until the document has no place, and looks again when late requests were carried out.
async fn no_place_is_left(leases: &Leases, key: &str, late: Duration) {
    sleep(late * 2).await;
    while !state(leases, key).await.waiters.is_empty() {
        sleep(STEP).await;
    }
    until_free(leases, key).await;
}

/// A request whose caller has gone reaches the store late, while a task of the process waits that wants other terms.
pub async fn a_late_request_whose_caller_has_gone_leaves_no_place(connect: &impl Connect) {
    let (delayed, other) = both(connect).await;
    let leases = delayed.leases();
    takes_less_than(LONG_PLACE / 2, async |key| {
        let late = 30 * STEP;
        delayed.next([Fate::TakesLongPlace(late)]);
        let first = spawned(leases.acquire(key, LONG));
        sleep(STEP).await;
        let second = spawned(leases.acquire(key, LONG).note("another"));
        sleep(STEP).await;
        first.abort();
        let start = Instant::now();
        let lease = second.await.unwrap().unwrap();
        // The late request finds the key held, and takes a place.
        sleep(late).await;
        lease.release().await.unwrap();
        no_place_is_left(&other, key, late).await;
        start.elapsed()
    })
    .await;
}
