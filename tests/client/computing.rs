//! What this process owes to others does not wait for a task that computes, if other threads of its runtime are idle:
//! renewals, releases, and the rest of an acquire that was given up.

use leasehold::Leases;
use leasehold_tests::computing::{Computation, TTL, compute_until, neighbour, threads, until};
use tokio::runtime::Runtime;

use super::{FlakyStore, MOMENT, setup};

/// A process, and a store that records what it sends.
struct Process {
    threads: Runtime,
    store: FlakyStore,
    leases: Leases,
}

impl Process {
    fn new() -> Self {
        let (store, leases) = setup();
        let threads = threads();
        Self {
            threads,
            store,
            leases,
        }
    }

    /// Runs a task, which computes until all of these calls were sent since it began to compute.
    fn sends_beside<F: Future<Output = ()> + Send + 'static>(
        &self,
        calls: &[&str],
        task: impl FnOnce(Leases, Computation) -> F,
    ) {
        let leases = self.leases.clone();
        let are_sent = self.are_sent(calls);
        compute_until(&self.threads, are_sent, |computation| {
            task(leases, computation)
        });
    }

    fn are_sent(&self, calls: &[&str]) -> impl FnMut() -> bool {
        let mut left = calls.to_vec();
        move || {
            let sent = self.store.calls();
            left.retain(|call| !sent.contains(call));
            left.is_empty()
        }
    }

    /// The same beside the lease of another task, whose next renewal is among the calls.
    fn renews_beside<F: Future<Output = ()> + Send + 'static>(
        &self,
        calls: &[&str],
        task: impl FnOnce(Leases, Computation) -> F,
    ) {
        let neighbour = neighbour(&self.threads, &self.leases);
        until(self.are_sent(&["renew"]));
        self.sends_beside(&[&["renew"], calls].concat(), task);
        assert!(neighbour.is_live());
    }
}

#[test]
fn a_task_that_keeps_a_lease_and_computes_holds_up_no_renewal() {
    Process::new().renews_beside(&[], async |leases, computation| {
        let own = leases.acquire("key", TTL).keep_alive().await.unwrap();
        computation.run();
        assert!(own.is_live());
    });
}

/// The first lease of the process: the renewals begin with it.
#[test]
fn nor_does_the_first_task_with_a_lease() {
    Process::new().sends_beside(&["renew"], async |leases, computation| {
        let own = leases.acquire("key", TTL).keep_alive().await.unwrap();
        computation.run();
        assert!(own.is_live());
    });
}

#[test]
fn nor_does_work_under_a_lease() {
    Process::new().renews_beside(&[], async |leases, computation| {
        let work = leases.acquire("key", TTL).with(async |_| {
            computation.run();
            Ok::<_, std::io::Error>(())
        });
        work.await.unwrap();
    });
}

/// The worker that ends the sleep is the one that waits for timers on behalf of all.
#[test]
fn nor_does_a_task_that_computes_after_a_sleep() {
    Process::new().renews_beside(&[], async |_, computation| {
        tokio::time::sleep(MOMENT).await;
        computation.run();
    });
}

#[test]
fn a_lease_that_is_dropped_before_a_computation_is_released_beside_it() {
    Process::new().renews_beside(&["release"], async |leases, computation| {
        drop(leases.acquire("key", TTL).await.unwrap());
        computation.run();
    });
}

/// The answer to the acquire comes while the task computes.
#[test]
fn an_acquire_that_was_given_up_goes_on_beside_a_computation() {
    let process = Process::new();
    let gates = process.store.gates.clone();
    gates.close(1);
    let (leases, reached) = (process.leases.clone(), gates.clone());
    let mut is_released = process.are_sent(&["release"]);
    let is_answered_and_released = || {
        // The thread of the test answers. The task that waits for the answer is not woken by the one that computes.
        gates.open();
        is_released()
    };
    compute_until(
        &process.threads,
        is_answered_and_released,
        async move |computation| {
            tokio::select! {
                lease = leases.acquire("key", TTL).into_future() => panic!("{lease:?} was granted"),
                () = reached.reached() => {}
            }
            computation.run();
        },
    );
}
