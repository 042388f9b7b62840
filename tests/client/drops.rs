//! Guards that are dropped outside of a runtime, in a runtime that shuts down, or by a panic.

use std::time::Duration;

use futures::{FutureExt, executor};
use leasehold::{Error, Leases, MemoryStore};
use tokio::runtime::{Builder, Runtime};

use super::{Fate, FlakyStore, MOMENT, PATIENCE, TTL, is_free, setup, until_free};

#[test]
fn a_lease_can_be_dropped_without_a_runtime() {
    let leases = Leases::new(MemoryStore::new());
    let runtime = Runtime::new().unwrap();
    drop(runtime.block_on(async { leases.acquire("key", PATIENCE * 4).await.unwrap() }));
    runtime.block_on(async {
        let next = leases.acquire("key", TTL).wait_for(PATIENCE).await;
        drop(next.unwrap());
    });
}

/// What the documents say of the end of `main`: of a guard that is dropped there, and of an acquire.
#[test]
fn what_is_dropped_at_the_end_of_main_is_free_at_once_only_after_a_close() {
    for (closes, has_lease) in [(false, true), (true, true), (false, false), (true, false)] {
        let store = FlakyStore::new();
        let main = async {
            let leases = Leases::new(store.clone());
            let acquire = leases.acquire("key", PATIENCE * 4).into_future();
            if has_lease {
                drop(acquire.await.unwrap());
            } else {
                // The request is carried out, and the wait for its answer is dropped.
                store.next([Fate::AnswerLate(MOMENT)]);
                assert!(acquire.now_or_never().is_none());
            }
            if closes {
                leases.close().await;
            }
        };
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(main);
        drop(runtime);
        let is_free = executor::block_on(is_free(&store));
        assert_eq!(is_free, closes, "with a lease: {has_lease}");
    }
}

#[test]
fn a_lease_can_be_dropped_in_a_runtime_that_shuts_down() {
    let leases = Leases::new(MemoryStore::new());
    let runtime = Runtime::new().unwrap();
    let handle = leases.clone();
    let (dropped, was_dropped) = std::sync::mpsc::channel();
    runtime.block_on(async move {
        let lease = handle.acquire("key", TTL).await.unwrap();
        // The fields are dropped in this order, whether or not the task ever runs: the message of the second field
        // tells that the drop of the lease has returned.
        let held = (lease, Told(dropped));
        tokio::spawn(async move {
            let _held = held;
            std::future::pending::<()>().await;
        });
        tokio::task::yield_now().await;
    });
    runtime.shutdown_timeout(Duration::from_secs(10));
    assert_eq!(was_dropped.recv(), Ok(false), "it panicked");
}

/// Tells by a message that it was dropped, and whether a panic did that.
struct Told(std::sync::mpsc::Sender<bool>);

impl Drop for Told {
    fn drop(&mut self) {
        let _ = self.0.send(std::thread::panicking());
    }
}

#[tokio::test]
async fn a_lease_can_be_dropped_by_a_panic() {
    let (store, leases) = setup();
    let lease = leases.acquire("key", TTL).await.unwrap();
    let ended = tokio::spawn(async move {
        let _lease = lease;
        panic!("the work went wrong");
    });
    assert!(ended.await.is_err());
    until_free(&store).await;
}

#[tokio::test(start_paused = true)]
async fn many_leases_are_dropped_at_once() {
    let store = MemoryStore::new();
    let leases = Leases::new(store.clone());
    let mut held = Vec::new();
    for number in 0..1_000 {
        held.push(leases.acquire(format!("key {number}"), TTL).await.unwrap());
    }
    drop(held);
    for number in 0..1_000 {
        let key = format!("key {number}");
        let next = leases.acquire(&key, TTL).wait_for(MOMENT).await;
        drop(next.unwrap());
    }
}

#[test]
fn guards_handles_and_futures_cross_threads() {
    fn crosses<T: Send + Sync + 'static>(_: &T) {}
    fn is_sent<T: Send + 'static>(_: T) {}
    let leases = Leases::new(MemoryStore::new());
    crosses(&leases);
    is_sent(leases.acquire("key", TTL).into_future());
    is_sent(
        leases
            .acquire("key", TTL)
            .with(async |_| Ok::<_, Error>(())),
    );
    is_sent(leases.acquire_all(["key"], TTL).into_future());
    is_sent({
        let leases = leases.clone();
        async move { leases.close().await }
    });
    fn futures_of_a_guard(lease: leasehold::Lease, set: leasehold::LeaseSet) {
        fn is_send<T: Send>(_: T) {}
        is_send(lease.lost());
        is_send(lease.at_risk());
        is_send(lease.renew());
        is_send(lease.upgrade());
        is_send(lease.release());
        is_send(set.lost());
        is_send(set.renew());
        is_send(set.release());
    }
    let _ = futures_of_a_guard;
    is_sent(leases.try_acquire("key", TTL).into_future());
    fn lease<T: Send + Sync + 'static>() {}
    lease::<leasehold::Lease>();
    lease::<leasehold::LeaseSet>();
    lease::<leasehold::Ticket>();
    lease::<leasehold::Held>();
    lease::<Error>();
}
