//! `TimerTask`: the task that tells the keys when their times have come.

use std::sync::{Arc, Weak};

use tokio::{
    runtime::Handle,
    sync::Notify,
    time::{Instant, sleep_until},
};

use super::{
    effect::Event,
    keys::{KeyMap, Keys},
    timers::Timers,
};
use crate::{
    model::{Error, Key},
    runtime::outside::{self, Alarm},
    telemetry,
};

impl Timers {
    /// Starts the task on this runtime, unless it runs. Fails outside of a tokio runtime.
    pub(super) fn ensure_running(&self, keys: &Weak<Keys>) -> Result<(), Error> {
        let here = Handle::try_current().map_err(|_| Error::NoRuntime)?;
        let mut state = self.state.lock();
        if state.is_running {
            return Ok(());
        }
        (state.is_running, state.armed) = (true, None);
        state.tasks += 1;
        state.alarm = outside::is_used_for(&here).then(|| Alarm::new(self.changed.clone()));
        state.home = Some(here.clone());
        let number = state.tasks;
        drop(state);
        let task = TimerTask {
            keys: keys.clone(),
            number,
            is_at_work: false,
        };
        let changed = self.changed.clone();
        outside::spawn(&here, task.run(changed));
        Ok(())
    }

    /// Sees to it that the task looks at the keys at this instant, or before.
    pub(super) fn arm(&self, at: Instant, keys: &Weak<Keys>) {
        let mut state = self.state.lock();
        if !state.is_running {
            drop(state);
            // The runtime of the task has ended. If this is outside of a runtime too, the next acquire starts it.
            let _ = self.ensure_running(keys);
            return;
        }
        if state.armed.is_some_and(|armed| armed <= at) {
            return;
        }
        state.armed = Some(at);
        let is_set = state
            .alarm
            .as_mut()
            .is_some_and(|alarm| alarm.set(Some(at)));
        drop(state);
        if !is_set {
            self.changed.notify_one();
        }
    }
}

/// The task. When it is dropped, also with its runtime, the next acquire starts another one.
struct TimerTask {
    keys: Weak<Keys>,
    number: u64,
    /// Whether it tells the keys of their times, which makes events.
    is_at_work: bool,
}

impl TimerTask {
    async fn run(mut self, changed: Arc<Notify>) {
        loop {
            let Some(keys) = self.keys.upgrade() else {
                return;
            };
            if keys.timers.state.lock().tasks != self.number {
                return;
            }
            self.is_at_work = true;
            let wakes = keys.pass_time();
            self.is_at_work = false;
            drop(keys);
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
}

impl Drop for TimerTask {
    fn drop(&mut self) {
        if let Some(keys) = self.keys.upgrade() {
            let mut state = keys.timers.state.lock();
            if state.tasks != self.number {
                return;
            }
            state.is_running = false;
            drop(state);
            if self.is_at_work {
                // The subscriber of the application has panicked in an event. The runtime goes on.
                let _ = keys.timers.ensure_running(&self.keys);
            }
        }
    }
}

impl Keys {
    /// Starts the timers on this runtime, if they do not run on theirs, and the releases that have not begun on theirs.
    pub(super) fn take_over_timers(&self) {
        self.renewals.begin_releases(&self.releaser);
        if self.timers.is_late(Instant::now()) {
            self.timers.state.lock().is_running = false;
        }
        // This fails outside of a runtime, where no waiter is polled.
        let _ = self.timers.ensure_running(&self.this);
    }

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
