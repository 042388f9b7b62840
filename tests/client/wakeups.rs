//! What waiters hear from a store that tells which keys become free.

use std::time::Duration;

use leasehold::{Error, Leases};
use tokio::time::{Instant, sleep};

use super::{FlakyStore, MOMENT, TTL, flaky::News, setup};

const MINUTE: Duration = Duration::from_secs(60);

/// The store, the leases that will wait, the lease of another process that holds the key, and the
/// handle of that process.
async fn waiting(news: News) -> (FlakyStore, Leases, leasehold::Lease, Leases) {
    let (store, leases) = setup();
    store.set_news(news);
    let other = Leases::new(store.memory.clone());
    let holder = other.acquire("key", TTL * 100).await.unwrap();
    (store, leases, holder, other)
}

#[tokio::test(start_paused = true)]
async fn a_key_that_is_told_is_asked_for_at_once() {
    let (store, leases, holder, _other) = waiting(News::Told).await;
    let waiter = tokio::spawn(leases.acquire("key", TTL).into_future());
    sleep(TTL).await;
    holder.release().await.unwrap();
    // This is between two of the polls that go on as a safety net.
    sleep(MOMENT).await;
    let start = Instant::now();
    store.tell("another");
    store.tell("key");
    let lease = waiter.await.unwrap().unwrap();
    assert_eq!(start.elapsed(), Duration::ZERO);
    lease.release().await.unwrap();
    assert_eq!(store.streams(), 1);
}

/// The stream does not name the process that comes next, so each process goes by what its last refusal said.
#[tokio::test(start_paused = true)]
async fn of_many_processes_that_hear_of_a_key_the_first_asks() {
    const PROCESSES: usize = 20;
    // The control: those that barge all ask.
    for (barging, least, most) in [(false, 1, 2), (true, PROCESSES, 2 * PROCESSES)] {
        let (store, _, holder, other) = waiting(News::Told).await;
        let mut waits = Vec::new();
        for number in 1..=PROCESSES {
            let acquire = Leases::new(store.clone()).acquire("key", TTL);
            let acquire = if barging { acquire.barging() } else { acquire };
            waits.push(tokio::spawn(acquire.into_future()));
            sleep(MOMENT).await;
            let places = other.inspect("key").await.unwrap().unwrap().waiters.len();
            assert_eq!(places, if barging { 0 } else { number });
        }
        // Then the pauses are long.
        sleep(TTL).await;
        holder.release().await.unwrap();
        store.calls();
        store.tell("key");
        sleep(Duration::from_millis(1)).await;
        let asked = store
            .calls()
            .iter()
            .filter(|call| **call == "acquire")
            .count();
        assert!(
            (least..=most).contains(&asked),
            "{asked} asked, barging: {barging}"
        );
        waits.iter().for_each(tokio::task::JoinHandle::abort);
    }
}

/// Each open stream costs the server work for each change of the key.
#[tokio::test(start_paused = true)]
async fn a_stream_is_opened_for_a_key_that_is_held_for_long() {
    // The control: long holds, and those that a waiter without reports would sleep past.
    for (hold, is_opened) in [(MOMENT, false), (MOMENT * 20, true), (MOMENT * 100, true)] {
        let (store, leases, mut holder, other) = waiting(News::Told).await;
        for _ in 0..50 {
            let waiter = tokio::spawn(leases.acquire("key", TTL * 100).into_future());
            sleep(hold).await;
            holder.release().await.unwrap();
            let lease = waiter.await.unwrap().unwrap();
            let next = tokio::spawn(other.acquire("key", TTL * 100).into_future());
            sleep(MOMENT).await;
            lease.release().await.unwrap();
            holder = next.await.unwrap().unwrap();
        }
        assert_eq!(store.streams() > 0, is_opened, "held for {hold:?}");
    }
}

/// Its waiter pauses for as long as it has had to wait, however short each hold is.
#[tokio::test(start_paused = true)]
async fn a_key_whose_owner_takes_new_leases_all_the_time_is_asked_for_at_once() {
    let (store, leases) = setup();
    store.set_news(News::Told);
    let other = Leases::new(store.memory.clone());
    let first = other.acquire("key", TTL * 100).shared().await.unwrap();
    let waiter = tokio::spawn(leases.acquire("key", TTL).into_future());
    for _ in 0..100 {
        let another = other.acquire("key", TTL).shared().barging().await.unwrap();
        sleep(MOMENT * 20).await;
        another.release().await.unwrap();
    }
    first.release().await.unwrap();
    let start = Instant::now();
    store.tell("key");
    drop(waiter.await.unwrap().unwrap());
    assert_eq!(start.elapsed(), Duration::ZERO);
}

