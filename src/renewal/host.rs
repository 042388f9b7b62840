//! `Host`: the runtime on which the renewal task runs. When that runtime ends, the task moves to another one, if there
//! is one.

use std::{
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

use futures::FutureExt;
use parking_lot::{Mutex, MutexGuard};
use tokio::runtime::{Handle, Id, RuntimeFlavor};
use tokio_util::sync::CancellationToken;

use super::task::RenewalTask;
use crate::{
    model::Error,
    runtime::{self, outside},
};

/// The greatest number of runtimes that are remembered. A program has one or two. A test suite has one for each test,
/// but most of them have ended.
const REMEMBERED: usize = 8;

/// The runtimes from which leases were acquired, and the task while no runtime runs it.
pub(super) struct Host {
    state: Mutex<HostState>,
    closing: CancellationToken,
}

struct HostState {
    /// The runtimes, the last used one at the end.
    known: Vec<Handle>,
    /// The task, while no runtime runs it.
    parked: Option<RenewalTask>,
}

impl Host {
    /// A host that starts this task with the first acquire.
    pub(super) fn new(task: RenewalTask, closing: CancellationToken) -> Arc<Self> {
        let state = Mutex::new(HostState {
            known: Vec::new(),
            parked: Some(task),
        });
        Arc::new(Self { state, closing })
    }

    /// Remembers a runtime, and starts the task on it unless it runs.
    pub(super) fn ensure_running(self: &Arc<Self>, runtime: Handle) {
        let mut state = self.state.lock();
        let last = state.known.last();
        if last.is_none_or(|last| last.id() != runtime.id()) {
            state.known.retain(|known| known.id() != runtime.id());
            if state.known.len() == REMEMBERED {
                state.known.remove(0);
            }
            state.known.push(runtime.clone());
        }
        let parked = state.parked.take();
        drop(state);
        if let Some(task) = parked {
            self.start(task, &runtime);
        }
    }

    /// Whether no runtime runs the task: none is left, or no acquire has started it yet.
    pub(super) fn is_parked(&self) -> bool {
        self.state.lock().parked.is_some()
    }

    /// If the client closes and no runtime is left that could release leases, drops the releases that wait for the
    /// task, and also those that a runtime returns when it ends. Their keys are free when the ttl is over. The releases
    /// must not wait any longer: the close waits for them, and no later acquire starts the task again.
    pub(super) fn drop_releases(&self) {
        if self.closing.is_cancelled() {
            let state = self.state.lock();
            let parked = state.parked.as_ref();
            let dropped = parked.map(|task| task.inbox.refuse_releases());
            // The drop of a release wakes the tasks that wait for it, so it must not happen under the lock.
            drop(state);
            drop(dropped);
        }
    }

    /// Starts the task on another runtime after its own runtime has ended. Parks the task if there is no other.
    fn move_from(self: &Arc<Self>, ended: Id, task: RenewalTask) {
        let mut state = self.state.lock();
        state.known.retain(|known| known.id() != ended);
        // A single-threaded runtime may exist while no thread drives it, so a runtime with threads of its own is
        // preferred.
        let has_threads = |known: &&Handle| known.runtime_flavor() != RuntimeFlavor::CurrentThread;
        let threads = state.known.iter().rev().find(has_threads);
        match threads.or(state.known.last()).cloned() {
            Some(next) => {
                drop(state);
                self.start(task, &next);
            }
            None => self.park(state, task, &runtime::ended()),
        }
    }

    /// Keeps the task until the next acquire starts it. If there is none soon, the leases that are kept alive are lost,
    /// with this error as the reason.
    fn park(&self, mut state: MutexGuard<'_, HostState>, task: RenewalTask, why: &Error) {
        let interrupted = task.interrupt();
        state.parked = Some(task);
        drop(state);
        self.drop_releases();
        for lease in interrupted {
            // The subscriber of the application may panic in the event of one lease. The error must still be recorded
            // for the others.
            let _ = catch_unwind(AssertUnwindSafe(|| lease.failed(why.clone())));
        }
    }

    /// Starts the task on a runtime. A runtime that has ended drops the task at once, which then
    /// [moves on](Host::move_from).
    fn start(self: &Arc<Self>, task: RenewalTask, runtime: &Handle) {
        task.inbox.begin_on(runtime);
        let hosted = HostedTask::new(task, self.clone(), runtime.id());
        outside::spawn(runtime, hosted.run());
    }
}

/// The task on a runtime.
///
/// A runtime that shuts down drops it. The task then moves, with all the leases that it renews, to another runtime from
/// which leases were acquired. If there is none, or after a panic, it waits for the next acquire, and moves to its
/// runtime.
struct HostedTask {
    /// `None` after the task has ended, or has moved to another runtime.
    task: Option<RenewalTask>,
    host: Arc<Host>,
    runtime: Id,
}

impl HostedTask {
    fn new(task: RenewalTask, host: Arc<Host>, runtime: Id) -> Self {
        Self {
            task: Some(task),
            host,
            runtime,
        }
    }

    async fn run(mut self) {
        let Some(task) = &mut self.task else {
            return;
        };
        let ended = AssertUnwindSafe(task.run()).catch_unwind().await;
        // If `run` has returned, the handle was dropped. The task has nothing more to do, and must not move to another
        // runtime.
        let task = self.task.take();
        if let (Err(_), Some(task)) = (ended, task) {
            // The subscriber of the application has panicked in an event of the task, and may do so again.
            self.host
                .park(self.host.state.lock(), task, &runtime::panicked());
        }
    }
}

impl Drop for HostedTask {
    fn drop(&mut self) {
        if let Some(task) = self.task.take() {
            self.host.move_from(self.runtime, task);
        }
    }
}

impl fmt::Debug for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Host").finish_non_exhaustive()
    }
}
