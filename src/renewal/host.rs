//! On which runtime the renewal task runs: the task outlives the runtime that it was started on, as long as
//! there is another one.

use std::{fmt, mem, sync::Arc};

use parking_lot::Mutex;
use tokio::runtime::{Handle, Id, RuntimeFlavor};
use tokio_util::sync::CancellationToken;

use super::task::RenewalTask;
use crate::runtime;

/// How many runtimes are remembered. A program has one or two; a test suite one for each test, most of
/// which have ended.
const REMEMBERED: usize = 8;

/// The runtimes that leases were asked for on, and what is to be done while the task has none.
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
    /// Without a task yet.
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

    /// Whether there is no task, because no runtime is left.
    pub(super) fn have_ended(&self) -> bool {
        self.state.lock().parked.is_some()
    }

    /// While the handle closes: leaves to their ttl the leases that wait for their release, if no runtime is left
    /// that could do it. The close waits for them, and may be all that goes on.
    pub(super) fn drop_releases(&self) {
        if self.closing.is_cancelled() {
            let state = self.state.lock();
            let dropped = state.parked.as_ref().map(|task| task.state.take_releases());
            // Dropping the releases wakes tasks that wait for them: not under the lock.
            drop(state);
            drop(dropped);
        }
    }

    /// Has the task go on after its runtime has ended.
    fn move_from(self: &Arc<Self>, ended: Id, task: RenewalTask) {
        let mut state = self.state.lock();
        state.known.retain(|known| known.id() != ended);
        // A runtime of a single thread may live, and have nothing that drives it.
        let has_threads = |known: &&Handle| known.runtime_flavor() != RuntimeFlavor::CurrentThread;
        let threads = state.known.iter().rev().find(has_threads);
        let next = threads.or(state.known.last()).cloned();
        match next {
            Some(next) => {
                drop(state);
                self.start(task, &next);
            }
            None => {
                // The guards that live tell by it why they will be lost.
                let interrupted = task.interrupt();
                state.parked = Some(task);
                drop(state);
                self.drop_releases();
                for lease in interrupted {
                    lease.failed(runtime::ended());
                }
            }
        }
    }

    /// A runtime that has ended drops the task at once, which then [moves on](Host::move_from).
    fn start(self: &Arc<Self>, task: RenewalTask, runtime: &Handle) {
        let hosted = HostedTask::new(task, self.clone(), runtime.id());
        mem::drop(runtime.spawn(hosted.run()));
    }
}

/// The task on a runtime.
///
/// A runtime that shuts down drops the task. It then goes on, with all that it keeps, on another runtime that
/// acquires came from; and if there is none, on that of the next acquire.
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
        if let Some(task) = &mut self.task {
            task.run().await;
        }
        // The handle is gone: nothing is kept any more.
        self.task = None;
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
