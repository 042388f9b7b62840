//! Readers of one process that wait together, beside a writer of another process.

use std::time::Duration;

use leasehold::{Error, Lease, Leases, Mode};
use tokio::{
    task::JoinHandle,
    time::{Instant, sleep, sleep_until, timeout},
};

use super::{BOUND, MOMENT, TTL, processes, queue, waits};
use crate::{Fate, FlakyStore};

/// How long other readers of a process come before those that wait, after a reader was granted the key in its turn.
const SHARED_TURN: Duration = Duration::from_millis(30);

type Reader = JoinHandle<Result<Lease, Error>>;

/// When the readers have released the key, the writer is granted it, and after that the late reader.
async fn writer_and_then_reader(reading: Vec<Lease>, writing: JoinHandle<Lease>, late: Reader) {
    for lease in reading {
        lease.release().await.unwrap();
    }
    let written = timeout(BOUND, writing).await.unwrap().unwrap();
    assert!(!late.is_finished());
    written.release().await.unwrap();
    let _read = timeout(BOUND, late).await.unwrap().unwrap().unwrap();
}

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
    sleep(SHARED_TURN).await;
    let late = read();
    sleep(Duration::from_secs(3)).await;
    assert!(!late.is_finished() && !writing.is_finished());
    assert_eq!(queue(&holder).await, [Mode::Exclusive, Mode::Shared]);
    writer_and_then_reader(reading, writing, late).await;
}

