//! Readers of one process that wait together, beside a writer of another process.

use std::time::Duration;

use leasehold::{Leases, Mode};
use tokio::time::{Instant, sleep, timeout};

use super::{BOUND, MOMENT, TTL, processes, queue, waits};
use crate::{Fate, FlakyStore};

/// If readers of one process were let in singly, only one of each process would get the key between two writes.
#[tokio::test(start_paused = true)]
async fn all_readers_of_a_process_are_let_in_together_and_those_that_come_later_are_not() {
    let (_, [holder, readers, writer]) = processes();
    let held = holder.acquire("key", TTL).await.unwrap();
    let read = || tokio::spawn(readers.acquire("key", TTL).shared().into_future());
    let waiting: Vec<_> = (0..4).map(|_| read()).collect();
    sleep(MOMENT).await;
    let writing = waits(&writer).await;
    assert_eq!(queue(&holder).await, [Mode::Shared, Mode::Exclusive]);
    held.release().await.unwrap();
    let mut reading = Vec::new();
    for waiting in waiting {
        reading.push(timeout(BOUND, waiting).await.unwrap().unwrap().unwrap());
    }
    assert_eq!(queue(&holder).await, [Mode::Exclusive]);
    let late = read();
    sleep(Duration::from_secs(3)).await;
    assert!(!late.is_finished() && !writing.is_finished());
    assert_eq!(queue(&holder).await, [Mode::Exclusive, Mode::Shared]);
    for lease in reading {
        lease.release().await.unwrap();
    }
    let written = timeout(BOUND, writing).await.unwrap().unwrap();
    assert!(!late.is_finished());
    written.release().await.unwrap();
    let _read = timeout(BOUND, late).await.unwrap().unwrap().unwrap();
}

/// If each reader asked after the answer to the one before, the last one would wait for as many answers as there are
/// readers.
#[tokio::test(start_paused = true)]
async fn many_readers_of_a_process_wait_for_few_answers() {
    const READERS: usize = 20;
    const ANSWER: Duration = Duration::from_millis(100);
    let store = FlakyStore::new();
    let [holder, readers, writer] = [(); 3].map(|()| Leases::new(store.clone()));
    let held = holder.acquire("key", TTL).await.unwrap();
    let read = || tokio::spawn(readers.acquire("key", TTL).shared().into_future());
    let waiting: Vec<_> = (0..READERS).map(|_| read()).collect();
    sleep(MOMENT).await;
    let writing = waits(&writer).await;
    held.release().await.unwrap();
    store.next([Fate::AnswerLate(ANSWER); READERS * 10]);
    let start = Instant::now();
    let mut reading = Vec::new();
    for waiting in waiting {
        reading.push(timeout(TTL, waiting).await.unwrap().unwrap().unwrap());
    }
    let took = start.elapsed();
    assert!(took < ANSWER * 5, "{took:?}");
    assert!(!writing.is_finished());
    assert_eq!(queue(&writer).await, [Mode::Exclusive]);
    for lease in reading {
        lease.release().await.unwrap();
    }
    let _written = timeout(BOUND, writing).await.unwrap().unwrap();
}

/// The place was kept for a task, which gives up.
#[tokio::test(start_paused = true)]
async fn a_place_that_was_kept_for_a_reader_is_given_back() {
    let (_, [holder, readers, writer]) = processes();
    let held = holder.acquire("key", TTL).shared().await.unwrap();
    let block = waits(&writer).await;
    let read = || tokio::spawn(readers.acquire("key", TTL).shared().into_future());
    let [first, second] = [read(), read()];
    sleep(MOMENT).await;
    block.abort();
    second.abort();
    let first = timeout(BOUND, first).await.unwrap().unwrap().unwrap();
    sleep(MOMENT).await;
    assert!(queue(&holder).await.is_empty());
    first.release().await.unwrap();
    held.release().await.unwrap();
}

/// The answer to a reader is lost, and it asks again when it has become the last one. The store then grants it what it
/// was granted before, by the request that kept the place.
#[tokio::test(start_paused = true)]
async fn a_place_that_a_lost_request_has_kept_is_given_back() {
    let store = FlakyStore::new();
    let [holder, writer] = [(); 2].map(|()| Leases::new(store.memory.clone()));
    let readers = Leases::new(store.clone());
    let held = holder.acquire("key", TTL).await.unwrap();
    let read = || tokio::spawn(readers.acquire("key", TTL).shared().into_future());
    let [first, cut, second, last] = [read(), read(), read(), read()];
    sleep(MOMENT).await;
    let writing = waits(&writer).await;
    held.release().await.unwrap();
    store.next([
        Fate::AnswerLate(Duration::ZERO),
        Fate::CutAndLate(Duration::ZERO),
        Fate::AnswerLate(MOMENT),
    ]);
    let mut reading = vec![first.await.unwrap().unwrap()];
    last.abort();
    for reader in [cut, second] {
        reading.push(timeout(BOUND, reader).await.unwrap().unwrap().unwrap());
    }
    sleep(MOMENT).await;
    assert_eq!(queue(&holder).await, [Mode::Exclusive]);
    for lease in reading {
        lease.release().await.unwrap();
    }
    let _written = timeout(BOUND, writing).await.unwrap().unwrap();
}
