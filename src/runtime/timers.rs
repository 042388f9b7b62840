//! `Timers`: when a task looks at what is due, of the keys or of the renewals.

use std::{panic::AssertUnwindSafe, sync::Arc, time::Duration};

use futures::FutureExt;
use parking_lot::Mutex;
use tokio::{
    sync::Notify,
    time::{Instant, sleep, timeout_at},
};

use super::{
    lifecycle::Lifecycle,
    outside::{self, Alarm},
};

/// The pause after a panic.
const PAUSE: Duration = Duration::from_millis(100);

#[derive(Default)]
pub(crate) struct Timers {
    state: Mutex<TimerState>,
    changed: Arc<Notify>,
}

#[derive(Default)]
struct TimerState {
    is_running: bool,
    /// When the task looks next. While it looks, the time that has come. `None` if it waits for a change.
    armed: Option<Instant>,
    /// Wakes the task. `None` if it runs on a current-thread runtime.
    alarm: Option<Alarm>,
}

/// What comes of a look: when the task has to wake by itself.
pub(crate) struct Look(Option<Instant>);

impl Timers {
    /// Starts the task on the runtime of the client, unless it was started before. `look` does what is due, and ends with
    /// a [plan](Self::plan); `None` if the handle has gone.
    pub(crate) fn ensure_running(
        &self,
        lifecycle: &Lifecycle,
        look: impl Fn() -> Option<Look> + Send + Sync + 'static,
    ) {
        let mut state = self.state.lock();
        if let Some(home) = lifecycle.home()
            && !std::mem::replace(&mut state.is_running, true)
        {
            state.alarm = outside::is_used_for(home).then(|| Alarm::new(self.changed.clone()));
            drop(state);
            lifecycle.spawn(run(self.changed.clone(), look));
        }
    }

    /// Sees to it that the task looks at this instant, or before.
    pub(crate) fn arm(&self, at: Instant) {
        let mut state = self.state.lock();
        if state.armed.is_some_and(|armed| armed <= at) {
            return;
        }
        state.armed = Some(at);
        let alarm = state.alarm.as_mut();
        let is_set = alarm.is_some_and(|alarm| alarm.set(Some(at)));
        drop(state);
        if !is_set {
            self.changed.notify_one();
        }
    }

    /// Records when the task looks next. The caller holds the lock of what the task looks at, so that an earlier time which
    /// comes meanwhile is not replaced.
    pub(crate) fn plan(&self, next: Option<Instant>) -> Look {
        let mut state = self.state.lock();
        state.armed = next;
        let is_set = state.alarm.as_mut().is_some_and(|alarm| alarm.set(next));
        Look(next.filter(|_| !is_set))
    }

    /// Wakes the task, which ends if the handle has gone.
    pub(crate) fn end(&self) {
        self.changed.notify_one();
    }
}

/// The task. A subscriber of the application that panics in an event does not end it.
async fn run(changed: Arc<Notify>, look: impl Fn() -> Option<Look>) {
    let looks = || AssertUnwindSafe(wait_and(&look, &changed)).catch_unwind();
    while looks().await.is_err() {
        // The subscriber may panic each time.
        sleep(PAUSE).await;
    }
}

/// Looks each time that it is due, until the handle has gone.
async fn wait_and(look: &impl Fn() -> Option<Look>, changed: &Notify) {
    while let Some(Look(wakes)) = look() {
        match wakes {
            // It looks in any case, whether it was notified or the time has come.
            Some(at) => drop(timeout_at(at, changed.notified()).await),
            None => changed.notified().await,
        }
    }
}