/// All of them wait for the same turn. If each of them asked as often as the first, their requests would have no bound.
#[tokio::test(start_paused = true)]
async fn many_processes_that_read_ask_little_more_often_than_as_many_that_write() {
    let asks = async |reads: bool| {
        let store = FlakyStore::new();
        let writer = Leases::new(store.memory.clone());
        let held = writer.acquire("key", TTL).await.unwrap();
        let ask = || {
            let ask = Leases::new(store.clone()).acquire("key", TTL);
            let ask = if reads { ask.shared() } else { ask };
            tokio::spawn(ask.into_future())
        };
        let waiting: Vec<_> = (0..100).map(|_| ask()).collect();
        sleep(TTL / 6).await;
        let asked = store.calls().len();
        waiting.iter().for_each(JoinHandle::abort);
        held.release().await.unwrap();
        asked
    };
    let (reads, writes) = (asks(true).await, asks(false).await);
    assert!(reads < 3 * writes, "{reads} and {writes}");
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

/// The request for the readers is lost, and the server carries it out a moment later. They have asked again by then, or
/// are granted what it was granted.
#[tokio::test(start_paused = true)]
async fn a_lost_request_for_readers_leaves_no_place() {
    let store = FlakyStore::new();
    let [holder, writer] = [(); 2].map(|()| Leases::new(store.memory.clone()));
    let readers = Leases::new(store.clone());
    let held = holder.acquire("key", TTL).await.unwrap();
    let read = || tokio::spawn(readers.acquire("key", TTL).shared().into_future());
    let waiting = [read(), read(), read()];
    sleep(MOMENT).await;
    let writing = waits(&writer).await;
    held.release().await.unwrap();
    store.next([Fate::CutAndLate(MOMENT)]);
    let mut reading = Vec::new();
    for reader in waiting {
        reading.push(timeout(BOUND, reader).await.unwrap().unwrap().unwrap());
    }
    sleep(MOMENT).await;
    assert_eq!(queue(&holder).await, [Mode::Exclusive]);
    for lease in reading {
        lease.release().await.unwrap();
    }
    let _written = timeout(BOUND, writing).await.unwrap().unwrap();
}

/// Waits until the task has a lease or has had time to get one.
async fn has_read(task: &Reader) -> bool {
    sleep(Duration::from_millis(1)).await;
    task.is_finished()
}

/// Otherwise a writer that wants the key all the time would leave each reader one lease between two of its own.
#[tokio::test(start_paused = true)]
async fn readers_come_again_before_a_writer_until_the_shared_turn_is_over() {
    let (_, [readers, writer]) = processes();
    let read = || tokio::spawn(readers.acquire("key", TTL).shared().into_future());
    let start = Instant::now();
    let mut reading = vec![readers.acquire("key", TTL).shared().await.unwrap()];
    let writing = waits(&writer).await;
    while start.elapsed() + Duration::from_millis(2) < SHARED_TURN {
        let again = read();
        assert!(has_read(&again).await, "{:?}", start.elapsed());
        reading.push(again.await.unwrap().unwrap());
    }
    assert!(reading.len() > 6);
    // These grants did not prolong it.
    sleep_until(start + SHARED_TURN).await;
    let late = read();
    assert!(!has_read(&late).await);
    assert_eq!(queue(&writer).await, [Mode::Exclusive, Mode::Shared]);
    writer_and_then_reader(reading, writing, late).await;
}

#[tokio::test(start_paused = true)]
async fn writers_and_permits_have_no_shared_turn() {
    for asks_for_a_permit in [false, true] {
        let (_, [readers, writer]) = processes();
        let held = readers.acquire("key", TTL).shared().await.unwrap();
        let writing = waits(&writer).await;
        held.release().await.unwrap();
        let asks = readers.acquire("key", TTL);
        let asks = match asks_for_a_permit {
            true => asks.permits(1, 9).into_future(),
            false => asks.into_future(),
        };
        let asks = tokio::spawn(asks);
        let _written = timeout(BOUND, writing).await.unwrap().unwrap();
        assert!(!asks.is_finished(), "a permit: {asks_for_a_permit}");
    }
}

/// The key was granted to a writer meanwhile, so the turn of the readers is over.
#[tokio::test(start_paused = true)]
async fn a_refusal_ends_the_shared_turn() {
    let (_, [readers, first, second]) = processes();
    let read = || readers.acquire("key", TTL).shared();
    read().await.unwrap().release().await.unwrap();
    let written = first.acquire("key", TTL).await.unwrap();
    let refused = read().wait_for(Duration::from_millis(1)).await;
    assert!(matches!(refused, Err(Error::WaitTimedOut { .. })));
    let writing = waits(&second).await;
    let behind = tokio::spawn(read().into_future());
    written.release().await.unwrap();
    let _written = timeout(BOUND, writing).await.unwrap().unwrap();
    assert!(!behind.is_finished());
}

/// The store grants it again what it was granted before the writer.
#[tokio::test(start_paused = true)]
async fn a_lost_answer_begins_no_other_shared_turn() {
    let store = FlakyStore::new();
    let writer = Leases::new(store.memory.clone());
    let readers = Leases::new(store.clone());
    let read = || readers.acquire("key", TTL).shared();
    let start = Instant::now();
    let mut reading = vec![read().await.unwrap()];
    let _writing = waits(&writer).await;
    store.next([Fate::AnswerLost]);
    reading.push(read().await.unwrap());
    assert!(start.elapsed() < SHARED_TURN);
    sleep_until(start + SHARED_TURN).await;
    let late = tokio::spawn(read().into_future());
    assert!(!has_read(&late).await);
}

#[tokio::test(start_paused = true)]
async fn a_refusal_in_a_shared_turn_ends_a_wait_whose_time_is_over() {
    let store = FlakyStore::new();
    let writer = Leases::new(store.memory.clone());
    let readers = Leases::new(store.clone());
    let read = || readers.acquire("key", TTL).shared();
    read().await.unwrap().release().await.unwrap();
    let _written = writer.acquire("key", TTL).await.unwrap();
    store.next([Fate::AnswerLate(MOMENT); 9]);
    let start = Instant::now();
    let refused = read().wait_for(MOMENT / 2).await;
    assert!(matches!(refused, Err(Error::WaitTimedOut { .. })));
    assert_eq!(start.elapsed(), MOMENT);
}
