//! `Timers`: when the keys are told that their times have come, and the runtime on which the work of a handle runs.
//! `timer_task.rs` has the task that tells them.

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::{runtime::Handle, sync::Notify, time::Instant};

use crate::runtime::outside::Alarm;

/// A task that is later than this does not run.
const LATE: Duration = Duration::from_millis(500);

#[derive(Debug, Default)]
pub(super) struct Timers {
    pub(super) state: Mutex<TimerState>,
    pub(super) changed: Arc<Notify>,
}

#[derive(Debug, Default)]
pub(super) struct TimerState {
    /// The runtime of the task. It may have ended.
    pub(super) home: Option<Handle>,
    pub(super) is_running: bool,
    /// How many tasks were started. Only the last one counts.
    pub(super) tasks: u64,
    /// When the task looks at the keys next, whatever they say. `None` if it waits for a change.
    pub(super) armed: Option<Instant>,
    /// Wakes the task. `None` if it runs on a current-thread runtime.
    pub(super) alarm: Option<Alarm>,
}

impl Timers {
    /// The runtime on which the work of the handle runs: that of its first acquire, or this one before that.
    pub(super) fn home(&self) -> Option<Handle> {
        let state = self.state.lock();
        let home = state.home.clone();
        if state.is_running {
            return home;
        }
        drop(state);
        Handle::try_current().ok().or(home)
    }

    /// Wakes the task, which ends if the handle has gone.
    pub(super) fn end(&self) {
        self.changed.notify_one();
    }

    /// Whether the task is late: its runtime may not be driven any more.
    pub(super) fn is_late(&self, now: Instant) -> bool {
        let state = self.state.lock();
        state.is_running && state.armed.is_some_and(|at| at + LATE < now)
    }

    /// Records when the task looks at the keys next. Returns when it has to wake by itself.
    pub(super) fn plan(&self, next: Option<Instant>) -> Option<Instant> {
        let mut state = self.state.lock();
        state.armed = next;
        let is_set = state.alarm.as_mut().is_some_and(|alarm| alarm.set(next));
        next.filter(|_| !is_set)
    }
}
