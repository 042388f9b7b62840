//! A key that stays here while other runtimes end, are not driven, or are missing, and subscribers panic.

use std::{future::IntoFuture, time::Duration};

use futures::executor;
use leasehold::{Error, Lease, Leases};
use tokio::{
    runtime::{Builder, Runtime},
    time::{Instant, sleep, timeout},
};

use super::{IDLE, SECOND, elsewhere, sticky};
use crate::{
    FlakyStore, MOMENT, PATIENCE, TTL, is_free, observe::panics::panic_in, setup, until_free,
};

/// So long that a lease which is never given back shows.
const LONG: Duration = Duration::from_secs(60 * 60);

fn not_driven() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

/// A runtime with threads, from which the first lease was acquired, so that leases are renewed there.
fn driven(leases: &Leases) -> Runtime {
    let runtime = Runtime::new().unwrap();
    runtime.block_on(async {
        let other = leases.acquire("other", LONG).await.unwrap();
        other.release().await.unwrap();
    });
    runtime
}

/// Acquires the key as another process, which waits for it.
fn another_gets_it(store: &FlakyStore, driven: &Runtime) {
    let other = elsewhere(store);
    let asked = async { timeout(PATIENCE, other.acquire("key", TTL).into_future()).await };
    drop(driven.block_on(asked).unwrap().unwrap());
}

async fn stays(leases: &Leases) -> Lease {
    leases.acquire("key", LONG).sticky(LONG).await.unwrap()
}

#[test]
fn another_process_gets_the_key_although_the_runtime_of_the_first_use_is_not_driven_any_more() {
    let (store, leases) = setup();
    let driven = driven(&leases);
    let idle = not_driven();
    idle.block_on(async { stays(&leases).await.release().await.unwrap() });
    another_gets_it(&store, &driven);
}

#[test]
fn another_process_gets_the_key_although_the_runtime_of_the_first_use_has_ended() {
    let (store, leases) = setup();
    let driven = driven(&leases);
    let ends = not_driven();
    let hung = ends.block_on(async {
        stays(&leases).await.release().await.unwrap();
        leases.acquire("key", SECOND).await.unwrap()
    });
    drop(ends);
    another_gets_it(&store, &driven);
    assert!(!hung.is_live());
}

#[test]
fn an_acquire_without_a_runtime_says_so() {
    let (_store, leases) = setup();
    let runtime = not_driven();
    let held = runtime.block_on(stays(&leases));
    for n in 0..2 {
        let asked = leases.acquire("key", TTL).into_future();
        let error = executor::block_on(asked).unwrap_err();
        assert!(matches!(error, Error::NoRuntime), "{n}: {error:?}");
        if n == 0 {
            runtime.block_on(async { sleep(Duration::ZERO).await });
        }
    }
    drop(held);
}

/// The fields are those of the events of a stay that begins, of one that ends, and of leases that are given up or lost.
#[tokio::test(start_paused = true)]
async fn a_subscriber_that_panics_keeps_the_key_from_nobody() {
    let ways: [(fn(Lease), Duration); 4] = [
        (drop, MOMENT),
        (|lease| drop(executor::block_on(lease.release())), MOMENT),
        (|lease| lease.detach().unwrap(), TTL),
        (|lease| drop(lease.into_ticket()), TTL),
    ];
    for field in ["at_once", "held", "reason"] {
        for (ends, longest) in ways {
            let (store, leases) = setup();
            let lease = leases.acquire("key", TTL).sticky(IDLE).keep_alive();
            let lease = lease.await.unwrap();
            let needs_document = leases.acquire("key", TTL).note("another").wait_for(MOMENT);
            assert!(needs_document.await.is_err());
            let (default, _) = panic_in(field, 1);
            let ended = std::panic::AssertUnwindSafe(|| ends(lease));
            let _ = std::panic::catch_unwind(ended);
            sleep(SECOND).await;
            drop(default);
            let took = until_free(&store).await;
            assert!(took <= longest, "{field}: {took:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_subscriber_that_panics_does_not_end_the_looks() {
    let (store, leases) = setup();
    drop(sticky(&leases).await);
    // The event of a lease that goes back has this field.
    let (default, _) = panic_in("at_once", 1);
    // The second key goes back too.
    let second = leases.acquire("second", TTL).sticky(IDLE).await.unwrap();
    drop(second);
    let start = Instant::now();
    while !is_free(&store).await {
        assert!(start.elapsed() <= IDLE + 2 * TTL);
        sleep(SECOND).await;
    }
    drop(default);
    let other = elsewhere(&store);
    let next = timeout(IDLE + 2 * TTL, other.acquire("second", TTL).into_future()).await;
    drop(next.unwrap().unwrap());
}

#[test]
fn a_close_releases_the_key_although_the_runtime_of_the_first_use_is_not_driven_any_more() {
    let (store, leases) = setup();
    let idle = not_driven();
    idle.block_on(async { stays(&leases).await.release().await.unwrap() });
    Runtime::new().unwrap().block_on(async {
        timeout(PATIENCE, leases.close()).await.unwrap();
        assert!(is_free(&store).await);
    });
}
