//! Conversions whose requests are carried out late, or whose answers come late or never.

use std::time::Duration;

use leasehold::{
    Attempt, Error, Key, Lease, Leases, Mode, Resumed, Store, Upgrade, store::AcquireRequest,
};
use tokio::time::{sleep, timeout};

use super::{Fate, FlakyStore, LIMIT, MOMENT, TTL, setup};

/// When a late request is carried out: the one that is sent instead has been answered.
const LATE: Duration = Duration::from_secs(4);

/// Another process asks to read, while the lease is live. Returns whether it was granted the key.
async fn another_reads(store: &FlakyStore, lease: &Lease) -> bool {
    assert!(lease.is_live());
    let other = Leases::new(store.memory.clone());
    let asked = other.try_acquire("key", TTL).shared().await.unwrap();
    matches!(asked, Attempt::Acquired(_))
}

#[tokio::test(start_paused = true)]
async fn a_late_downgrade_undoes_no_later_upgrade() {
    let (store, leases) = setup();
    let lease = leases.acquire("key", TTL).keep_alive().await.unwrap();
    store.next([Fate::LateWithoutAnswer(LIMIT + LATE)]);
    lease.downgrade().await.unwrap();
    assert_eq!(lease.upgrade().await.unwrap(), Upgrade::Exclusive);
    sleep(2 * LATE).await;
    assert_eq!(lease.mode(), Mode::Exclusive);
    assert!(!another_reads(&store, &lease).await);
}

/// The downgrade has not been carried out when the lease is upgraded, so it is exclusive already.
#[tokio::test(start_paused = true)]
async fn an_upgrade_outlasts_a_downgrade_that_nobody_waits_for() {
    let (store, leases) = setup();
    let lease = leases.acquire("key", TTL).keep_alive().await.unwrap();
    store.next([Fate::LateWithoutAnswer(LATE)]);
    assert!(timeout(MOMENT, lease.downgrade()).await.is_err());
    assert_eq!(lease.upgrade().await.unwrap(), Upgrade::Exclusive);
    sleep(2 * LATE).await;
    assert_eq!(lease.mode(), Mode::Exclusive);
    assert!(!another_reads(&store, &lease).await);
}

#[tokio::test(start_paused = true)]
async fn an_upgrade_outlasts_a_downgrade_that_another_process_sent() {
    let (store, leases) = setup();
    let lease = leases.acquire("key", TTL).await.unwrap();
    store.next([Fate::LateWithoutAnswer(LATE)]);
    assert!(timeout(MOMENT, lease.downgrade()).await.is_err());
    let ticket = serde_json::to_string(&lease.into_ticket()).unwrap();
    let other = Leases::new(store.memory.clone());
    let ticket = serde_json::from_str(&ticket).unwrap();
    let resumed = other.resume(&ticket).keep_alive().await.unwrap();
    let Resumed::Live(lease) = resumed else {
        panic!("{resumed:?}");
    };
    assert_eq!(lease.mode(), Mode::Shared, "it may be");
    assert_eq!(lease.upgrade().await.unwrap(), Upgrade::Exclusive);
    sleep(2 * LATE).await;
    assert_eq!(lease.mode(), Mode::Exclusive);
    assert!(!another_reads(&store, &lease).await);
}

/// The upgrade is carried out before the other process resumes the lease, or after it.
#[tokio::test(start_paused = true)]
async fn a_downgrade_outlasts_an_upgrade_that_another_process_sent() {
    for fate in [Fate::AnswerLate(LATE), Fate::LateWithoutAnswer(LATE)] {
        let (store, leases) = setup();
        let lease = leases.acquire("key", TTL).shared().await.unwrap();
        store.next([fate]);
        assert!(timeout(MOMENT, lease.upgrade()).await.is_err());
        let ticket = lease.into_ticket();
        let other = Leases::new(store.memory.clone());
        let resumed = other.resume(&ticket).keep_alive().await.unwrap();
        let Resumed::Live(lease) = resumed else {
            panic!("{resumed:?}");
        };
        let state = store.memory.inspect(lease.key()).await.unwrap().unwrap();
        assert_eq!(lease.mode(), state.holders[0].mode);
        lease.downgrade().await.unwrap();
        sleep(2 * LATE).await;
        assert_eq!(lease.mode(), Mode::Shared);
        assert!(another_reads(&store, &lease).await);
    }
}

