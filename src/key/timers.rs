//! `Timers`: a task tells the keys when their times have come.

use std::{
    panic::AssertUnwindSafe,
    sync::{Arc, Weak},
    time::Duration,
};

use futures::FutureExt;
use parking_lot::Mutex;
use tokio::{
    sync::Notify,
    time::{Instant, sleep, sleep_until},
};

use super::{
    effect::Event,
    keys::{KeyMap, Keys},
};
use crate::{
    model::Key,
    runtime::{
        lifecycle::Lifecycle,
        outside::{self, Alarm},
    },
    telemetry,
};

/// The pause after a panic.
const PAUSE: Duration = Duration::from_millis(100);

#[derive(Debug, Default)]
pub(super) struct Timers {
    state: Mutex<TimerState>,
    changed: Arc<Notify>,
}

#[derive(Debug, Default)]
struct TimerState {
    is_running: bool,
    /// When the task looks at the keys next, whatever they say. `None` if it waits for a change.
    armed: Option<Instant>,
    /// Wakes the task. `None` if it runs on a current-thread runtime.
    alarm: Option<Alarm>,
}

impl Timers {
    /// Starts the task on the runtime of the client, unless it was started before.
    pub(super) fn ensure_running(&self, lifecycle: &Lifecycle, keys: &Weak<Keys>) {
        let mut state = self.state.lock();
        if let Some(home) = lifecycle.home()
            && !std::mem::replace(&mut state.is_running, true)
        {
            state.alarm = outside::is_used_for(home).then(|| Alarm::new(self.changed.clone()));
            drop(state);
            lifecycle.spawn(run(keys.clone(), self.changed.clone()));
        }
    }

    /// Sees to it that the task looks at the keys at this instant, or before.
    pub(super) fn arm(&self, at: Instant) {
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

    /// Records when the task looks at the keys next. Returns when it has to wake by itself.
    fn plan(&self, next: Option<Instant>) -> Option<Instant> {
        let mut state = self.state.lock();
        state.armed = next;
        let is_set = state.alarm.as_mut().is_some_and(|alarm| alarm.set(next));
        next.filter(|_| !is_set)
    }

    /// Wakes the task, which ends if the handle has gone.
    pub(super) fn end(&self) {
        self.changed.notify_one();
    }
}

/// The task. A subscriber of the application that panics in an event does not end it.
async fn run(keys: Weak<Keys>, changed: Arc<Notify>) {
    while AssertUnwindSafe(tell(&keys, &changed))
        .catch_unwind()
        .await
        .is_err()
    {
        // The subscriber may panic each time.
        sleep(PAUSE).await;
    }
}

/// Tells the keys of their times until the handle has gone.
async fn tell(keys: &Weak<Keys>, changed: &Notify) {
    while let Some(wakes) = keys.upgrade().map(|keys| keys.pass_time()) {
        match wakes {
            Some(at) => tokio::select! {
                biased;
                () = changed.notified() => {}
                () = sleep_until(at) => {}
            },
            None => changed.notified().await,
        }
    }
}

impl Keys {
    /// Tells the keys whose times have come. Returns when the task has to wake by itself.
    fn pass_time(&self) -> Option<Instant> {
        let now = Instant::now();
        let due = |map: &KeyMap| -> Vec<Key> {
            let due = map.times.iter().take_while(|(at, _)| *at <= now);
            due.map(|(_, key)| key.clone()).collect()
        };
        let keys = due(&self.map.lock());
        telemetry::for_each(&keys, |key| self.step(key, Event::Timer));
        // The lock of the keys is held, so that an earlier time which comes meanwhile is not replaced.
        let map = self.map.lock();
        self.timers.plan(map.times.first().map(|(at, _)| *at))
    }
}
