//! Releases whose runtime ends before they are answered, because it is dropped or its thread panics. They are carried
//! out on another runtime, or wait for one.

use std::{
    error::Error as _,
    future::poll_fn,
    sync::{Arc, mpsc},
    task::Poll,
    thread,
    time::Duration,
};

use async_trait::async_trait;
use futures::{FutureExt, executor, future::BoxFuture};
use leasehold::{
    Error, Key, Lease, Leases, MemoryStore, Store,
    store::{ReleaseAnswer, ReleaseRequest},
};
use leasehold_tests::layer::{Layer, Layered};
use parking_lot::Mutex;
use tokio::{
    runtime::{Builder, Handle, Id, Runtime},
    sync::watch,
    task,
    time::timeout,
};

use super::PATIENCE;

/// The ttl and the time limit of a call. No test lasts so long, so a second release is never a retry.
const LONG: Duration = Duration::from_secs(60 * 60);

/// A memory store whose first release hangs until it is dropped.
#[derive(Clone, Debug)]
struct FirstHangs {
    memory: MemoryStore,
    seen: watch::Sender<Seen>,
    /// The drop of the release that hangs waits for a message on this channel, if there is one.
    gate: Arc<Mutex<Option<mpsc::Receiver<()>>>>,
}

/// What the store has recorded about the releases.
#[derive(Clone, Debug, Default)]
struct Seen {
    /// The runtime on which each release was sent.
    sent_on: Vec<Id>,
    /// Whether a task has polled the release that hangs.
    is_polled_by_task: bool,
}

/// The release that hangs.
struct Hanging(FirstHangs);

impl FirstHangs {
    fn new(gate: Option<mpsc::Receiver<()>>) -> (Self, Leases) {
        let store = Self {
            memory: MemoryStore::new(),
            seen: watch::Sender::default(),
            gate: Arc::new(Mutex::new(gate)),
        };
        let leases = Leases::builder(Layered(store.clone())).call_timeout(LONG);
        (store, leases.build())
    }

    async fn until(&self, seen: impl FnMut(&Seen) -> bool) {
        let mut changes = self.seen.subscribe();
        let wait = timeout(PATIENCE, changes.wait_for(seen));
        wait.await.expect("it is seen in time").unwrap();
    }

    fn sent_on(&self) -> Vec<Id> {
        self.seen.borrow().sent_on.clone()
    }

    fn is_free(&self) -> bool {
        let state = executor::block_on(self.memory.inspect(&Key::new("key").unwrap()));
        state.unwrap().is_none_or(|state| state.is_free())
    }
}

#[async_trait]
impl Layer for FirstHangs {
    fn inner(&self) -> &dyn Store {
        &self.memory
    }

    async fn release(&self, request: &ReleaseRequest) -> Result<ReleaseAnswer, Error> {
        let runtime = Handle::current().id();
        self.seen.send_modify(|seen| seen.sent_on.push(runtime));
        if self.seen.borrow().sent_on.len() == 1 {
            let hanging = Hanging(self.clone());
            poll_fn(|_| hanging.poll()).await;
        }
        self.memory.release(request).await
    }
}

impl Hanging {
    fn poll(&self) -> Poll<()> {
        if task::try_id().is_some() {
            self.0
                .seen
                .send_modify(|seen| seen.is_polled_by_task = true);
        }
        Poll::Pending
    }
}

impl Drop for Hanging {
    fn drop(&mut self) {
        if let Some(gate) = self.0.gate.lock().take() {
            // This fails only if the test has failed.
            let _ = gate.recv_timeout(PATIENCE);
        }
    }
}

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

async fn acquire(leases: &Leases, key: &str) -> Lease {
    let acquire = leases.acquire(key, LONG).wait_for(PATIENCE);
    acquire.await.unwrap()
}

/// Drops a guard on this runtime. Its release then hangs there.
fn drop_on(runtime: &Runtime, store: &FirstHangs, leases: &Leases) {
    runtime.block_on(async {
        drop(acquire(leases, "key").await);
        store.until(|seen| seen.sent_on.len() == 1).await;
    });
    assert_eq!(store.sent_on(), [runtime.handle().id()]);
}

/// A client whose release hung on its only runtime, which has ended.
fn left_without_a_runtime(ends: Runtime, end: fn(Runtime)) -> (FirstHangs, Leases, Id) {
    let (store, leases) = FirstHangs::new(None);
    let first = ends.handle().id();
    drop_on(&ends, &store, &leases);
    end(ends);
    assert_eq!((store.sent_on(), store.is_free()), (vec![first], false));
    (store, leases, first)
}

