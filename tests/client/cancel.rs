//! Every operation, dropped at every point at which it waits for the store: it leaves no lock behind.

use leasehold::{Error, Lease, Leases};
use tokio::time::{sleep, timeout};

use super::{Fate, FlakyStore, LIMIT, MOMENT, TTL, is_free, setup, until_free};

/// Drops the operation at its first gate, at its second, and so on, and says how many there were.
/// Each time the key is free right after the gate has opened, whoever waits behind gets it, and no
/// request comes later.
async fn dropped_at_each_gate(operation: impl AsyncFn(&Leases, &FlakyStore)) -> usize {
    for gate in 0.. {
        let (store, leases) = setup();
        store.gates.close(gate);
        tokio::select! {
            biased;
            () = store.gates.reached() => {}
            () = operation(&leases, &store) => return gate,
        }
        let behind = tokio::spawn(leases.acquire("key", TTL).into_future());
        sleep(MOMENT).await;
        store.gates.open();
        let lease = timeout(TTL / 2, behind).await;
        let lease = lease.unwrap_or_else(|_| panic!("gate {gate}: the next one is held up"));
        lease.unwrap().unwrap().release().await.unwrap();

        // The same with nobody behind it.
        let (store, leases) = setup();
        store.gates.close(gate);
        tokio::select! {
            biased;
            () = store.gates.reached() => {}
            // One that waits asks after pauses of random length, so not always as often.
            () = operation(&leases, &store) => return gate,
        }
        sleep(MOMENT).await;
        store.gates.open();
        // Another process, in the case of a waiter, releases a little later.
        sleep(MOMENT * 10).await;
        assert!(is_free(&store).await, "gate {gate}: a lock is left");
        store.calls();
        sleep(TTL * 2).await;
        assert_eq!(store.calls(), [""; 0], "gate {gate}: nothing comes later");
    }
    unreachable!("there are as many gates as numbers");
}

async fn acquire(leases: &Leases) -> Lease {
    leases.acquire("key", TTL).await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn an_attempt() {
    let gates = dropped_at_each_gate(async |leases, _| {
        drop(leases.try_acquire("key", TTL).await.unwrap());
    });
    assert_eq!(gates.await, 2);
}

#[tokio::test(start_paused = true)]
async fn an_acquire() {
    let gates = dropped_at_each_gate(async |leases, _| drop(acquire(leases).await));
    assert_eq!(gates.await, 2);
}

#[tokio::test(start_paused = true)]
async fn an_acquire_that_keeps_alive() {
    let gates = dropped_at_each_gate(async |leases, _| {
        let lease = leases.acquire("key", TTL).keep_alive().await.unwrap();
        sleep(TTL).await;
        drop(lease);
    });
    // The acquire, and the renewals at one and two thirds.
    assert_eq!(gates.await, 6);
}

#[tokio::test(start_paused = true)]
async fn a_renewal() {
    let gates = dropped_at_each_gate(async |leases, _| {
        acquire(leases).await.renew().await.unwrap();
    });
    assert_eq!(gates.await, 4);
}

#[tokio::test(start_paused = true)]
async fn a_release() {
    let gates = dropped_at_each_gate(async |leases, _| {
        acquire(leases).await.release().await.unwrap();
    });
    assert_eq!(gates.await, 4);
}

#[tokio::test(start_paused = true)]
async fn work_under_a_lease() {
    let gates = dropped_at_each_gate(async |leases, _| {
        let work = leases.acquire("key", TTL).with(async |_| {
            sleep(TTL / 2).await;
            Ok::<_, Error>(())
        });
        work.await.unwrap();
    });
    // The acquire, a renewal and the release.
    assert_eq!(gates.await, 6);
}

/// It is refused at first, and granted the key after the release of another process.
#[tokio::test(start_paused = true)]
async fn an_acquire_while_queued() {
    let gates = dropped_at_each_gate(async |leases, store| {
        let other = Leases::new(store.memory.clone());
        let holder = acquire(&other).await;
        tokio::spawn(async move {
            sleep(MOMENT * 2).await;
            drop(holder);
            // As long as the background release needs its handle.
            sleep(TTL).await;
            drop(other);
        });
        drop(acquire(leases).await);
    });
    assert!(gates.await >= 4);
}

/// Behind another of the same process, it is dropped before it has sent anything.
#[tokio::test(start_paused = true)]
async fn an_acquire_behind_another() {
    let gates = dropped_at_each_gate(async |leases, _| {
        let holder = acquire(leases).await;
        let behind = acquire(leases);
        let release = async {
            sleep(MOMENT).await;
            holder.release().await.unwrap();
        };
        drop(futures::join!(behind, release));
    });
    assert!(gates.await >= 6);
}

#[tokio::test(start_paused = true)]
async fn a_close() {
    let gates = dropped_at_each_gate(async |leases, store| {
        // The handle under test stays open for whoever comes behind.
        let closing = Leases::new(store.clone());
        let lease = acquire(&closing).await;
        closing.close().await;
        drop(lease);
        drop(leases.clone());
    });
    assert_eq!(gates.await, 4);
}

/// The answer was lost instead of late: the acquire is given up, and what it was granted released.
#[tokio::test(start_paused = true)]
async fn an_acquire_whose_answers_are_lost() {
    let (store, leases) = setup();
    store.next([Fate::AnswerLost; 3]);
    leases.try_acquire("key", TTL).await.unwrap_err();
    assert!(until_free(&store).await < MOMENT);
}

/// An answer that never comes is lost after the time that a call has, whether anybody waits or not.
#[tokio::test(start_paused = true)]
async fn an_acquire_whose_answers_never_come() {
    let (store, leases) = setup();
    store.next([Fate::AnswerLate(TTL * 100)]);
    let acquire = leases.acquire("key", TTL * 10).into_future();
    timeout(MOMENT, acquire).await.unwrap_err();
    assert!(until_free(&store).await <= LIMIT + MOMENT);

    let (store, leases) = setup();
    store.next([Fate::AnswerLate(TTL * 100); 3]);
    leases.try_acquire("key", TTL * 10).await.unwrap_err();
    assert!(until_free(&store).await <= LIMIT + MOMENT);
}

/// The request was given up for lost, and arrives after that, with its answer or without.
#[tokio::test(start_paused = true)]
async fn an_acquire_that_is_carried_out_after_it_was_given_up() {
    let (store, leases) = setup();
    store.next([Fate::Late(LIMIT + LIMIT / 2)]);
    let acquire = leases.acquire("key", TTL * 10).into_future();
    timeout(MOMENT, acquire).await.unwrap_err();
    sleep(LIMIT + LIMIT / 2 - MOMENT).await;
    assert_eq!(store.calls()[..2], ["acquire", "release"]);
    sleep(MOMENT).await;
    assert!(until_free(&store).await < MOMENT);
}