/// The task that holds the key wakes the others of its process.
#[tokio::test(start_paused = true)]
async fn no_stream_is_opened_for_a_lease_of_the_same_process() {
    let (store, leases) = setup();
    store.set_news(News::Told);
    let held = leases.acquire("key", TTL * 100).await.unwrap();
    let waiter = tokio::spawn(leases.acquire("key", TTL).into_future());
    sleep(TTL).await;
    assert_eq!(store.streams(), 0);
    held.release().await.unwrap();
    drop(waiter.await.unwrap().unwrap());
}

#[tokio::test(start_paused = true)]
async fn no_stream_is_opened_when_the_wait_is_over() {
    // The last refusal is the first after which a pause would last until the key has been held for a quarter of a
    // second. The control: a wait that goes on.
    for (wait, streams) in [(Duration::from_millis(4), 0), (TTL, 1)] {
        let (store, leases, _holder, _other) = waiting(News::Told).await;
        sleep(Duration::from_millis(238)).await;
        let acquire = leases.acquire("key", TTL).wait_for(wait);
        acquire.await.unwrap_err();
        sleep(TTL).await;
        assert_eq!(store.streams(), streams, "{wait:?}");
    }
}

/// Two processes hand a key on to each other, and hold it for this long each time, until this time is over.
async fn hand_on(store: &FlakyStore, processes: [&Leases; 2], hold: Duration, time: Duration) {
    let start = Instant::now();
    let mut lease = processes[0].acquire("key", TTL).await.unwrap();
    for next in [1, 0].into_iter().cycle() {
        let waiter = tokio::spawn(processes[next].acquire("key", TTL).into_future());
        sleep(hold).await;
        lease.release().await.unwrap();
        if store.is_listened_to() {
            store.tell("key");
        }
        lease = waiter.await.unwrap().unwrap();
        if start.elapsed() > time {
            break;
        }
    }
    lease.release().await.unwrap();
}

/// While the stream is open, each pause is long. That alone must not keep it open.
#[tokio::test(start_paused = true)]
async fn a_stream_ends_when_the_holds_are_brief() {
    let (store, leases) = setup();
    store.set_news(News::Told);
    let others = Leases::new(store.clone());
    // The control: the holds stay long.
    for (then, is_open) in [(MOMENT * 100, true), (MOMENT, false)] {
        hand_on(&store, [&leases, &others], MOMENT * 100, MINUTE).await;
        assert!(store.is_listened_to());
        hand_on(&store, [&leases, &others], then, MINUTE).await;
        assert_eq!(store.is_listened_to(), is_open, "{then:?}");
    }
}

/// A waiter that does not need the stream pauses for longer while it is open.
#[tokio::test(start_paused = true)]
async fn a_waiter_asks_when_the_stream_ends() {
    let (store, leases, _holder, other) = waiting(News::Told).await;
    let needs_reports = tokio::spawn(leases.acquire("key", TTL).into_future());
    sleep(TTL).await;
    needs_reports.abort();
    // The newest of the holders has the key for a short time only, and each report makes the waiter ask.
    let _first = other.acquire("another", TTL * 100).shared().await.unwrap();
    let waiter = tokio::spawn(leases.acquire("another", TTL).into_future());
    let mut others = Vec::new();
    let mut asked = false;
    while store.is_listened_to() {
        let acquire = other.acquire("another", TTL * 100).shared().barging();
        others.push(acquire.await.unwrap());
        store.tell("another");
        for _ in 0..50 {
            sleep(Duration::from_millis(2)).await;
            asked = store.calls().contains(&"acquire");
            if !store.is_listened_to() {
                break;
            }
        }
    }
    assert!(asked);
    waiter.abort();
}

/// An owner that enters again waits for the other readers, and not for its own lease.
#[tokio::test(start_paused = true)]
async fn an_owner_that_enters_again_is_told_of_the_releases_of_others() {
    let (store, leases) = setup();
    store.set_news(News::Told);
    let other = Leases::new(store.memory.clone());
    let reads = leases.acquire("key", TTL * 100).shared().await.unwrap();
    let others = other.acquire("key", TTL * 100).shared().await.unwrap();
    let waiter = tokio::spawn(leases.acquire("key", TTL).reentrant().into_future());
    sleep(TTL).await;
    others.release().await.unwrap();
    let start = Instant::now();
    store.tell("key");
    drop(waiter.await.unwrap().unwrap());
    assert_eq!(start.elapsed(), Duration::ZERO);
    reads.release().await.unwrap();
}

/// The store reports the end of such a lease, and this process does not.
#[tokio::test(start_paused = true)]
async fn a_stream_is_opened_when_the_own_lease_is_detached() {
    let (store, leases) = setup();
    store.set_news(News::Told);
    let held = leases.acquire("key", TTL * 100).await.unwrap();
    let waiter = tokio::spawn(leases.acquire("key", TTL).into_future());
    sleep(TTL).await;
    held.detach().unwrap();
    sleep(Duration::from_millis(1)).await;
    assert_eq!(store.streams(), 1);
    waiter.abort();
}

