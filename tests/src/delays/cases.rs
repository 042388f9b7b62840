//! What a client does on a store whose requests and answers are late or lost.

use std::{
    future::pending,
    panic::AssertUnwindSafe,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::{Duration, Instant},
};

use futures::{FutureExt, future::join_all};
use leasehold::{Attempt, Error, Lease, Leases, Resumed, Store, jobs::Term, store::AcquireAnswer};
use parking_lot::Mutex;
use tokio::{
    runtime::{Builder, Handle},
    spawn,
    sync::Notify,
    task::{spawn_blocking, yield_now},
    time::{sleep, timeout},
};
use tracing::{Event, Subscriber, instrument::WithSubscriber};
use tracing_subscriber::layer::{Context, SubscriberExt};

use super::{
    Delayed, Fate, LIMIT, LONG, STEP, released, spawned, state, takes_less_than, until_free,
};

/// How long a place in a document counts after the last request of its process.
const PLACE: Duration = Duration::from_secs(4);

/// Makes a store as another process has it, on the same keys.
pub trait Connect: AsyncFn() -> Arc<dyn Store> {}
impl<C: AsyncFn() -> Arc<dyn Store>> Connect for C {}

async fn both(connect: &impl Connect) -> (Delayed, Leases) {
    let other = Leases::builder(connect().await).call_timeout(crate::PATIENCE);
    (Delayed::new(connect().await), other.build())
}

/// One thread closes the handle, and another one gives the lease to another process. Either the lease is valid there and
/// stays, or it is given to nobody and is released.
pub async fn a_lease_that_a_close_releases_is_given_to_nobody(connect: &impl Connect) {
    let (delayed, other) = both(connect).await;
    for number in 0..20 {
        let (leases, key) = (delayed.leases(), format!("key {number}"));
        let lease = leases.acquire(&key, LONG).await.unwrap();
        // The release comes to the store after whatever the other process does with the lease.
        let late = Fate::Takes(STEP, Duration::ZERO);
        delayed.releases.lock().push_back(late);
        let closing = spawn(async move { leases.close().await });
        let pause = Duration::from_micros(fastrand::u64(..200));
        let (second, runtime) = (other.clone(), Handle::current());
        let given = spawn_blocking(move || {
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
        });
        let given = given.await.unwrap();
        closing.await.unwrap();
        let third = other.try_acquire(&key, LONG).await.unwrap();
        let is_free = matches!(third, Attempt::Acquired(_));
        assert_eq!(is_free, !given, "{third:?}");
        delayed.releases.lock().clear();
    }
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
    delayed.next([Fate::CutAndKept]);
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
    let call_timeout = Duration::from_secs(2);
    let leases = delayed.leases_with(call_timeout);
    delayed.next([Fate::CutAndLate(call_timeout / 2)]);
    let lease = leases.acquire("key", LONG).await.unwrap();
    // The first release is carried out before the late acquire.
    let late = Fate::Takes(Duration::ZERO, call_timeout * 3 / 2);
    delayed.releases.lock().push_back(late);
    let releasing = spawn(lease.release());
    while !delayed.releases.lock().is_empty() {
        yield_now().await;
    }
    until_free(&other, "key").await;
    delayed.is_down.store(true, SeqCst);
    let outcome = releasing.await.unwrap();
    assert!(outcome.is_err(), "{outcome:?}");
    sleep(call_timeout * 2).await;
    assert!(!state(&other, "key").await.is_free());
    delayed.is_down.store(false, SeqCst);
    until_free(&other, "key").await;
}

/// Panics in the events of calls that fail.
struct Panics;

impl<S: Subscriber> tracing_subscriber::Layer<S> for Panics {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let is_failure = event.metadata().fields().field("retryable").is_some();
        assert!(!is_failure, "the subscriber is broken");
    }
}

/// The answers to an acquire that was carried out are lost, and the event of that panics.
pub async fn a_subscriber_that_panics_leaves_no_key_taken(connect: &impl Connect) {
    // With a second subscriber, `tracing` asks each of them, and not the one that is met first.
    let _ = tracing::subscriber::set_global_default(tracing_subscriber::registry());
    let (delayed, other) = both(connect).await;
    // A close waits for a late answer, for as long as a call may take.
    let leases = delayed.leases_with(Duration::from_secs(2));
    delayed.next([Fate::AnswerLost(Duration::ZERO); 4]);
    let broken = tracing_subscriber::registry().with(Panics);
    let asks = leases.try_acquire("key", LONG).into_future();
    let asked = AssertUnwindSafe(asks.with_subscriber(broken));
    let asked = asked.catch_unwind().await;
    assert!(!matches!(asked, Ok(Ok(_))), "{asked:?}");
    until_free(&other, "key").await;
    timeout(LIMIT, leases.close()).await.unwrap();
}

