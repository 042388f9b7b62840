//! Requests of many tasks that are sent together, as batches.

use std::time::Duration;

use futures::{StreamExt, future::join_all};
use leasehold::{Attempt, Error, Filter, Lease, Leases, jobs::Once};
use tokio::{
    runtime::Runtime,
    task::JoinHandle,
    time::{Instant, sleep, timeout},
};

use super::{Fate, FlakyStore, LIMIT, MARGIN, MOMENT, PATIENCE, TTL};

/// A store that asks for at most this many requests at once. Each request takes it a moment.
fn at_once(number: usize) -> (FlakyStore, Leases) {
    let mut store = FlakyStore::new();
    store.at_once = number;
    store.next(std::iter::repeat_n(Fate::AnswerLate(MOMENT), 10_000));
    (store.clone(), Leases::new(store))
}

async fn cycle(leases: &Leases, number: usize) {
    let lease = leases.acquire(format!("key {number}"), TTL).await.unwrap();
    lease.release().await.unwrap();
}

async fn all_free(store: &FlakyStore) -> bool {
    let mut held = Leases::new(store.memory.clone()).list(Filter::new().live());
    held.next().await.is_none()
}

#[tokio::test(start_paused = true)]
async fn few_go_alone_and_at_once() {
    let (store, leases) = at_once(2);
    let start = Instant::now();
    join_all((0..2).map(|number| cycle(&leases, number))).await;
    assert_eq!(start.elapsed(), MOMENT * 2);
    assert_eq!(store.batched.lock().len(), 0);
}

#[tokio::test(start_paused = true)]
async fn many_go_together() {
    let (store, leases) = at_once(2);
    let start = Instant::now();
    join_all((0..64).map(|number| cycle(&leases, number))).await;
    // First two acquires go alone. The next batch has the other 62 acquires and the two releases. And so on.
    assert!(start.elapsed() <= MOMENT * 5, "{:?}", start.elapsed());
    let batched = store.batched.lock().clone();
    assert!(batched.iter().sum::<usize>() >= 120, "{batched:?}");
    assert!(store.calls().len() < 12);
    assert!(all_free(&store).await);
}