/// Waits for the second release on this runtime, and then for the key. An acquire before that release could be granted
/// the key in the place of the lease, without the release.
fn is_released_on(runtime: &Runtime, store: &FirstHangs, leases: &Leases) {
    runtime.block_on(async {
        store.until(|seen| seen.sent_on.len() == 2).await;
        acquire(leases, "key").await.detach().unwrap();
    });
}

#[test]
fn a_background_release_goes_on_with_a_runtime_that_lives() {
    for (ends, end) in endings() {
        let (store, leases) = FirstHangs::new(None);
        let (first, lives) = (ends.handle().id(), with_threads());
        drop_on(&ends, &store, &leases);
        lives
            .block_on(acquire(&leases, "another"))
            .detach()
            .unwrap();
        assert_eq!(store.sent_on(), [first], "the control");
        end(ends);
        // No acquire and no close is needed.
        is_released_on(&lives, &store, &leases);
        assert_eq!(store.sent_on(), [first, lives.handle().id()]);
    }
}

#[test]
fn a_background_release_waits_for_the_runtime_of_the_next_acquire() {
    for (ends, end) in endings() {
        let (store, leases, first) = left_without_a_runtime(ends, end);
        let next = without_threads();
        next.block_on(acquire(&leases, "another")).detach().unwrap();
        is_released_on(&next, &store, &leases);
        assert_eq!(store.sent_on(), [first, next.handle().id()]);
    }
}

#[test]
fn a_background_release_waits_for_the_runtime_of_a_close() {
    for (ends, end) in endings() {
        let (store, leases, first) = left_without_a_runtime(ends, end);
        let next = without_threads();
        in_time(&next, leases.close());
        assert!(store.is_free());
        assert_eq!(store.sent_on(), [first, next.handle().id()]);
    }
}

/// Without a runtime nothing can be sent. The key is free when the ttl is over.
#[test]
fn a_close_outside_of_a_runtime_does_not_wait_for_a_release_whose_runtime_has_ended() {
    for is_first in [true, false] {
        for (ends, end) in endings() {
            let (store, leases) = FirstHangs::new(None);
            let first = ends.handle().id();
            drop_on(&ends, &store, &leases);
            let mut close = Box::pin(async move { leases.close().await });
            if is_first {
                assert!((&mut close).now_or_never().is_none(), "the control");
            }
            end(ends);
            let (done, closed) = mpsc::channel();
            thread::spawn(move || {
                executor::block_on(close);
                done.send(()).unwrap();
            });
            closed.recv_timeout(PATIENCE).unwrap();
            assert_eq!((store.sent_on(), store.is_free()), (vec![first], false));
        }
    }
}

/// A close outside of a runtime leaves releases to their ttl only until the next close on a runtime, which carries them
/// out.
#[test]
fn a_release_is_handed_on_to_the_runtime_of_the_last_close() {
    for end in [drop, panic_on] {
        let (store, leases) = FirstHangs::new(None);
        let (first, ends, next) = (without_threads(), without_threads(), without_threads());
        let ids = [&ends, &next].map(|runtime| runtime.handle().id());
        let lease = first.block_on(acquire(&leases, "key"));
        // No acquire ran on this runtime, so the release is all that ran on it.
        let release = begin_on(&ends, lease);
        end(first);
        assert!(leases.close().now_or_never().is_none());
        let mut close = leases.close().boxed();
        in_time(&next, async {
            assert!((&mut close).now_or_never().is_none());
        });
        assert_eq!(store.sent_on(), ids[..1], "the control");
        end(ends);
        in_time(&next, close);
        assert!(store.is_free());
        assert_eq!(store.sent_on(), ids);
        assert_eq!(reason(in_time(&next, release)), "its runtime ended");
    }
}

/// The task that carries out the release is dropped with its runtime, and that takes a long time.
#[test]
fn a_release_is_handed_on_while_its_runtime_ends() {
    for end in [drop, panic_on] {
        let (opens, gate) = mpsc::channel();
        let (store, leases) = FirstHangs::new(Some(gate));
        let (ends, lives) = (with_threads(), with_threads());
        let ids = [&ends, &lives].map(|runtime| runtime.handle().id());
        let lease = lives.block_on(acquire(&leases, "key"));
        let mut release = Box::pin(lease.release());
        ends.block_on(async {
            assert!((&mut release).now_or_never().is_none());
            // The caller does not poll the release, so after a moment a task does.
            store.until(|seen| seen.is_polled_by_task).await;
        });
        let waits = lives.spawn(release);
        let ending = thread::spawn(move || end(ends));
        lives.block_on(store.until(|seen| seen.sent_on.len() == 2));
        opens.send(()).unwrap();
        let outcome = in_time(&lives, waits).unwrap();
        assert_eq!(reason(outcome), "its runtime ended");
        ending.join().unwrap();
        is_released_on(&lives, &store, &leases);
        assert_eq!(store.sent_on(), ids);
    }
}

