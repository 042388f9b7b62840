//! Followers, which hear who leads.

use std::{convert::Infallible, future::pending, time::Duration};

use leasehold::{
    Leases, MemoryStore,
    jobs::{Leading, Term},
    testing::FaultyStore,
};
use tokio::{
    sync::watch,
    time::{Instant, sleep, timeout},
};

use super::{FlakyStore, MOMENT, News, TTL, Terms, ended, eventually, leader, leads, process};

/// Waits for the next change of the leader.
async fn hears(leading: &mut watch::Receiver<Option<Leading>>) {
    let changed = timeout(TTL, leading.changed()).await;
    changed.expect("it hears nothing").unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_follower_hears_of_a_new_leader() {
    let (store, terms) = (FlakyStore::new(), Terms::default());
    let (first, second) = (process(&store, "a"), process(&store, "b"));
    let follower = process(&store, "c");
    let mut leading = leader(&follower).watch();
    assert_eq!(*leading.borrow(), None);
    sleep(TTL).await;
    assert!(!leading.has_changed().unwrap(), "nobody leads yet");

    let noted = leader(&first).note("at pod-1");
    let running =
        tokio::spawn(noted.run(async |_: &Term| pending::<Result<(), Infallible>>().await));
    let start = Instant::now();
    hears(&mut leading).await;
    assert!(start.elapsed() < Duration::from_secs(1));
    let now = leading.borrow_and_update().clone().unwrap();
    assert_eq!((&*now.owner, now.note.as_deref()), ("a", Some("at pod-1")));
    let state = follower.inspect("key").await.unwrap().unwrap();
    assert_eq!(now.fence, state.fence);
    assert_eq!(now.since, state.holders[0].acquired_at);

    // The renewals of a term are not changes of the leader.
    leads(&second, &terms);
    sleep(TTL * 3).await;
    assert!(!leading.has_changed().unwrap());
    let fence = now.fence;
    first.close().await;
    ended(running).await;
    terms.until(1).await;
    let start = Instant::now();
    let is_second = |now: &Option<Leading>| now.as_ref().is_some_and(|now| &*now.owner == "b");
    let now = leading.wait_for(is_second).await.unwrap().clone().unwrap();
    assert!(start.elapsed() < Duration::from_secs(1));
    assert!(now.fence > fence);

    second.close().await;
    leading.wait_for(Option::is_none).await.unwrap();
    follower.close().await;
    assert!(leading.changed().await.is_err(), "it ends with the client");
}

#[tokio::test(start_paused = true)]
async fn reads_that_fail_keep_the_last_value_until_its_lease_is_over() {
    let (store, terms) = (FlakyStore::new(), Terms::default());
    let (first, follower) = (process(&store, "a"), process(&store, "c"));
    leads(&first, &terms);
    terms.until(1).await;
    let mut leading = leader(&follower).watch();
    hears(&mut leading).await;
    assert!(leading.borrow_and_update().is_some());
    store.fail_reads(true);
    let start = Instant::now();
    sleep(TTL / 2).await;
    assert!(!leading.has_changed().unwrap());
    // The leader still leads, but the follower cannot know that any more.
    hears(&mut leading).await;
    assert_eq!(*leading.borrow_and_update(), None);
    assert!(start.elapsed() <= TTL + Duration::from_secs(1));
    store.fail_reads(false);
    hears(&mut leading).await;
    assert!(leading.borrow_and_update().is_some());
    first.close().await;
    hears(&mut leading).await;
    assert_eq!(*leading.borrow(), None);
}

#[tokio::test(start_paused = true)]
async fn a_leader_whose_lease_is_over_is_not_named_for_longer_if_reads_fail() {
    let store = FlakyStore::new();
    let holder = Leases::new(store.memory.clone());
    let ttl = Duration::from_millis(3_200);
    let lease = holder.acquire("key", ttl).await.unwrap();
    let start = Instant::now();
    let follower = process(&store, "c");
    let mut leading = leader(&follower).watch();
    hears(&mut leading).await;
    assert!(leading.borrow_and_update().is_some());
    sleep(Duration::from_millis(1_200)).await;
    store.fail_reads(true);
    let changed = timeout(2 * ttl, leading.changed()).await;
    changed.expect("it hears nothing").unwrap();
    assert_eq!(*leading.borrow_and_update(), None);
    assert!(start.elapsed() <= ttl + MOMENT, "{:?}", start.elapsed());
    assert!(lease.detach().is_err());
}

/// Here the store does not answer reads at all.
#[tokio::test(start_paused = true)]
async fn a_read_that_hangs_keeps_the_last_value_until_its_lease_is_over() {
    let (memory, terms) = (MemoryStore::new(), Terms::default());
    let first = Leases::new(memory.clone());
    let store = FaultyStore::new(memory);
    let faults = store.faults();
    let follower = Leases::new(store);
    leads(&first, &terms);
    terms.until(1).await;
    let mut leading = leader(&follower).watch();
    hears(&mut leading).await;
    assert!(leading.borrow_and_update().is_some());
    faults.calls().hang();
    let start = Instant::now();
    hears(&mut leading).await;
    assert_eq!(*leading.borrow_and_update(), None);
    assert!(start.elapsed() <= TTL + Duration::from_secs(1));
    faults.clear();
    hears(&mut leading).await;
    assert!(leading.borrow_and_update().is_some());
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_comes_after_the_lease_is_over_names_no_leader() {
    let memory = MemoryStore::new();
    let store = FaultyStore::new(memory.clone());
    let faults = store.faults();
    let first = Leases::new(memory);
    let lease = first
        .acquire("leader", Duration::from_secs(3))
        .await
        .unwrap();
    let follower = Leases::new(store);
    faults.calls().delay(Duration::from_secs(4));
    let leading = follower.leader("leader", TTL).watch();
    for _ in 0..1_000 {
        sleep(MOMENT).await;
        assert_eq!(*leading.borrow(), None);
    }
    drop(lease);
}

/// A client that is closed sends no more reads. It must not go on saying that there is a leader.
#[tokio::test(start_paused = true)]
async fn nobody_leads_for_a_client_that_is_closed() {
    let (store, terms) = (FlakyStore::new(), Terms::default());
    let first = process(&store, "a");
    let mut leading = leader(&first).watch();
    let running = leads(&first, &terms);
    terms.until(1).await;
    leading.wait_for(Option::is_some).await.unwrap();
    first.close().await;
    ended(running).await;
    // The channel may be closed by now; only the value counts.
    let _ = leading.changed().await;
    assert_eq!(*leading.borrow(), None);
}

#[tokio::test(start_paused = true)]
async fn the_task_of_a_watch_ends_with_its_receivers() {
    let store = FlakyStore::new();
    let leases = process(&store, "a");
    let leading = leader(&leases).watch();
    let clone = leading.clone();
    drop(leases);
    sleep(TTL).await;
    drop(leading);
    sleep(TTL).await;
    assert!(store.owners() > 1);
    drop(clone);
    eventually(|| store.owners() == 1).await;
}

#[tokio::test(start_paused = true)]
async fn a_watch_of_an_invalid_key_ends() {
    let leases = process(&FlakyStore::new(), "a");
    let mut leading = leases.leader("", TTL).watch();
    assert!(leading.changed().await.is_err());
}

/// A follower hears at once of a release in its own process, and of one that the store tells. The next leader acquires
/// the key a moment later.
#[tokio::test(start_paused = true)]
async fn a_follower_hears_at_once_of_a_key_that_is_told() {
    for is_same_process in [true, false] {
        let store = FlakyStore::new();
        store.set_news(News::Told);
        let first = process(&store, "a");
        let follower = if is_same_process {
            first.clone()
        } else {
            process(&store, "c")
        };
        let mut leading = leader(&follower).watch();
        let lease = first.acquire("key", TTL * 100).await.unwrap();
        hears(&mut leading).await;
        // Nobody waits for the key, so the stream goes on for the follower alone.
        sleep(TTL * 10).await;
        assert_eq!(store.streams(), 1);
        // This is between two of the reads that go on as a safety net.
        leading.borrow_and_update();
        sleep(MOMENT).await;
        let start = Instant::now();
        lease.release().await.unwrap();
        if !is_same_process {
            store.tell("another");
            store.tell("key");
        }
        hears(&mut leading).await;
        assert_eq!(*leading.borrow_and_update(), None);
        assert_eq!(start.elapsed(), Duration::ZERO);
        let _lease = process(&store, "b").acquire("key", TTL).await.unwrap();
        hears(&mut leading).await;
        assert_eq!(leading.borrow().as_ref().map(|now| &*now.owner), Some("b"));
        assert!(start.elapsed() <= MOMENT * 2, "{:?}", start.elapsed());
    }
}

/// The stream ends when its last follower is gone, and is opened again for the next one.
#[tokio::test(start_paused = true)]
async fn a_stream_ends_with_its_followers() {
    let (store, minute) = (FlakyStore::new(), Duration::from_secs(60));
    store.set_news(News::Told);
    let leases = process(&store, "a");
    for streams in 1..3 {
        let leading = leader(&leases).watch();
        sleep(minute).await;
        assert_eq!(store.streams(), streams);
        drop(leading);
        sleep(minute).await;
    }
}

/// The task that reads the key ends with its runtime. Receivers on other runtimes would show what it read last for
/// ever.
#[test]
fn nobody_is_known_to_lead_after_the_end_of_the_runtime() {
    let runtime = || {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        builder.enable_all().build().unwrap()
    };
    let (ends, stays) = (runtime(), runtime());
    let store = FlakyStore::new();
    let (leases, other) = (process(&store, "a"), process(&store, "b"));
    let lease = stays.block_on(other.acquire("key", TTL * 100).into_future());
    let mut leading = ends.block_on(async {
        let mut leading = leader(&leases).watch();
        hears(&mut leading).await;
        leading
    });
    assert!(leading.borrow_and_update().is_some());
    drop(ends);
    assert_eq!(*leading.borrow(), None);
    drop(lease);
}
