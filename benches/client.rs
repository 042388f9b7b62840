//! Measures the client itself. The store is in the memory of this process, so it answers at once.
//!
//! ```text
//! cargo bench -p leasehold-benches --bench client
//! ```
//!
//! The program of this package measures the client on a database, beside the bare driver.

use std::{future::IntoFuture, hint::black_box, sync::Arc, time::Duration};

use criterion::{Criterion, criterion_group, criterion_main};
use futures::future::BoxFuture;
use leasehold::{Attempt, Error, Lease, Leases, MemoryStore};
use tokio::{
    runtime::{Builder, Runtime},
    time::Instant,
};

const TTL: Duration = Duration::from_secs(600);

/// Performs the measured operation once.
type Work = Arc<dyn Fn() -> BoxFuture<'static, ()> + Send + Sync>;

criterion_group!(benches, client);
criterion_main!(benches);

fn client(criterion: &mut Criterion) {
    let runtime = runtime().expect("a runtime");
    let leases = Leases::new(MemoryStore::new());
    let mut bench = |name, work| bench(criterion, &runtime, name, work);

    let handle = leases.clone();
    let cycle: Work = Arc::new(move || {
        let leases = handle.clone();
        Box::pin(async move {
            let lease = granted(leases.try_acquire("free", TTL).await);
            lease.release().await.expect("a release");
        })
    });
    bench("try_acquire, release", cycle);

    let handle = leases.clone();
    let holder = runtime.block_on(leases.acquire("held", TTL).into_future());
    let attempt: Work = Arc::new(move || {
        let leases = handle.clone();
        Box::pin(async move {
            let attempt = leases.try_acquire("held", TTL).await;
            assert!(matches!(black_box(attempt), Ok(Attempt::Held(_))));
        })
    });
    bench("try_acquire of a held key", attempt);
    drop(holder);

    // Each acquire is sent while the previous lease is being released in the background.
    let handle = leases.clone();
    let dropped: Work = Arc::new(move || {
        let leases = handle.clone();
        Box::pin(async move {
            let lease = leases.acquire("dropped", TTL).await;
            drop(black_box(lease.expect("a lease")));
        })
    });
    bench("acquire, drop", dropped);

    let lease = runtime.block_on(leases.acquire("renewed", TTL).into_future());
    let lease = Arc::new(lease.expect("a lease"));
    let renewal: Work = Arc::new(move || {
        let lease = lease.clone();
        Box::pin(async move { lease.renew().await.expect("a renewal") })
    });
    bench("renew", renewal);

    criterion.bench_function("handoff between two tasks", |bencher| {
        let handoffs = |count| handoffs(leases.clone(), count);
        bencher.to_async(&runtime).iter_custom(handoffs);
    });
}

/// Measures on a worker thread of the runtime, where the tasks of an application run. On the thread that calls
/// `block_on`, each answer would come from another thread.
fn bench(criterion: &mut Criterion, runtime: &Runtime, name: &str, work: Work) {
    criterion.bench_function(name, |bencher| {
        bencher.to_async(runtime).iter_custom(|count| {
            let work = work.clone();
            async move {
                let looping = tokio::spawn(async move {
                    let begin = Instant::now();
                    for _ in 0..count {
                        work().await;
                    }
                    begin.elapsed()
                });
                looping.await.expect("a task to its end")
            }
        });
    });
}

/// The runtime that applications use.
fn runtime() -> std::io::Result<Runtime> {
    Builder::new_multi_thread().enable_all().build()
}

fn granted(attempt: Result<Attempt, Error>) -> Lease {
    match attempt.expect("an answer") {
        Attempt::Acquired(lease) => lease,
        Attempt::Held(held) => panic!("held by {}", held.owner()),
    }
}

/// Two tasks together acquire and release one key `count` times. They take turns, because waiters are served in order.
async fn handoffs(leases: Leases, count: u64) -> Duration {
    let begin = Instant::now();
    let tasks = [count / 2, count - count / 2].map(|count| {
        let leases = leases.clone();
        tokio::spawn(async move {
            for _ in 0..count {
                let lease = leases.acquire("passed on", TTL).await.expect("a lease");
                lease.release().await.expect("a release");
            }
        })
    });
    for task in tasks {
        task.await.expect("a task to its end");
    }
    begin.elapsed()
}