/// The caller polls the release on another runtime than the one on which it began, and the poll panics.
#[test]
fn a_release_that_its_caller_polls_after_the_end_of_its_runtime_is_handed_on() {
    for end in [drop, panic_on] {
        let (store, leases) = FirstHangs::new(None);
        // Neither runtime has a thread of its own, so no task polls the release before its caller does.
        let (ends, lives) = (without_threads(), without_threads());
        let ids = [&ends, &lives].map(|runtime| runtime.handle().id());
        let lease = lives.block_on(acquire(&leases, "key"));
        let release = begin_on(&ends, lease);
        end(ends);
        let outcome = in_time(&lives, release);
        assert_eq!(reason(outcome), "it panicked");
        is_released_on(&lives, &store, &leases);
        assert_eq!(store.sent_on(), ids);
        assert!(!store.seen.borrow().is_polled_by_task);
    }
}

#[test]
fn a_release_whose_caller_has_gone_goes_on_with_a_runtime_that_lives() {
    for end in [drop, panic_on] {
        let (store, leases) = FirstHangs::new(None);
        // Nothing drives the first runtime. A task there would retry after the caller is dropped.
        let (ends, lives) = (without_threads(), with_threads());
        let ids = [&ends, &lives].map(|runtime| runtime.handle().id());
        let lease = lives.block_on(acquire(&leases, "key"));
        drop(begin_on(&ends, lease));
        assert_eq!(store.sent_on(), ids[..1], "the control");
        end(ends);
        // No acquire and no close is needed.
        is_released_on(&lives, &store, &leases);
        assert_eq!(store.sent_on(), ids);
    }
}

#[test]
fn a_release_that_its_caller_does_not_poll_goes_on_with_a_runtime_that_lives() {
    for (ends, end) in endings() {
        let (store, leases) = FirstHangs::new(None);
        let lives = with_threads();
        let ids = [&ends, &lives].map(|runtime| runtime.handle().id());
        let lease = lives.block_on(acquire(&leases, "key"));
        let release = begin_on(&ends, lease);
        ends.block_on(store.until(|seen| seen.is_polled_by_task));
        end(ends);
        is_released_on(&lives, &store, &leases);
        assert_eq!(reason(in_time(&lives, release)), "its runtime ended");
        assert_eq!(store.sent_on(), ids);
    }
}

/// The close comes after the end of the runtime, and before the caller polls the release again.
#[test]
fn a_close_waits_for_a_release_whose_runtime_has_ended() {
    for is_task in [true, false] {
        for (ends, end) in endings() {
            let (store, leases) = FirstHangs::new(None);
            let lives = with_threads();
            let ids = [&ends, &lives].map(|runtime| runtime.handle().id());
            let lease = lives.block_on(acquire(&leases, "key"));
            let release = begin_on(&ends, lease);
            if is_task {
                ends.block_on(store.until(|seen| seen.is_polled_by_task));
            }
            end(ends);
            in_time(&lives, leases.close());
            assert!(store.is_free());
            assert_eq!(store.sent_on(), ids);
            assert_eq!(reason(in_time(&lives, release)), "its runtime ended");
        }
    }
}

/// Begins a release on a runtime that nothing drives afterwards.
fn begin_on(runtime: &Runtime, lease: Lease) -> BoxFuture<'static, Result<(), Error>> {
    let _here = runtime.enter();
    let mut release = lease.release().boxed();
    assert!((&mut release).now_or_never().is_none());
    release
}

/// Runs this future on the runtime, with a time limit.
fn in_time<T>(runtime: &Runtime, work: impl Future<Output = T>) -> T {
    runtime.block_on(async { timeout(PATIENCE, work).await.unwrap() })
}

/// The reason of a release that was interrupted.
fn reason(outcome: Result<(), Error>) -> String {
    let error = outcome.unwrap_err();
    assert!(matches!(error, Error::Interrupted { .. }), "{error:?}");
    error.source().unwrap().to_string()
}
