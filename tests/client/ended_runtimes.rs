//! A handle belongs to the runtime on which it was first used: what happens there, on others, and when it ends because it
//! is dropped or its thread panics.

use std::{future::IntoFuture, thread, time::Duration};

use async_trait::async_trait;
use futures::{FutureExt, executor};
use leasehold::{
    Error, Lease, Leases, LossReason, MemoryStore, Store,
    store::{ReleaseAnswer, ReleaseRequest},
};
use leasehold_tests::layer::{Layer, Layered};
use tokio::{
    runtime::{Builder, Handle, Id, Runtime},
    sync::watch,
    time::timeout,
};

use super::{PATIENCE, is_free, setup};

/// No test lasts so long.
const LONG: Duration = Duration::from_secs(60 * 60);

fn with_threads() -> Runtime {
    Runtime::new().unwrap()
}

fn without_threads() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

/// Ends a runtime by a panic in the work that it runs, as a failing test does.
fn panic_on(runtime: Runtime) {
    let ends = thread::spawn(move || runtime.block_on(async { panic!("the work went wrong") }));
    assert!(ends.join().is_err());
}

/// The ways in which a runtime ends, for each kind of runtime.
fn endings() -> impl Iterator<Item = (Runtime, fn(Runtime))> {
    let kinds: [fn() -> Runtime; 2] = [with_threads, without_threads];
    kinds.into_iter().flat_map(|runtime| {
        let ways: [fn(Runtime); 2] = [drop, panic_on];
        ways.map(|end| (runtime(), end))
    })
}

/// Runs this future on a runtime, with a time limit.
fn in_time<T>(runtime: &Runtime, work: impl Future<Output = T>) -> T {
    runtime.block_on(async { timeout(PATIENCE, work).await.unwrap() })
}

fn acquire(leases: &Leases, key: &str) -> impl Future<Output = Result<Lease, Error>> + use<> {
    leases.acquire(key, LONG).wait_for(LONG).into_future()
}

fn is_the_end<T: std::fmt::Debug>(outcome: Result<T, Error>) {
    assert!(matches!(outcome, Err(Error::RuntimeEnded)), "{outcome:?}");
}

fn is_lost(reason: &LossReason) {
    let is_end = |error: &Error| matches!(error, Error::RuntimeEnded);
    assert!(
        matches!(reason, LossReason::Unreachable(error) if is_end(error)),
        "{reason:?}"
    );
}

#[test]
fn with_its_runtime_a_handle_ends_and_says_so() {
    for (ends, end) in endings() {
        let (store, leases) = setup();
        let held = in_time(&ends, acquire(&leases, "key")).unwrap();
        let kept = leases.acquire("kept", LONG).keep_alive().into_future();
        let kept = in_time(&ends, kept).unwrap();
        let stays = leases.acquire("stays", LONG).sticky(LONG).into_future();
        in_time(&ends, async {
            stays.await.unwrap().release().await.unwrap()
        });
        let token = kept.cancellation_token();
        assert!(held.is_live() && kept.is_live() && !token.is_cancelled());
        let ticket = in_time(&ends, acquire(&leases, "ticket"))
            .unwrap()
            .into_ticket();
        end(ends);
        // No runtime is needed to learn of it.
        assert!(!held.is_live() && !kept.is_live() && token.is_cancelled());
        is_lost(&executor::block_on(kept.lost()));

        let next = with_threads();
        is_the_end(in_time(&next, acquire(&leases, "key")));
        is_the_end(in_time(&next, acquire(&leases, "stays")));
        is_the_end(in_time(
            &next,
            leases.try_acquire("new", LONG).into_future(),
        ));
        is_the_end(in_time(&next, leases.resume(&ticket).into_future()));
        let limiter = leases.limiter("limiter", 10, LONG);
        is_the_end(in_time(&next, limiter.permit().into_future()));
        match in_time(&next, held.release()) {
            Err(Error::Lost { reason, .. }) => is_lost(&reason),
            other => panic!("{other:?}"),
        }
        drop(kept);
        // It has nothing to wait for.
        assert!(leases.close().now_or_never().is_some() && leases.is_closed());
        // What is in the store is free when the ttl is over.
        assert!(!in_time(&next, is_free(&store)));
    }
}