/// Waits until the document has no place.
async fn until_no_place(leases: &Leases, key: &str) {
    while !state(leases, key).await.waiters.is_empty() {
        sleep(STEP / 5).await;
    }
    assert!(state(leases, key).await.is_free());
}

/// A writer gives up while its request is under way, and a reader of its process is granted the key. The late request
/// of the writer takes a place.
pub async fn a_place_that_a_writer_takes_after_it_has_given_up_is_given_up(connect: &impl Connect) {
    let (delayed, other) = both(connect).await;
    let leases = delayed.leases();
    takes_less_than(PLACE, async |key| {
        let elsewhere = other.acquire(key, LONG).shared().await.unwrap();
        let (at_once, late) = (Duration::ZERO, 30 * STEP);
        // The second request of the writer is late, and the reader waits for it for a second. A place that it takes would
        // count for longer.
        delayed.next([Fate::Takes(at_once, at_once), Fate::Takes(late, at_once)]);
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
        until_no_place(&other, key).await;
        start.elapsed()
    })
    .await;
}

/// A request whose caller has gone reaches the store late, while another task of the process wants the key.
pub async fn a_late_request_whose_caller_has_gone_leaves_no_place(connect: &impl Connect) {
    let (delayed, other) = both(connect).await;
    let leases = delayed.leases();
    takes_less_than(PLACE, async |key| {
        delayed.next([
            Fate::Takes(30 * STEP, Duration::ZERO),
            Fate::Takes(Duration::ZERO, 20 * STEP),
        ]);
        let first = spawned(leases.acquire(key, LONG));
        sleep(STEP).await;
        let second = spawned(leases.acquire(key, LONG));
        sleep(STEP).await;
        first.abort();
        let start = Instant::now();
        released(second).await;
        until_no_place(&other, key).await;
        start.elapsed()
    })
    .await;
}

/// Also when the key begins to stay, and one of the tasks needs its document.
pub async fn a_task_with_a_note_is_served_in_turn(connect: &impl Connect) {
    let (delayed, _) = both(connect).await;
    let leases = delayed.leases();
    for key in ["plain", "sticky"] {
        let order = Arc::new(Mutex::new(Vec::new()));
        let first = leases.acquire(key, LONG).await.unwrap();
        let mut tasks = Vec::new();
        for number in 0..10 {
            let mut acquire = leases.acquire(key, LONG);
            if key == "sticky" {
                acquire = acquire.sticky(LONG);
            }
            if number == 8 {
                acquire = acquire.note("nightly");
            }
            let order = order.clone();
            let mut acquire = acquire.into_future();
            // They ask in this order.
            assert!((&mut acquire).now_or_never().is_none());
            tasks.push(spawn(async move {
                let lease = acquire.await.unwrap();
                order.lock().push(number);
                lease.release().await.unwrap();
            }));
        }
        first.release().await.unwrap();
        for task in tasks {
            timeout(LIMIT, task).await.unwrap().unwrap();
        }
        let order = order.lock();
        assert!(order.iter().copied().eq(0..10), "{key}: {order:?}");
    }
}

/// The others pass it. It is on a runtime that nothing drives.
pub async fn a_first_waiter_that_is_not_polled_is_passed_over(connect: &impl Connect) {
    let (delayed, other) = both(connect).await;
    let leases = delayed.leases();
    let holder = leases.acquire("key", LONG).await.unwrap();
    let idle = Builder::new_current_thread().enable_all().build().unwrap();
    let mut silent = leases.acquire("key", LONG).into_future();
    {
        let _there = idle.enter();
        assert!((&mut silent).now_or_never().is_none());
    }
    let waiting = spawned(leases.acquire("key", LONG));
    sleep(STEP).await;
    holder.release().await.unwrap();
    timeout(LIMIT, released(waiting)).await.unwrap();
    // Later ones do not wait for it either.
    let late = leases.acquire("key", LONG).wait_for(LIMIT).await;
    late.unwrap().release().await.unwrap();
    drop(silent);
    idle.shutdown_background();
    until_free(&other, "key").await;
}

/// The answer to the request of the first task never comes, and the call timeout is longer than the test.
pub async fn an_answer_that_never_comes_stalls_nobody_for_the_call_timeout(connect: &impl Connect) {
    let (delayed, _) = both(connect).await;
    let leases = delayed.leases();
    delayed.next([Fate::Unanswered]);
    let two = [(); 2].map(|()| released(spawned(leases.acquire("key", LONG))));
    timeout(LIMIT, join_all(two)).await.unwrap();
}