/// The next releases do not wake a process that is far behind.
#[tokio::test(start_paused = true)]
async fn the_processes_that_come_next_open_a_stream() {
    const PROCESSES: usize = 20;
    let (store, _, holder, other) = waiting(News::Told).await;
    let mut waits = Vec::new();
    for _ in 0..PROCESSES {
        let leases = Leases::new(store.clone());
        waits.push(tokio::spawn(async move {
            leases
                .acquire("key", MINUTE)
                .await
                .unwrap()
                .detach()
                .unwrap();
            leases
        }));
        sleep(MOMENT).await;
    }
    sleep(TTL).await;
    assert_eq!(store.streams(), PROCESSES / 2);
    // Then others come next.
    holder.release().await.unwrap();
    while !waits.iter().any(tokio::task::JoinHandle::is_finished) {
        sleep(MOMENT).await;
    }
    sleep(Duration::from_secs(10)).await;
    assert_eq!(store.streams(), PROCESSES / 2 + 1);
    let places = other.inspect("key").await.unwrap().unwrap().waiters.len();
    assert_eq!(places, PROCESSES - 1);
}

/// A release may make room for many of them.
#[tokio::test(start_paused = true)]
async fn all_processes_that_wait_for_permits_open_a_stream() {
    const PROCESSES: u32 = 20;
    let (store, _) = setup();
    store.set_news(News::Told);
    let other = Leases::new(store.memory.clone());
    let all = other
        .acquire("key", TTL * 100)
        .permits(PROCESSES, PROCESSES);
    let _all = all.await.unwrap();
    let mut waits = Vec::new();
    for _ in 0..PROCESSES {
        let acquire = Leases::new(store.clone()).acquire("key", TTL);
        let acquire = acquire.permits(1, PROCESSES);
        waits.push(tokio::spawn(acquire.into_future()));
        sleep(MOMENT).await;
    }
    sleep(TTL).await;
    assert_eq!(store.streams(), PROCESSES as usize);
}

#[tokio::test(start_paused = true)]
async fn one_stream_serves_all_who_wait_and_ends_after_them() {
    let (store, leases, _holder, _other) = waiting(News::Told).await;
    let acquire = || leases.acquire("key", TTL).wait_for(MINUTE).into_future();
    for outcome in futures::future::join_all((0..100).map(|_| acquire())).await {
        assert!(matches!(outcome, Err(Error::WaitTimedOut { .. })));
    }
    assert_eq!(store.streams(), 1);
    // The stream stays open for a while, because a task may wait again soon.
    acquire().await.unwrap_err();
    assert_eq!(store.streams(), 1);
    sleep(MINUTE).await;
    acquire().await.unwrap_err();
    assert_eq!(store.streams(), 2);
}

#[tokio::test(start_paused = true)]
async fn without_news_a_key_is_found_by_asking() {
    for news in [News::None, News::Silence, News::Broken] {
        let (_, leases, holder, _other) = waiting(news).await;
        let waiter = tokio::spawn(leases.acquire("key", TTL).into_future());
        sleep(TTL).await;
        let start = Instant::now();
        holder.release().await.unwrap();
        drop(waiter.await.unwrap().unwrap());
        assert!(start.elapsed() <= Duration::from_secs(1), "{news:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_store_that_cannot_tell_is_asked_once() {
    let (store, leases, _holder, _other) = waiting(News::None).await;
    for _ in 0..3 {
        let acquire = leases.acquire("key", TTL).wait_for(MINUTE);
        acquire.await.unwrap_err();
    }
    assert_eq!(store.streams(), 1);
}

#[tokio::test(start_paused = true)]
async fn streams_that_break_are_not_opened_all_the_time() {
    let (store, leases, _holder, _other) = waiting(News::Broken).await;
    let acquire = leases.acquire("key", TTL).wait_for(MINUTE);
    acquire.await.unwrap_err();
    assert!(store.streams() > 2, "{}", store.streams());
    assert!(store.streams() < 30, "{}", store.streams());
    assert!(store.calls().len() < 250);
}

/// This holds however long the listener would pause before it retries.
#[tokio::test(start_paused = true)]
async fn a_listener_ends_with_the_handle() {
    for news in [News::Refused, News::Broken, News::None] {
        let (store, leases, holder, other) = waiting(news).await;
        let acquire = leases.acquire("key", TTL).wait_for(MINUTE / 2);
        acquire.await.unwrap_err();
        leases.close().await;
        drop((leases, holder, other));
        sleep(MOMENT).await;
        assert_eq!(store.owners(), 1, "{news:?}");
    }
}
