//! Requests that need the document of a key that stays.

use std::time::Duration;

use leasehold::{Attempt, Error, Leases, Resumed, Upgrade};
use tokio::time::{Instant, sleep, timeout};

use super::{IDLE, SECOND, asked, elsewhere, is_held, plain, sticky};
use crate::{Fate, FlakyStore, MOMENT, TTL, is_free, setup, until_free};

#[tokio::test(start_paused = true)]
async fn what_needs_the_document_asks_the_store() {
    let (store, leases) = setup();
    type Ask = fn(&Leases) -> leasehold::TryAcquire;
    let asks: [(&str, Ask); 5] = [
        ("min_hold", |it| it.try_acquire("key", TTL).min_hold(MOMENT)),
        ("owner", |it| it.try_acquire("key", TTL).owner("me")),
        ("note", |it| it.try_acquire("key", TTL).note("note")),
        ("permits", |it| it.try_acquire("key", TTL).permits(1, 2)),
        ("permit", |it| it.try_acquire("key", TTL).permits(1, 1)),
    ];
    for (name, ask) in asks {
        drop(sticky(&leases).await);
        store.calls();
        let Attempt::Acquired(lease) = ask(&leases).await.unwrap() else {
            panic!("{name}: it was in the way of itself");
        };
        assert_eq!(asked(&store), (1, 1), "{name}");
        sleep(SECOND).await;
        lease.release().await.unwrap();
        until_free(&store).await;
    }
    drop(sticky(&leases).await);
    let once = leases.once("key", leasehold::jobs::Tick::counter(7));
    let ran = once.run(async |_| Ok::<_, std::io::Error>(())).await;
    assert!(matches!(ran, Ok(leasehold::jobs::Once::Ran(()))), "{ran:?}");
    assert!(leases.last_done("key").await.unwrap().is_some());
}

#[tokio::test(start_paused = true)]
async fn a_request_that_needs_the_document_waits_for_the_holder() {
    let (_store, leases) = setup();
    let lease = sticky(&leases).await;
    let waiting = async { leases.acquire("key", TTL).min_hold(MOMENT).await.unwrap() };
    let start = Instant::now();
    let release = async {
        sleep(5 * SECOND).await;
        assert!(lease.is_live());
        lease.release().await.unwrap();
    };
    let (next, ()) = tokio::join!(waiting, release);
    assert!(start.elapsed() >= 5 * SECOND);
    drop(next);
}

