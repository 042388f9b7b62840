//! On which runtime the renewal task runs. The task outlives the runtime that it was started on, as long as there is
//! another one.

use std::{
    fmt, mem,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

use futures::FutureExt;
use parking_lot::{Mutex, MutexGuard};
use tokio::runtime::{Handle, Id, RuntimeFlavor};
use tokio_util::sync::CancellationToken;

use super::task::RenewalTask;
use crate::{model::Error, runtime};

/// How many runtimes are remembered at most. A program has one or two of them. A test suite has one for each test, but
/// most of them have ended.
const REMEMBERED: usize = 8;

/// The runtimes that acquires came from, and the task while no runtime runs it.
pub(super) struct Host {
    state: Mutex<State>,
    closing: CancellationToken,
}

struct State {
    /// The runtime that was used last stands last.
    known: Vec<Handle>,
    /// The task, while no runtime runs it.
    parked: Option<RenewalTask>,
}

impl Host {
    /// A host that starts this task with the first acquire.
    pub(super) fn new(task: RenewalTask, closing: CancellationToken) -> Arc<Self> {
        let state = Mutex::new(State {
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
    pub(super) fn have_ended(&self) -> bool {
        self.state.lock().parked.is_some()
    }

    /// If the client closes and no runtime is left that could release leases: leaves the leases that wait for their
    /// release to their ttl, and those too whose release comes back from a runtime that ends. The close waits for these
    /// releases, and after it no acquire starts the task again.
    pub(super) fn drop_releases(&self) {
        if self.closing.is_cancelled() {
            let state = self.state.lock();
            let parked = state.parked.as_ref();
            let dropped = parked.map(|task| task.state.refuse_releases());
            // The drop of a release wakes tasks that wait for it, so it must not happen under the lock.
            drop(state);
            drop(dropped);
        }
    }

    /// Starts the task on another runtime after its own has ended, or parks it if there is none.
    fn move_from(self: &Arc<Self>, ended: Id, task: RenewalTask) {
        let mut state = self.state.lock();
        state.known.retain(|known| known.id() != ended);
        // A runtime of a single thread may be alive while no thread drives it, so another kind is preferred.
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

    /// Keeps the task until the next acquire starts it. Leases that are kept alive will be lost unless that comes soon,
    /// and report this error as the reason.
    fn park(&self, mut state: MutexGuard<'_, State>, task: RenewalTask, why: &Error) {
        let interrupted = task.interrupt();
        state.parked = Some(task);
        drop(state);
        self.drop_releases();
        for lease in interrupted {
            // The subscriber may panic in the event of one lease; the others still have to hear of it.
            let _ = catch_unwind(AssertUnwindSafe(|| lease.failed(why.clone())));
        }
    }

    /// Starts the task on a runtime. A runtime that has ended drops the task at once, which then
    /// [moves on](Host::move_from).
    fn start(self: &Arc<Self>, task: RenewalTask, runtime: &Handle) {
        task.state.accept_releases();
        let hosted = HostedTask::new(task, self.clone(), runtime.id());
        mem::drop(runtime.spawn(hosted.run()));
    }
}

/// The task on a runtime.
///
/// A runtime that shuts down drops it. The task then goes on, with all the leases that it renews, on another runtime
/// that acquires came from, or if there is none, on that of the next acquire. After a panic it waits for the next
/// acquire too.
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
        // If the handle is dropped, the task has nothing more to do and must not move on.
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