/// The store could not be reached, so each acquire that was given up is released.
pub async fn after_an_outage_each_lease_is_released_twice_at_most(connect: &impl Connect) {
    const GIVEN_UP: usize = 50;
    let (delayed, _) = both(connect).await;
    let call_timeout = Duration::from_secs(2);
    let leases = delayed.leases_with(call_timeout);
    delayed.is_down.store(true, SeqCst);
    let give_up = async |number| {
        let asked = leases.try_acquire(format!("key {number}"), LONG).await;
        assert!(asked.is_err(), "{asked:?}");
    };
    join_all((0..GIVEN_UP).map(give_up)).await;
    delayed.is_down.store(false, SeqCst);
    let start = Instant::now();
    while delayed.releases_of_a_lease().len() < GIVEN_UP {
        assert!(start.elapsed() < LIMIT, "they are not released");
        sleep(STEP).await;
    }
    sleep(2 * call_timeout).await;
    let releases = delayed.releases_of_a_lease();
    assert!(releases.iter().all(|times| *times <= 2), "{releases:?}");
}

/// The tasks of one thread: one of them is granted the key from memory again and again.
pub async fn grants_from_memory_let_other_tasks_run(connect: &impl Connect) {
    let (delayed, _) = both(connect).await;
    let leases = delayed.leases();
    let one_thread = Builder::new_current_thread().enable_all().build().unwrap();
    let grants = spawn_blocking(move || {
        one_thread.block_on(async move {
            let sticky = leases.acquire("key", LONG).sticky(LONG);
            drop::<Lease>(sticky.await.unwrap());
            let ran = Arc::new(AtomicUsize::new(0));
            let counter = ran.clone();
            spawn(async move {
                loop {
                    counter.fetch_add(1, SeqCst);
                    yield_now().await;
                }
            });
            // The next one after 4,096 asks the store.
            for _ in 0..4_000 {
                let sticky = leases.acquire("key", LONG).sticky(LONG);
                drop::<Lease>(sticky.await.unwrap());
            }
            ran.load(SeqCst)
        })
    });
    assert!(grants.await.unwrap() > 0, "nothing else ran");
}

/// The second caller is polled by a thread without a runtime, while the request of the first one is under way.
pub async fn a_caller_of_a_limiter_without_a_runtime_holds_up_nobody(connect: &impl Connect) {
    let (delayed, _) = both(connect).await;
    let leases = delayed.leases();
    // Before the mend, the third one waited for five seconds.
    takes_less_than(Duration::from_secs(4), async |key| {
        let limiter = leases.limiter(key, 1_000, Duration::from_secs(1));
        let mut first = limiter.permit().into_future();
        let _ = (&mut first).now_or_never();
        let mut second = limiter.permit().into_future();
        let _ = (&mut second).now_or_never();
        let polled = std::thread::spawn(move || {
            let mut second = second;
            let polled = (&mut second).now_or_never();
            assert!(!matches!(polled, Some(Err(_))), "{polled:?}");
            (second, polled.is_none())
        });
        let (second, waits) = spawn_blocking(|| polled.join().unwrap()).await.unwrap();
        first.await.unwrap();
        let start = Instant::now();
        limiter.permit().await.unwrap();
        if waits {
            second.await.unwrap();
        }
        start.elapsed()
    })
    .await;
}

/// The work of a leader hangs, and another process leads after the longest hold.
pub async fn a_leader_with_a_longest_hold_hands_over(connect: &impl Connect) {
    let (delayed, other) = both(connect).await;
    let ttl = Duration::from_secs(3);
    let leads = Arc::new(Notify::new());
    let lead = |leases: &Leases, owner: &'static str, leads: Arc<Notify>| {
        let leader = leases.leader("key", ttl).owner(owner).max_hold(ttl);
        spawn(leader.run(async move |_: &Term| {
            leads.notify_one();
            pending::<Result<(), Error>>().await
        }))
    };
    let first = lead(&delayed.leases(), "first", leads.clone());
    timeout(LIMIT, leads.notified()).await.unwrap();
    let leads = Arc::new(Notify::new());
    let second = lead(&other, "second", leads.clone());
    timeout(LIMIT, leads.notified()).await.unwrap();
    first.abort();
    second.abort();
}

/// A guard that is dropped at the end of `main` is released by a close. Without one it holds its key for its ttl.
pub async fn what_is_dropped_at_the_end_of_main_is_free_only_after_a_close(connect: &impl Connect) {
    let (delayed, other) = both(connect).await;
    for closes in [true, false] {
        let (leases, key) = (delayed.leases(), format!("key {closes}"));
        let own = key.clone();
        let main = spawn_blocking(move || {
            let runtime = Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                drop(leases.acquire(own, LONG).await.unwrap());
                if closes {
                    leases.close().await;
                }
            });
        });
        main.await.unwrap();
        assert_eq!(state(&other, &key).await.is_free(), closes);
    }
}
