//! Conversions whose requests are carried out late, or whose answers come late or never.

use std::{future::IntoFuture, pin::pin, time::Duration};

use leasehold::{
    Attempt, Error, Key, Lease, Leases, LossReason, Mode, Resumed, Store, Ticket, Upgrade,
    store::AcquireRequest,
};
use tokio::time::{sleep, timeout};

use super::{Fate, FlakyStore, LIMIT, MOMENT, TTL, setup, until_free};

/// When a late request is carried out: the one that is sent instead has been answered.
const LATE: Duration = Duration::from_secs(4);

/// Another process asks to read, while the lease is live. Returns whether it was granted the key.
async fn another_reads(store: &FlakyStore, lease: &Lease) -> bool {
    assert!(lease.is_live());
    let other = Leases::new(store.memory.clone());
    let asked = other.try_acquire("key", TTL).shared().await.unwrap();
    matches!(asked, Attempt::Acquired(_))
}

/// Another process resumes the lease of a ticket.
async fn resumed(store: &FlakyStore, ticket: Ticket) -> Lease {
    let text = serde_json::to_string(&ticket).unwrap();
    let ticket: Ticket = serde_json::from_str(&text).unwrap();
    let other = Leases::new(store.memory.clone());
    match other.resume(&ticket).keep_alive().await.unwrap() {
        Resumed::Live(lease) => lease,
        Resumed::Gone(why) => panic!("{why}"),
    }
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

/// A driver may send a request to several nodes. The last one refuses it, and an earlier one has carried it out.
#[tokio::test(start_paused = true)]
async fn a_conversion_that_only_one_node_refused_loses_no_lease() {
    let (store, leases) = setup();
    let lease = leases.acquire("key", TTL).keep_alive().await.unwrap();
    store.next([Fate::Overloaded; 3]);
    let overloaded = lease.downgrade().await.unwrap_err();
    assert!(matches!(overloaded, Error::Overloaded { .. }));
    assert_eq!(lease.upgrade().await.unwrap(), Upgrade::Exclusive);
    lease.downgrade().await.unwrap();
    store.next([Fate::Overloaded; 3]);
    let overloaded = lease.upgrade().await.unwrap_err();
    assert!(matches!(overloaded, Error::Overloaded { .. }));
    sleep(TTL * 2).await;
    lease.renew().await.unwrap();
    assert_eq!(lease.upgrade().await.unwrap(), Upgrade::Exclusive);
}

/// A reader of the same process waits. It is granted the key when the upgrade has failed, and not before it is sent.
#[tokio::test(start_paused = true)]
async fn a_reader_that_waits_is_woken_after_an_upgrade_that_carried_out_a_downgrade() {
    for fails in [false, true] {
        let (store, leases) = setup();
        let lease = leases.acquire("key", TTL).keep_alive().await.unwrap();
        sleep(TTL).await;
        let reader = tokio::spawn(leases.acquire("key", TTL).shared().into_future());
        sleep(TTL).await;
        // It has just been refused, and sends its next request after half a second at least.
        store.calls();
        while !store.calls().contains(&"acquire") {
            sleep(MOMENT).await;
        }
        store.next([Fate::LateWithoutAnswer(LATE)]);
        assert!(timeout(MOMENT, lease.downgrade()).await.is_err());
        store.next([Fate::AnswerLate(Duration::ZERO)]);
        if fails {
            store.next([Fate::Denied]);
        }
        let upgraded = lease.upgrade().await;
        assert_eq!(upgraded.is_err(), fails, "{upgraded:?}");
        let reads = timeout(MOMENT, reader).await;
        assert_eq!(reads.is_ok(), fails, "{reads:?}");
    }
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
    let ticket = lease.into_ticket();
    let lease = resumed(&store, ticket).await;
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
        let lease = resumed(&store, ticket).await;
        let state = store.memory.inspect(lease.key()).await.unwrap().unwrap();
        assert_eq!(lease.mode(), state.holders[0].mode);
        lease.downgrade().await.unwrap();
        sleep(2 * LATE).await;
        assert_eq!(lease.mode(), Mode::Shared);
        assert!(another_reads(&store, &lease).await);
    }
}

/// Neither is carried out before the other process resumes the lease. So the lease is exclusive, but the other process
/// has to assume that it is shared.
#[tokio::test(start_paused = true)]
async fn a_downgrade_outlasts_both_conversions_that_another_process_sent() {
    let (store, leases) = setup();
    let lease = leases.acquire("key", TTL).await.unwrap();
    store.next([Fate::LateWithoutAnswer(LATE); 2]);
    assert!(timeout(MOMENT, lease.upgrade()).await.is_err());
    assert!(timeout(MOMENT, lease.downgrade()).await.is_err());
    let ticket = lease.into_ticket();
    let lease = resumed(&store, ticket).await;
    lease.downgrade().await.unwrap();
    sleep(2 * LATE).await;
    assert_eq!(lease.mode(), Mode::Shared);
    assert!(another_reads(&store, &lease).await);
}