/// Neither is carried out before the other process resumes the lease, so it is exclusive, although it may be shared.
#[tokio::test(start_paused = true)]
async fn a_downgrade_outlasts_both_conversions_that_another_process_sent() {
    let (store, leases) = setup();
    let lease = leases.acquire("key", TTL).await.unwrap();
    store.next([Fate::LateWithoutAnswer(LATE); 2]);
    assert!(timeout(MOMENT, lease.upgrade()).await.is_err());
    assert!(timeout(MOMENT, lease.downgrade()).await.is_err());
    let ticket = lease.into_ticket();
    let other = Leases::new(store.memory.clone());
    let resumed = other.resume(&ticket).keep_alive().await.unwrap();
    let Resumed::Live(lease) = resumed else {
        panic!("{resumed:?}");
    };
    lease.downgrade().await.unwrap();
    sleep(2 * LATE).await;
    assert_eq!(lease.mode(), Mode::Shared);
    assert!(another_reads(&store, &lease).await);
}

/// The upgrade carries out the late downgrade first, and then fails. Before it is repeated, other calls upgrade the lease and
/// downgrade it.
#[tokio::test(start_paused = true)]
async fn a_repeated_upgrade_outlasts_a_downgrade_that_was_sent_meanwhile() {
    const SHORT: Duration = Duration::from_millis(1);
    let (store, leases) = setup();
    let lease = leases.acquire("key", TTL).keep_alive().await.unwrap();
    store.next([Fate::LateWithoutAnswer(LATE)]);
    assert!(timeout(MOMENT, lease.downgrade()).await.is_err());
    store.next([Fate::AnswerLate(Duration::ZERO), Fate::NotSent]);
    store.calls();
    let others = async {
        let mut sent = 0;
        while sent < 2 {
            tokio::task::yield_now().await;
            sent += store.calls().len();
        }
        assert_eq!(lease.upgrade().await.unwrap(), Upgrade::Exclusive);
        store.next([Fate::LateWithoutAnswer(LATE)]);
        assert!(timeout(SHORT, lease.downgrade()).await.is_err());
    };
    let (upgraded, ()) = tokio::join!(lease.upgrade(), others);
    assert_eq!(upgraded.unwrap(), Upgrade::Exclusive);
    sleep(2 * LATE).await;
    assert_eq!(lease.mode(), Mode::Exclusive);
    assert!(!another_reads(&store, &lease).await);
}

/// The requests are carried out in this order: the downgrade, the upgrade, and a second downgrade, which names the fence
/// before the upgrade.
#[tokio::test(start_paused = true)]
async fn a_conversion_learns_the_fence_that_an_upgrade_without_an_answer_has_given() {
    let (store, leases) = setup();
    let lease = leases.acquire("key", TTL).keep_alive().await.unwrap();
    let before = lease.fence();
    store.next([2, 1].map(|seconds| Fate::LateWithoutAnswer(Duration::from_secs(seconds))));
    assert!(timeout(MOMENT, lease.upgrade()).await.is_err());
    assert!(timeout(MOMENT, lease.downgrade()).await.is_err());
    sleep(LATE).await;
    assert_eq!((lease.mode(), lease.fence()), (Mode::Exclusive, before));
    store.calls();
    lease.downgrade().await.unwrap();
    assert_eq!(store.calls(), ["convert", "convert"]);
    assert!(lease.mode() == Mode::Shared && lease.fence() > before);
    assert!(another_reads(&store, &lease).await);
}

