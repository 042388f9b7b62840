//! How a key changes: its state is told what happens, and what the state asks for is carried out.
//!
//! Invariant: effects are carried out after the lock of the keys is released, and reports to telemetry come last. So a
//! subscriber of the application runs under no lock, and what it does breaks nothing.

use std::time::Duration;

use tokio::time::Instant;

use super::{
    effect::{Effect, Event},
    keys::Keys,
    state::{Effects, Facts, KeyState},
};
use crate::{
    model::Key,
    runtime::{suspension, timers::Look},
    telemetry,
};

/// How long a key does not stay here after another process has waited for it. Two processes that share a key would
/// otherwise wait for each recall.
const CONTENDED_FOR: Duration = Duration::from_secs(30);

impl Keys {
    /// Applies what happens to a key that is wanted or held, and carries out what follows.
    pub(crate) fn step(&self, key: &Key, event: Event) {
        self.update(key, |state, now, out| state.step(event, now, out));
    }

    /// Tells the keys whose times have come.
    pub(super) fn pass_time(&self) -> Look {
        let now = Instant::now();
        let map = self.map.lock();
        let due = map.times.iter().take_while(|(at, _)| *at <= now);
        let keys: Vec<_> = due.map(|(_, key)| key.clone()).collect();
        drop(map);
        telemetry::for_each(&keys, |key| self.step(key, Event::Timer));
        let map = self.map.lock();
        self.timers.plan(map.times.first().map(|(at, _)| *at))
    }

    /// Changes a key, and carries out what follows. `None` if nobody wants it and no lease of it is held.
    pub(super) fn update<T>(
        &self,
        key: &Key,
        change: impl FnOnce(&mut KeyState, Instant, &mut Effects) -> T,
    ) -> Option<T> {
        let changed = self.change(key, false, change);
        self.carry_out(key, changed)
    }

    /// Carries out what follows from a change. Returns the outcome of the change.
    pub(super) fn carry_out<T>(&self, key: &Key, changed: Option<(T, Effects)>) -> Option<T> {
        let (outcome, effects) = changed?;
        telemetry::for_each(effects, |effect| self.run(key, effect));
        Some(outcome)
    }

    /// Changes a key. Returns what follows from the change, which the caller carries out. If `inserts`, the key need not
    /// be there before.
    pub(super) fn change<T>(
        &self,
        key: &Key,
        inserts: bool,
        change: impl FnOnce(&mut KeyState, Instant, &mut Effects) -> T,
    ) -> Option<(T, Effects)> {
        let (now, suspended) = (Instant::now(), suspension::total());
        let mut map = self.map.lock();
        let map = &mut *map;
        let facts = Facts {
            reports_freed: self.streams.freed.is_open(),
            is_closing: self.lifecycle.is_closing(),
            may_stay: !map.contended.contains(key, now),
            entering: None,
        };
        if inserts && !map.states.contains_key(key) {
            let state = KeyState::new(self.call_timeout(), facts, now);
            map.states.insert(key.clone(), Box::new(state));
        }
        let state = map.states.get_mut(key)?;
        state.refresh(facts, now, suspended);
        let mut out = Effects::new();
        let outcome = change(state, now, &mut out);
        // What was changed may be a lease, or a guard.
        state.refresh(state.facts, now, suspended);
        out.retain_mut(|effect| match effect {
            Effect::Contended => {
                let until = now + CONTENDED_FOR;
                map.contended.insert(key.clone(), until, now);
                false
            }
            effect => self.note(state, effect),
        });
        // What runs in an event comes last: it is code of the application. The order is kept otherwise.
        out.sort_by_key(|effect| matches!(effect, Effect::Report(_) | Effect::Overdue(..)));
        let is_empty = state.is_empty();
        let time = state.next_timer().filter(|_| !is_empty);
        let before = std::mem::replace(&mut state.planned, time);
        if is_empty {
            out.extend(map.states.remove(key).map(|state| Effect::Drop(state)));
        }
        if time != before {
            before.map(|at| map.times.remove(&(at, key.clone())));
            if let Some(at) = time {
                map.times.insert((at, key.clone()));
                self.timers.arm(at);
            }
        }
        Some((outcome, out))
    }
}