/// Otherwise the downgrade could be carried out after the upgrade was answered.
#[tokio::test(start_paused = true)]
async fn no_conversion_is_sent_while_another_call_converts_the_lease() {
    let (store, leases) = setup();
    let lease = leases.acquire("key", TTL).keep_alive().await.unwrap();
    store.calls();
    store.next([Fate::AnswerLate(LIMIT / 2), Fate::LateWithoutAnswer(LATE)]);
    let (upgraded, given_up) = tokio::join!(
        biased;
        lease.upgrade(),
        timeout(MOMENT, lease.downgrade())
    );
    assert_eq!(upgraded.unwrap(), Upgrade::Exclusive);
    given_up.unwrap_err();
    assert_eq!(store.calls(), ["convert"]);
    sleep(2 * LATE).await;
    assert_eq!(lease.mode(), Mode::Exclusive);
    assert!(!another_reads(&store, &lease).await);
}

/// Its future has begun to upgrade the lease, and nothing polls it any more.
#[tokio::test(start_paused = true)]
async fn a_call_that_is_not_polled_any_more_does_not_keep_another_from_a_conversion() {
    let (store, leases) = setup();
    let lease = leases.acquire("key", TTL).keep_alive().await.unwrap();
    store.next([Fate::LateWithoutAnswer(LATE)]);
    let mut not_polled = pin!(lease.upgrade());
    assert!(futures::poll!(not_polled.as_mut()).is_pending());
    lease.downgrade().await.unwrap();
    sleep(2 * LATE).await;
    assert_eq!(lease.mode(), Mode::Shared);
    assert!(another_reads(&store, &lease).await);
}

/// The requests are carried out in this order: the downgrade, the upgrade, and a second downgrade, which names the
/// fence before the upgrade.
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
    // A reader of this process would refuse it from memory.
    let other = Leases::new(store.memory.clone());
    let _reader = other.acquire("key", TTL).shared().await.unwrap();
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

/// A process gives its lease away, and it expires. Another process holds the key meanwhile, and then a late request of
/// the acquire is granted the lease anew. The ticket is for the first grant, also if an upgrade of that had no answer.
#[tokio::test(start_paused = true)]
async fn a_lease_that_was_granted_anew_is_not_resumed() {
    for (is_in_between, upgrades) in [(false, false), (false, true), (true, false), (true, true)] {
        let (store, leases) = setup();
        let lease = leases.acquire("key", TTL).shared().min_hold(TTL * 3);
        let lease = lease.await.unwrap();
        if upgrades {
            store.next([Fate::NotSent; 3]);
            assert!(lease.upgrade().await.is_err());
        }
        let ticket = lease.into_ticket();
        let key = ticket.key().clone();
        if is_in_between {
            let id = store.memory.inspect(&key).await.unwrap().unwrap().holders[0].lease;
            sleep(TTL).await;
            let other = Leases::new(store.clone());
            let between = other.acquire("key", TTL).await.unwrap();
            between.release().await.unwrap();
            let late = AcquireRequest::exclusive(key.clone(), id, "late".into(), TTL).shared();
            store.memory.acquire(&late).await.unwrap();
        }
        let resumed = leases.resume(&ticket).keep_alive().await.unwrap();
        match resumed {
            Resumed::Live(lease) => {
                assert!(!is_in_between);
                assert_eq!(
                    (lease.mode(), lease.fence()),
                    (Mode::Shared, ticket.fence())
                );
            }
            Resumed::Gone(LossReason::TakenOver) => {
                assert!(is_in_between);
                // The late grant is released at once, because nobody works under it.
                assert!(until_free(&store).await <= MOMENT);
            }
            Resumed::Gone(reason) => panic!("{reason}"),
        }
    }
}

/// A task of the same handle that does not wait learns of a downgrade, as one of another handle does.
#[tokio::test(start_paused = true)]
async fn a_reader_of_the_same_process_gets_a_key_that_was_downgraded() {
    let (_, leases) = setup();
    let lease = leases.acquire("key", TTL).await.unwrap();
    let reads = || leases.acquire("key", TTL).shared().wait_for(Duration::ZERO);
    assert!(reads().await.is_err(), "the lease is exclusive");
    lease.downgrade().await.unwrap();
    drop(reads().await.unwrap());
    let writes = leases.try_acquire("key", TTL).await.unwrap();
    assert!(matches!(writes, Attempt::Held(_)));
}