/// The lease is shared when it is upgraded in vain, or exclusive already.
#[tokio::test(start_paused = true)]
async fn a_downgrade_outlasts_an_upgrade_that_nobody_waits_for() {
    for is_shared in [true, false] {
        let (store, leases) = setup();
        let asked = leases.acquire("key", TTL).keep_alive();
        let asked = if is_shared { asked.shared() } else { asked };
        let lease = asked.await.unwrap();
        store.next([Fate::LateWithoutAnswer(LATE)]);
        assert!(timeout(MOMENT, lease.upgrade()).await.is_err());
        lease.downgrade().await.unwrap();
        sleep(2 * LATE).await;
        assert_eq!(lease.mode(), Mode::Shared);
        assert!(another_reads(&store, &lease).await, "shared: {is_shared}");
    }
}

/// Whatever came of the upgrade, a downgrade of a lease beside another reader ends.
#[tokio::test(start_paused = true)]
async fn a_downgrade_beside_another_reader_ends() {
    let (store, leases) = setup();
    let lease = leases.acquire("key", TTL).shared().await.unwrap();
    let _reader = leases.acquire("key", TTL).shared().await.unwrap();
    store.next([Fate::LateWithoutAnswer(LATE)]);
    assert!(timeout(MOMENT, lease.upgrade()).await.is_err());
    store.calls();
    lease.downgrade().await.unwrap();
    assert_eq!(store.calls(), ["convert"]);
    assert_eq!(lease.mode(), Mode::Shared);
}

/// The upgrade is carried out, but its answer is late. The downgrade sends it again, and learns the fence.
#[tokio::test(start_paused = true)]
async fn a_downgrade_finds_the_fence_of_an_upgrade_without_an_answer() {
    let (store, leases) = setup();
    let lease = leases.acquire("key", TTL).shared().await.unwrap();
    let before = lease.fence();
    store.next([Fate::AnswerLate(LATE)]);
    assert!(timeout(MOMENT, lease.upgrade()).await.is_err());
    lease.downgrade().await.unwrap();
    assert!(lease.fence() > before);
    assert!(another_reads(&store, &lease).await);
    sleep(2 * LATE).await;
    assert_eq!(lease.mode(), Mode::Shared);
}

/// Two tasks convert a lease at the same time. Each is answered, and the mode is that of the store.
#[tokio::test(start_paused = true)]
async fn conversions_at_the_same_time_end() {
    for (first, second) in [(MOMENT, MOMENT), (2 * MOMENT, MOMENT), (MOMENT, 2 * MOMENT)] {
        let (store, leases) = setup();
        let lease = leases.acquire("key", TTL).shared().await.unwrap();
        store.next([Fate::Late(first), Fate::Late(second)]);
        let (upgraded, downgraded) = tokio::join!(lease.upgrade(), lease.downgrade());
        assert_eq!(upgraded.unwrap(), Upgrade::Exclusive);
        downgraded.unwrap();
        let state = store.memory.inspect(lease.key()).await.unwrap().unwrap();
        let held = (state.holders[0].mode, state.holders[0].fence);
        assert_eq!(held, (lease.mode(), lease.fence()));
    }
}

/// A late request of the acquire was granted the lease id anew, after the lease was lost.
#[tokio::test(start_paused = true)]
async fn a_lease_that_was_granted_anew_is_not_converted() {
    for (mode, upgrades) in [
        (Mode::Exclusive, true),
        (Mode::Exclusive, false),
        (Mode::Shared, true),
    ] {
        let (store, leases) = setup();
        let asked = leases.acquire("key", TTL);
        let is_shared = mode == Mode::Shared;
        let asked = if is_shared { asked.shared() } else { asked };
        let lease = asked.await.unwrap();
        let key = Key::new("key").unwrap();
        store.memory.evict(&key).await.unwrap();
        let late = AcquireRequest::exclusive(key.clone(), lease.id(), "late".into(), TTL);
        let late = if is_shared { late.shared() } else { late };
        store.memory.acquire(&late).await.unwrap();
        let converted = if upgrades {
            lease.upgrade().await.map(drop)
        } else {
            lease.downgrade().await
        };
        assert!(
            matches!(converted, Err(Error::Lost { .. })),
            "{converted:?}"
        );
        let state = store.memory.inspect(&key).await.unwrap().unwrap();
        assert_eq!(state.holders[0].mode, mode);
    }
}
