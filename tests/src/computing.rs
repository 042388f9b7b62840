//! Tasks that compute, and meanwhile keep a thread of a runtime whose other threads are idle.
//!
//! A task computes until the store has seen what the task must not hold up. So these tests use threads and real time.
//! The thread of a test waits outside of the runtime, whose timers may be held up too.

use std::{
    sync::{Arc, mpsc},
    thread,
    time::{Duration, Instant},
};

use leasehold::{Key, Lease, Leases, LockState, Store};
use tokio::runtime::{Builder, Runtime};

use super::PATIENCE;

/// A third of this is how long a test of renewals takes.
pub const TTL: Duration = Duration::from_secs(9);

/// What a task computes: it keeps its thread until the test has seen what it waits for.
pub struct Computation {
    begin: mpsc::Sender<()>,
    ended: mpsc::Receiver<()>,
}

impl Computation {
    pub fn run(self) {
        self.begin.send(()).unwrap();
        // The test ends before this limit.
        let _ = self.ended.recv_timeout(PATIENCE * 2);
    }
}

/// A runtime with several threads.
pub fn threads() -> Runtime {
    let mut threads = Builder::new_multi_thread();
    threads.worker_threads(4).enable_all().build().unwrap()
}

/// Runs a task, which begins to compute at some point, until `is_so`.
pub fn compute_until<F: Future<Output = ()> + Send + 'static>(
    threads: &Runtime,
    is_so: impl FnMut() -> bool,
    task: impl FnOnce(Computation) -> F,
) {
    let ((end, ended), (begin, begun)) = (mpsc::channel(), mpsc::channel());
    let task = threads.spawn(task(Computation { begin, ended }));
    begun.recv_timeout(PATIENCE).expect("the task computes");
    until(is_so);
    end.send(()).unwrap();
    threads.block_on(task).unwrap();
}

pub fn until(mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(
            start.elapsed() < PATIENCE,
            "it waits for the task that computes"
        );
        thread::sleep(Duration::from_millis(10));
    }
}

/// A lease of another task, which is kept alive and has nothing to do with the one that computes.
pub fn neighbour(threads: &Runtime, leases: &Leases) -> Lease {
    let leases = leases.clone();
    let acquire = async move { leases.acquire("neighbour", TTL).keep_alive().await };
    threads.block_on(threads.spawn(acquire)).unwrap().unwrap()
}

/// A store as another process sees it.
struct Elsewhere {
    store: Arc<dyn Store>,
    runtime: Runtime,
}

impl Elsewhere {
    fn state(&self, key: &str) -> Option<LockState> {
        let key = Key::new(key).unwrap();
        self.runtime.block_on(self.store.inspect(&key)).unwrap()
    }

    fn is_free(&self, key: &str) -> bool {
        self.state(key).is_none_or(|state| state.is_free())
    }

    /// Waits for a renewal. Returns a condition that the next one fulfils.
    fn next_renewal(&self, key: &'static str) -> impl Fn() -> bool {
        let expires = move || {
            let holders = self.state(key).map(|state| state.holders);
            let holder = holders.into_iter().flatten().next();
            holder.expect("the lease is held").expires_at
        };
        let first = expires();
        until(|| expires() > first);
        let second = expires();
        move || expires() > second
    }
}

/// Tries what a task that computes must not hold up, in real time. `connect` makes a store as a process has it.
pub fn nothing_is_held_up<S: Store, F: Future<Output = S>>(connect: impl Fn() -> F) {
    let threads = threads();
    let leases = Leases::builder(threads.block_on(connect()));
    let leases = leases.call_timeout(PATIENCE).build();
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    let store = Arc::new(runtime.block_on(connect()));
    let elsewhere = Elsewhere { store, runtime };
    let kept = neighbour(&threads, &leases);

    let own = leases.clone();
    compute_until(
        &threads,
        elsewhere.next_renewal("neighbour"),
        async move |computation| {
            let lease = own.acquire("kept", TTL).keep_alive().await.unwrap();
            computation.run();
            assert!(lease.is_live());
        },
    );
    let own = leases.clone();
    let renewed = elsewhere.next_renewal("neighbour");
    let is_done = || elsewhere.is_free("dropped") && renewed();
    compute_until(&threads, is_done, async move |computation| {
        drop(own.acquire("dropped", PATIENCE * 4).await.unwrap());
        computation.run();
    });
    let own = leases.clone();
    compute_until(
        &threads,
        elsewhere.next_renewal("neighbour"),
        async move |computation| {
            let lease = own.acquire("released", TTL).await.unwrap();
            lease.release().await.unwrap();
            computation.run();
        },
    );
    assert!(kept.is_live());
    threads.block_on(leases.close());
}