#[tokio::test(start_paused = true)]
async fn a_reentrant_lease_enters_the_lease_from_memory() {
    let (store, leases) = setup();
    let outer = sticky(&leases).await;
    let inner = leases.acquire("key", TTL).reentrant().await.unwrap();
    assert_eq!(inner.fence(), outer.fence());
    drop(outer);
    assert!(is_held(&leases).await, "the inner lease holds the key");
    drop(inner);
    assert!(!is_held(&leases).await);
    assert_eq!(asked(&store), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn a_reentrant_writer_under_a_reader_keeps_other_readers_out() {
    let (store, leases) = setup();
    drop(sticky(&leases).await);
    let reader = leases.acquire("key", TTL).shared().await.unwrap();
    assert_eq!(asked(&store), (1, 0));
    let writer = leases.acquire("key", TTL).reentrant().await.unwrap();
    assert!(writer.fence() >= reader.fence());
    let other = leases.try_acquire("key", TTL).shared().await.unwrap();
    assert!(matches!(other, Attempt::Held(_)), "{other:?}");
    drop((reader, writer));
    until_free(&store).await;
}

#[tokio::test(start_paused = true)]
async fn a_downgrade_keeps_readers_out_while_a_reentrant_lease_is_exclusive() {
    let (store, leases) = setup();
    let outer = sticky(&leases).await;
    let inner = leases.acquire("key", TTL).reentrant().await.unwrap();
    outer.downgrade().await.unwrap();
    assert_eq!(outer.mode(), leasehold::Mode::Shared);
    let other = elsewhere(&store);
    let reader = other.try_acquire("key", TTL).shared().await.unwrap();
    assert!(matches!(reader, Attempt::Held(_)), "{reader:?}");
    drop((outer, inner));
    until_free(&store).await;
}

#[tokio::test(start_paused = true)]
async fn shared_leases_are_granted_beside_each_other_with_fences() {
    let (store, leases) = setup();
    drop(sticky(&leases).await);
    let share = async || leases.acquire("key", TTL).shared().await.unwrap();
    let (one, two) = (share().await, share().await);
    assert!(one.fence() < two.fence());
    assert!(is_held(&leases).await);
    let Upgrade::Held(held) = one.upgrade().await.unwrap() else {
        panic!("two readers");
    };
    assert!(!held.holders().is_empty());
    drop(two);
    assert_eq!(asked(&store), (1, 0));
    let before = one.fence();
    assert_eq!(one.upgrade().await.unwrap(), Upgrade::Exclusive);
    assert!(one.fence() > before, "an upgrade has a new fence");
    let fence = one.fence();
    one.release().await.unwrap();
    assert!(
        is_free(&store).await,
        "the upgrade took the lease for itself"
    );
    assert!(plain(&elsewhere(&store)).await.fence() > fence);
}

#[tokio::test(start_paused = true)]
async fn a_downgrade_lets_readers_of_other_processes_in() {
    let (store, leases) = setup();
    let lease = sticky(&leases).await;
    let fence = lease.fence();
    assert_eq!(lease.upgrade().await.unwrap(), Upgrade::Exclusive);
    lease.downgrade().await.unwrap();
    assert_eq!(
        (lease.mode(), lease.fence()),
        (leasehold::Mode::Shared, fence)
    );
    let reader = elsewhere(&store)
        .acquire("key", TTL)
        .shared()
        .await
        .unwrap();
    assert!(reader.fence() > fence);
    lease.release().await.unwrap();
    reader.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_ticket_takes_the_lease_to_another_process() {
    let (store, leases) = setup();
    let lease = sticky(&leases).await;
    let fence = lease.fence();
    let ticket = lease.into_ticket();
    assert!(ticket.fence() >= fence);
    let other = elsewhere(&store);
    let Resumed::Live(resumed) = other.resume(&ticket).await.unwrap() else {
        panic!("gone");
    };
    assert!(is_held(&leases).await, "nothing is granted here any more");
    assert_eq!(resumed.fence(), ticket.fence());
    resumed.release().await.unwrap();
    assert!(plain(&leases).await.fence() > ticket.fence());
}

#[tokio::test(start_paused = true)]
async fn a_detached_lease_holds_the_key_until_its_ttl_is_over() {
    let (store, leases) = setup();
    sticky(&leases).await.detach().unwrap();
    assert!(is_held(&leases).await);
    let took = until_free(&store).await;
    assert!(took > TTL / 2 && took <= TTL, "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn a_leader_has_a_lease_of_its_own() {
    let store = FlakyStore::new();
    let leases = Leases::builder(store.clone()).sticky(IDLE).build();
    plain(&leases).await.release().await.unwrap();
    assert_eq!(asked(&store), (1, 0), "it stays");
    let leader = leases.leader("key", TTL);
    let lead = leader.run(async |term| {
        let holder = leases
            .inspect("key")
            .await?
            .and_then(|it| it.holders.into_iter().next());
        assert_eq!(holder.map(|it| it.fence), Some(term.fence()));
        Err::<(), _>(Error::Closed)
    });
    let led = timeout(SECOND / 10, lead).await;
    assert!(led.is_err(), "it campaigns again after a pause");
    assert!(is_free(&store).await, "the lease of a term does not stay");
}

/// An earlier request for the lease may still be on its way, so its release is repeated for a while.
#[tokio::test(start_paused = true)]
async fn a_task_that_needs_the_document_waits_for_one_release() {
    let (store, leases) = setup();
    store.next([Fate::AnswerCut]);
    sticky(&leases).await.release().await.unwrap();
    let start = Instant::now();
    let next = leases.acquire("key", TTL).note("another").await.unwrap();
    assert!(start.elapsed() <= SECOND, "{:?}", start.elapsed());
    next.release().await.unwrap();
}

/// The reentrant lease enters one whose answer is under way. Either answer may come first.
#[tokio::test(start_paused = true)]
async fn nothing_is_granted_from_memory_beside_a_reentrant_lease_of_the_store() {
    for late in [[SECOND, MOMENT], [MOMENT, SECOND]] {
        let (store, leases) = setup();
        store.next(late.map(Fate::AnswerLate));
        let inner = async {
            sleep(MOMENT / 2).await;
            leases.acquire("key", TTL).reentrant().await.unwrap()
        };
        let outer = async {
            sticky(&leases).await.release().await.unwrap();
            assert!(is_held(&leases).await, "by the reentrant lease");
        };
        let (inner, ()) = tokio::join!(inner, outer);
        assert!(inner.is_live());
        assert!(is_held(&leases).await, "by the reentrant lease");
        inner.release().await.unwrap();
        until_free(&store).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_downgrade_beside_a_reentrant_reader_lets_readers_of_other_processes_in() {
    let (store, leases) = setup();
    let outer = sticky(&leases).await;
    let inner = leases.acquire("key", TTL).reentrant().shared();
    let inner = inner.await.unwrap();
    outer.downgrade().await.unwrap();
    let reader = elsewhere(&store).try_acquire("key", TTL).shared();
    let reader = reader.await.unwrap();
    assert!(matches!(reader, Attempt::Acquired(_)), "{reader:?}");
    drop((outer, inner, reader));
    until_free(&store).await;
}

#[tokio::test(start_paused = true)]
async fn a_lease_stays_exclusive_although_a_reentrant_one_has_become_shared() {
    let (store, leases) = setup();
    let outer = sticky(&leases).await;
    let inner = leases.acquire("key", TTL).reentrant().await.unwrap();
    inner.downgrade().await.unwrap();
    assert_eq!(outer.upgrade().await.unwrap(), Upgrade::Exclusive);
    drop((outer, inner));
    until_free(&store).await;
}

#[tokio::test(start_paused = true)]
async fn a_call_timeout_without_end_stops_no_release() {
    let (store, _) = setup();
    let leases = Leases::builder(store.clone());
    let leases = leases.call_timeout(Duration::MAX).build();
    sticky(&leases).await.release().await.unwrap();
    let lease = leases.acquire("key", TTL).note("a document").await.unwrap();
    lease.release().await.unwrap();
    assert!(!is_held(&elsewhere(&store)).await);
}