#[test]
fn a_task_that_waits_on_another_runtime_is_told() {
    for (ends, end) in endings() {
        let (store, leases) = setup();
        drop(in_time(&ends, acquire(&leases, "first")));
        let (lives, other) = (with_threads(), Leases::new(store.memory.clone()));
        let held = in_time(&lives, acquire(&other, "key")).unwrap();
        let limiter = other.limiter("limiter", 1, LONG);
        in_time(&lives, limiter.permit().into_future()).unwrap();
        let limiter = leases.limiter("limiter", 1, LONG);
        let waits = lives.spawn(acquire(&leases, "key"));
        let permit = lives.spawn(limiter.permit().into_future());
        in_time(&lives, async {
            while leases
                .inspect("key")
                .await
                .unwrap()
                .unwrap()
                .waiters
                .is_empty()
            {
                tokio::task::yield_now().await;
            }
        });
        assert!(!waits.is_finished() && !permit.is_finished());
        end(ends);
        is_the_end(in_time(&lives, waits).unwrap());
        let told = in_time(&lives, permit).unwrap();
        assert!(matches!(told, Err(Error::RuntimeEnded)), "{told:?}");
        drop(held);
    }
}

/// A handle that was not used may still have any runtime, and the runtimes of its callers may end.
#[test]
fn only_the_runtime_of_the_first_use_counts() {
    for (ends, end) in endings() {
        let (_, leases) = setup();
        // It sends nothing until it is awaited.
        let unused = leases.acquire("unused", LONG);
        let lives = with_threads();
        let held = in_time(&lives, acquire(&leases, "key")).unwrap();
        let waits = ends.spawn(acquire(&leases, "key"));
        in_time(&ends, async {
            drop(acquire(&leases, "another").await.unwrap())
        });
        end(ends);
        assert!(waits.is_finished() && held.is_live());
        in_time(&lives, async {
            held.release().await.unwrap();
            acquire(&leases, "key")
                .await
                .unwrap()
                .release()
                .await
                .unwrap();
            drop(unused.await.unwrap());
            leases.close().await;
        });
    }
}

/// The caller polls its release on a runtime that lives, and goes on when that of the first use ends.
#[test]
fn a_release_that_its_caller_polls_goes_on() {
    for (ends, end) in endings() {
        let (store, leases) = setup();
        let lease = in_time(&ends, acquire(&leases, "key")).unwrap();
        let lives = with_threads();
        store.gates.close(0);
        let mut release = Box::pin(lease.release());
        in_time(&lives, async {
            tokio::select! {
                biased;
                released = &mut release => panic!("{released:?}"),
                () = store.gates.reached() => {}
            }
        });
        end(ends);
        store.gates.open();
        in_time(&lives, release).unwrap();
        assert!(in_time(&lives, is_free(&store)));
    }
}

/// A guard that is dropped on another runtime is released on that of the first use, also if the other one ends.
#[test]
fn what_goes_on_without_a_caller_runs_on_it() {
    for (ends, end) in endings() {
        let store = Releases(MemoryStore::new(), watch::Sender::default());
        let leases = Leases::new(Layered(store.clone()));
        let lives = with_threads();
        in_time(&lives, async {
            acquire(&leases, "first").await.unwrap().detach().unwrap()
        });
        let dropped = in_time(&ends, acquire(&leases, "dropped")).unwrap();
        in_time(&ends, async { drop(dropped) });
        // Without a runtime, too.
        let other = in_time(&ends, acquire(&leases, "other")).unwrap();
        end(ends);
        drop(other);
        let mut seen = store.1.subscribe();
        in_time(&lives, async {
            let sent = seen.wait_for(|sent| sent.len() == 2).await.unwrap();
            assert_eq!(*sent, [lives.handle().id(); 2]);
        });
    }
}

/// A memory store that records on which runtime each release was sent.
#[derive(Clone, Debug)]
struct Releases(MemoryStore, watch::Sender<Vec<Id>>);

#[async_trait]
impl Layer for Releases {
    fn inner(&self) -> &dyn Store {
        &self.0
    }

    async fn release(&self, request: &ReleaseRequest) -> Result<ReleaseAnswer, Error> {
        let here = Handle::current().id();
        self.1.send_modify(|sent| sent.push(here));
        self.0.release(request).await
    }
}