/// Eight tasks that go on asking are a crowd, so they wait for each other, until each batch has a request of each. Five are
/// none.
#[tokio::test(start_paused = true)]
async fn a_crowd_waits_for_each_other() {
    for tasks in [8, 5] {
        let (store, leases) = at_once(16);
        let work = (0..tasks).map(|task| {
            let leases = leases.clone();
            tokio::spawn(async move {
                for _ in 0..100 {
                    cycle(&leases, task).await;
                }
            })
        });
        for ended in join_all(work).await {
            ended.unwrap();
        }
        let batched = store.batched.lock().clone();
        match tasks {
            // The first ones go at once, so some tasks end before others.
            8 => assert_eq!(batched[batched.len() - 110..][..100], [8; 100]),
            _ => assert_eq!(batched, [0; 0]),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_batch_has_a_bound() {
    let (store, leases) = at_once(1);
    let acquire = |number| leases.acquire(format!("key {number}"), TTL);
    let held = join_all((0..1_000).map(|number| acquire(number).into_future())).await;
    assert!(held.iter().all(Result::is_ok));
    let batched = store.batched.lock().clone();
    assert_eq!(batched.iter().max(), Some(&100));
}

/// Requests for one key go one after the other: the first is granted the key, and the others are told who holds it.
#[tokio::test(start_paused = true)]
async fn no_key_is_twice_in_a_batch() {
    let (store, leases) = at_once(1);
    let ask = |number| leases.try_acquire(format!("key {}", number % 10), TTL);
    let asked = join_all((0..40).map(|number| ask(number).into_future())).await;
    let granted = |attempt: &&Result<Attempt, Error>| matches!(attempt, Ok(Attempt::Acquired(_)));
    assert_eq!(asked.iter().filter(granted).count(), 10);
    assert!(asked.iter().all(Result::is_ok), "{asked:?}");
    assert_eq!(store.batched.lock().iter().max(), Some(&10));
}

/// Requests for one key cannot share a batch, and no more of them are sent at once than the store asks for.
#[tokio::test(start_paused = true)]
async fn many_that_want_one_key_keep_to_what_the_store_likes() {
    let (store, leases) = at_once(2);
    let start = Instant::now();
    let asked = (0..20).map(|_| leases.try_acquire("key", TTL).into_future());
    let asked = join_all(asked).await;
    assert!(asked.iter().all(Result::is_ok));
    assert_eq!(start.elapsed(), MOMENT * 10);
    assert_eq!(store.batched.lock().len(), 0);
}

/// One batch hangs. Requests that come after it do not wait for it.
#[tokio::test(start_paused = true)]
async fn a_batch_that_hangs_holds_up_nobody_for_long() {
    let (store, leases) = at_once(1);
    store.fates_now([Fate::AnswerLate(MOMENT), Fate::Late(TTL * 100)]);
    let hanging = (0..20).map(|number| leases.acquire(format!("key {number}"), TTL).into_future());
    let hanging = tokio::spawn(join_all(hanging));
    sleep(MOMENT * 2).await;
    let start = Instant::now();
    cycle(&leases, 100).await;
    let took = start.elapsed();
    assert!(took <= Duration::from_millis(50) + MOMENT * 2, "{took:?}");
    hanging.abort();
}

/// After a batch has failed, each of its requests is retried alone, so that one that hangs holds up no other.
#[tokio::test(start_paused = true)]
async fn after_an_error_each_goes_alone() {
    for fate in [
        Fate::NotSent,
        Fate::AnswerLost,
        Fate::AnswerCut,
        Fate::Panic,
        Fate::Late(LIMIT * 2),
        Fate::AnswerLate(LIMIT * 2),
    ] {
        let (store, leases) = at_once(1);
        let first = leases.acquire("the first", TTL).into_future();
        let first = tokio::spawn(first);
        sleep(MOMENT / 2).await;
        // This happens to the first batch.
        store.fates_now([fate]);
        let asked =
            (0..20).map(|number| leases.acquire(format!("key {number}"), TTL).into_future());
        let asked = tokio::spawn(join_all(asked));
        let start = Instant::now();
        let held = timeout(TTL, asked).await.unwrap().unwrap();
        let held: Vec<_> = held.into_iter().collect::<Result<_, _>>().unwrap();
        assert!(
            start.elapsed() < Duration::from_secs(2),
            "{fate:?}: {:?}",
            start.elapsed()
        );
        drop((first.await.unwrap().unwrap(), held));
        leases.close().await;
        sleep(LIMIT * 5).await;
        assert!(all_free(&store).await, "{fate:?}");
    }
}

/// When a batch hangs, each request whose caller still waits is sent once more. A request without a caller is not.
#[tokio::test(start_paused = true)]
async fn an_overdue_request_is_sent_again_for_who_waits() {
    for gone in [0, 4] {
        let (store, leases) = at_once(1);
        store.fates_now([Fate::AnswerLate(MOMENT), Fate::Late(TTL * 100)]);
        let first = tokio::spawn(leases.acquire("the first", TTL).into_future());
        sleep(MOMENT / 2).await;
        let acquire = |number| leases.acquire(format!("key {number}"), TTL).into_future();
        let mut asked: Vec<_> = (0..8).map(|it| tokio::spawn(acquire(it))).collect();
        sleep(MOMENT).await;
        assert_eq!(*store.batched.lock(), [8]);
        for gone in asked.drain(..gone) {
            gone.abort();
        }
        store.calls();
        let held = timeout(Duration::from_millis(1_500), join_all(asked)).await;
        assert_eq!(held.unwrap().len(), 8 - gone);
        sleep(TTL).await;
        let acquires = store.calls().into_iter().filter(|call| *call == "acquire");
        assert_eq!(acquires.count(), 8 - gone);
        drop(first.await.unwrap().unwrap());
    }
}

/// A batch hangs, and its requests are repeated, one after the other. The store reads what it answers, so its answer may
/// show the grant of a repetition, which a failover can still undo. So it counts only for those that were not repeated.
#[tokio::test(start_paused = true)]
async fn what_a_repetition_may_have_been_granted_counts_when_that_is_answered() {
    let second = Duration::from_secs(1);
    for (late, repetitions) in [(second + MOMENT * 5, 1), (second * 3 / 2, 3)] {
        let (store, leases) = at_once(1);
        store.fates_now([Fate::AnswerLate(MOMENT), Fate::AnswerLate(late)]);
        store.next([Fate::AnswerLate(second - MOMENT); 8]);
        let start = Instant::now();
        let first = tokio::spawn(leases.acquire("the first", TTL).into_future());
        sleep(MOMENT / 2).await;
        let ask = async |number| {
            let lease = leases.acquire(format!("key {number}"), TTL).await.unwrap();
            (lease, start.elapsed())
        };
        let granted = join_all((0..8).map(ask)).await;
        assert_eq!(*store.batched.lock(), [8]);
        let mut calls = vec!["acquire"; 2 + repetitions];
        calls[1] = "batch";
        assert_eq!(store.calls(), calls);
        let (by_batch, alone): (Vec<_>, Vec<_>) =
            granted.iter().partition(|(_, took)| *took < second * 9 / 5);
        assert_eq!(
            (by_batch.len(), alone.len()),
            (8 - repetitions, repetitions)
        );
        assert!(alone.iter().all(|(_, took)| *took < second * 3));
        drop((first.await.unwrap().unwrap(), granted));
        // Nothing is unclear after the grant. So each lease is released once, which takes a second here, and the close waits
        // for no second release.
        let closing = Instant::now();
        leases.close().await;
        assert!(closing.elapsed() <= second, "{:?}", closing.elapsed());
        assert!(all_free(&store).await);
    }
}

/// The repetition of a request of a batch is lost. When the batch shows a grant, the store may keep the lease although no
/// task can use it. So the request is sent once more after a second, and not only when the repetition counts as failed.
#[tokio::test(start_paused = true)]
async fn a_repetition_that_is_lost_is_repeated_if_the_batch_shows_a_grant() {
    let second = Duration::from_secs(1);
    let (store, leases) = at_once(1);
    let late = second + MOMENT * 5;
    store.fates_now([Fate::AnswerLate(MOMENT), Fate::AnswerLate(late)]);
    store.next([Fate::Late(TTL * 100)]);
    let first = tokio::spawn(leases.acquire("the first", TTL).into_future());
    sleep(MOMENT / 2).await;
    let start = Instant::now();
    let ask = |number| leases.acquire(format!("key {number}"), TTL).into_future();
    let granted = join_all((0..8).map(ask)).await;
    assert!(granted.iter().all(Result::is_ok));
    assert!(
        start.elapsed() <= second * 2 + MOMENT * 3,
        "{:?}",
        start.elapsed()
    );
    assert_eq!(store.calls(), ["acquire", "batch", "acquire", "acquire"]);
    drop(first.await.unwrap().unwrap());
}

/// The answer to a batch of releases is late, so each of them is sent again, and finds no lease any more.
#[tokio::test(start_paused = true)]
async fn a_repeat_that_finds_the_lease_released_reports_no_loss() {
    let (store, leases) = at_once(1);
    let acquire = |number| leases.acquire(format!("key {number}"), TTL).into_future();
    let held = join_all((0..9).map(acquire)).await;
    let held: Vec<_> = held.into_iter().collect::<Result<_, _>>().unwrap();
    // The batch of the acquires has a slot for a moment after its answers.
    sleep(MOMENT).await;
    store.fates_now([Fate::AnswerLate(MOMENT), Fate::AnswerLate(TTL / 3)]);
    store.batched.lock().clear();
    let start = Instant::now();
    for released in join_all(held.into_iter().map(Lease::release)).await {
        released.unwrap();
    }
    assert_eq!(*store.batched.lock(), [8]);
    assert!(
        start.elapsed() < TTL / 3,
        "nobody waits for the late answer"
    );
    assert!(all_free(&store).await);
}

/// After a batch of releases has failed, each release is retried alone. Each caller is told that its lease was
/// released, although the first try may have been carried out.
#[tokio::test(start_paused = true)]
async fn after_an_error_each_is_released_alone() {
    for fate in [
        Fate::NotSent,
        Fate::AnswerLost,
        Fate::AnswerCut,
        Fate::Late(LIMIT * 2),
    ] {
        let (store, leases) = at_once(1);
        let held = join_all(
            (0..20).map(|number| leases.acquire(format!("key {number}"), TTL).into_future()),
        );
        let held: Vec<_> = held.await.into_iter().collect::<Result<_, _>>().unwrap();
        // The first release goes alone, and the others together.
        store.fates_now([Fate::AnswerLate(MOMENT), fate]);
        let start = Instant::now();
        for outcome in join_all(held.into_iter().map(Lease::release)).await {
            outcome.unwrap();
        }
        assert!(
            start.elapsed() < Duration::from_secs(2),
            "{fate:?}: {:?}",
            start.elapsed()
        );
        assert!(all_free(&store).await, "{fate:?}");
    }
}

/// While the store is slow, requests wait for a place among those under way, however long an answer takes.
#[tokio::test(start_paused = true)]
async fn a_slow_store_is_not_sent_all_at_once() {
    for slow in [Duration::from_millis(700), Duration::from_millis(1_500)] {
        let (store, leases) = at_once(2);
        store.fates_now(std::iter::repeat_n(Fate::AnswerLate(slow), 10_000));
        let acquire = |number| {
            leases
                .acquire(format!("key {number}"), TTL * 10)
                .into_future()
        };
        let held = join_all((0..1_000).map(acquire)).await;
        assert!(held.iter().all(Result::is_ok), "{slow:?}");
        // Ten batches would be enough. Some requests are sent once more, because the first answer is late.
        let calls = store.calls().len();
        assert!(calls <= 60, "{slow:?}: {calls} calls");
    }
}

/// A request that waits for a place is never sent if its caller is dropped.
#[tokio::test(start_paused = true)]
async fn who_goes_before_its_turn_asks_for_nothing() {
    let (store, leases) = at_once(1);
    store.gates.close(0);
    let first = tokio::spawn(leases.acquire("the first", TTL).into_future());
    store.gates.reached().await;
    assert!(timeout(MOMENT, leases.acquire("key", TTL)).await.is_err());
    store.gates.open();
    let first = first.await.unwrap().unwrap();
    sleep(LIMIT).await;
    assert_eq!(store.calls(), ["acquire"]);
    first.release().await.unwrap();
}

/// A request that hangs gives up its place after a while.
#[tokio::test(start_paused = true)]
async fn requests_that_hang_keep_nobody_waiting() {
    let (store, leases) = at_once(2);
    store.fates_now([Fate::Late(TTL * 100), Fate::Late(TTL * 100)]);
    for number in 0..2 {
        let hanging = leases.acquire(format!("hanging {number}"), TTL);
        assert!(timeout(MOMENT, hanging).await.is_err());
    }
    let start = Instant::now();
    cycle(&leases, 0).await;
    assert!(
        start.elapsed() <= Duration::from_millis(300),
        "{:?}",
        start.elapsed()
    );
    let start = Instant::now();
    cycle(&leases, 1).await;
    assert_eq!(
        start.elapsed(),
        Duration::ZERO,
        "they do not count any more"
    );
}

/// A request whose runtime ends does not strand the requests that wait for it.
#[test]
fn the_end_of_a_runtime_strands_nobody() {
    let (store, leases) = at_once(1);
    let other = tokio::runtime::Builder::new_multi_thread();
    let other = { other }.worker_threads(1).enable_all().build().unwrap();
    let here = tokio::runtime::Builder::new_current_thread();
    let here = { here }.enable_all().build().unwrap();
    here.block_on(cycle(&leases, 1));
    store.calls();
    store.fates_now([Fate::Late(TTL)]);
    other.spawn(leases.acquire("hanging", TTL).into_future());
    here.block_on(async {
        while store.calls().is_empty() {
            sleep(MOMENT).await;
        }
        let asked =
            (0..10).map(|number| leases.acquire(format!("key {number}"), TTL).into_future());
        let asked = tokio::spawn(join_all(asked));
        sleep(MOMENT).await;
        other.shutdown_background();
        let held = timeout(PATIENCE, asked).await.unwrap().unwrap();
        assert!(held.iter().all(Result::is_ok), "{held:?}");
    });
}

/// A runtime with a paused clock, so that the speed of the machine does not matter. The clock advances only while the
/// runtime is driven, and stops between two calls of `block_on`.
fn driven() -> Runtime {
    let runtime = tokio::runtime::Builder::new_current_thread();
    { runtime }.enable_all().start_paused(true).build().unwrap()
}

/// Ten acquires at the same time.
fn ten(leases: &Leases) -> impl Future<Output = Vec<Result<Lease, Error>>> + use<> {
    let asked = (0..10).map(|number| leases.acquire(format!("key {number}"), TTL));
    join_all(asked.map(IntoFuture::into_future))
}

/// The guest acquires a key on a runtime that is driven no more afterwards. Batches of other runtimes do not wait for
/// it.
#[test]
fn a_runtime_that_stands_still_holds_up_no_batch() {
    let (store, leases) = at_once(1);
    store.fates_now([]);
    let (here, still) = (driven(), driven());
    here.block_on(cycle(&leases, 1));
    store.calls();
    // The guest is answered only after the others have joined the queue.
    store.gates.close(1);
    let guest = still.spawn(leases.try_acquire("the guest", TTL).into_future());
    still.block_on(store.gates.reached());
    let asked = here.spawn(ten(&leases));
    here.block_on(async { tokio::task::yield_now().await });
    store.gates.open();
    let guest = still.block_on(guest).unwrap().unwrap();
    let took = here.block_on(all_granted(asked));
    assert_eq!(took, Duration::ZERO);
    assert_eq!(*store.batched.lock(), [8], "as soon as they are enough");
    assert_eq!(store.calls(), ["acquire", "batch", "acquire", "acquire"]);
    drop((guest, still));
}

/// How long it takes until all of them are granted.
async fn all_granted(asked: JoinHandle<Vec<Result<Lease, Error>>>) -> Duration {
    let start = Instant::now();
    let held = asked.await.unwrap();
    assert!(held.iter().all(Result::is_ok), "{held:?}");
    start.elapsed()
}

/// Whether a failover may undo a release is decided when the release is sent: one that has waited past the local
/// deadline of its lease is durable.
#[tokio::test(start_paused = true)]
async fn a_release_that_waits_past_the_deadline_is_durable() {
    // One request more than there are places is sent after 200 ms without an answer.
    for (ttl, undoable) in [(TTL, true), (MARGIN + MOMENT * 15, false)] {
        let (store, leases) = at_once(1);
        let lease = leases.acquire("key", ttl).await.unwrap();
        store.fates_now([Fate::AnswerLate(TTL)]);
        let slow = tokio::spawn(leases.try_acquire("slow", TTL * 9).into_future());
        sleep(MOMENT / 2).await;
        assert!(lease.is_live());
        lease.release().await.unwrap();
        assert_eq!(*store.undoable.lock(), [undoable]);
        drop(slow.await.unwrap().unwrap());
    }
}

/// Batches follow each other without a pause. A request that must not go in a batch, the release of a tick that is
/// done, waits for none of them.
#[tokio::test(start_paused = true)]
async fn what_must_go_alone_is_sent_beside_batches() {
    let (store, leases) = at_once(8);
    // No two batches end together, so one of them is always recent.
    let late = (0..100_000).map(|number| Fate::AnswerLate(MOMENT + MOMENT * (number % 7) / 7));
    store.fates_now(late);
    let tasks = (0..64).map(|task| {
        let leases = leases.clone();
        tokio::spawn(async move {
            loop {
                cycle(&leases, task).await;
            }
        })
    });
    let tasks: Vec<_> = tasks.collect();
    sleep(MOMENT * 10).await;
    let start = Instant::now();
    let ran = leases.once("job", 1_u32).run(async |_| Ok::<_, Error>(()));
    assert!(matches!(ran.await, Ok(Once::Ran(()))));
    assert!(start.elapsed() < LIMIT, "{:?}", start.elapsed());
    assert!(store.batched.lock().len() > 10, "there were no batches");
    tasks.iter().for_each(JoinHandle::abort);
}

/// A release without a caller does not wait for the other requests of its batch either.
#[tokio::test(start_paused = true)]
async fn an_overdue_release_in_the_background_is_sent_again() {
    let (store, leases) = at_once(1);
    let acquire = |number| leases.acquire(format!("key {number}"), TTL).into_future();
    let held = join_all((0..8).map(acquire)).await;
    let held: Vec<_> = held.into_iter().collect::<Result<_, _>>().unwrap();
    store.fates_now([Fate::AnswerLate(MOMENT), Fate::Late(TTL * 100)]);
    let first = tokio::spawn(acquire(100));
    sleep(MOMENT / 2).await;
    store.batched.lock().clear();
    drop(held);
    sleep(MOMENT).await;
    assert_eq!(*store.batched.lock(), [8]);
    drop(first.await.unwrap().unwrap());
    // The repetitions go one after the other.
    sleep(Duration::from_millis(1_500)).await;
    assert!(all_free(&store).await);
}

/// The runtime is blocked while a request waits for others that are under way, and then the handle closes.
#[test]
fn a_close_after_a_block_ends_what_waits_to_be_sent() {
    let (told, done) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let (store, leases) = at_once(1);
        store.fates_now([Fate::Late(TTL * 100)]);
        let runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = { runtime }.enable_all().build().unwrap();
        runtime.block_on(async {
            let first = leases.acquire("first", TTL).into_future();
            assert!(timeout(MOMENT, first).await.is_err());
            let mut waits = std::pin::pin!(leases.acquire("key", TTL).into_future());
            assert!(futures::poll!(&mut waits).is_pending());
            std::thread::sleep(Duration::from_millis(1_100));
            assert!(timeout(MOMENT, leases.close()).await.is_err());
            assert!(matches!(waits.await, Err(Error::Closed)));
        });
        // What was not sent is not released.
        told.send(store.calls()).unwrap();
    });
    let calls = done.recv_timeout(PATIENCE).expect("the close hangs");
    let acquires = calls.iter().filter(|it| **it == "acquire").count();
    assert_eq!(acquires, 1, "{calls:?}");
}
