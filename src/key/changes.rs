//! How a key changes: its state is told what happens, and what the state asks for is carried out.
//!
//! Invariant: effects are carried out after the lock of the keys is released, and reports to telemetry come last. So a
//! subscriber of the application runs under no lock, and what it does breaks nothing.

use std::{collections::BTreeSet, time::Duration};

use tokio::time::Instant;

use super::{
    claim::RequestNo,
    effect::{Effect, Event},
    jobs::Job,
    keys::{Entry, KeyMap, Keys},
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
        let changed = self.change(key, false, |entry, now, out| {
            entry.state.step(event, now, out)
        });
        self.carry_out(key, changed);
    }

    /// Looks at the times of a key again, because one has changed.
    pub(crate) fn look_at_times(&self, key: &Key) {
        self.update(key, |_, _, _| ());
    }

    /// Tells the keys whose times have come.
    pub(super) fn pass_time(&self) -> Look {
        let now = Instant::now();
        let due = |map: &KeyMap| -> Vec<Key> {
            let due = map.times.iter().take_while(|(at, _)| *at <= now);
            due.map(|(_, key)| key.clone()).collect()
        };
        let keys = due(&self.map.lock());
        telemetry::for_each(&keys, |key| self.step(key, Event::Timer));
        let map = self.map.lock();
        self.timers.plan(map.times.first().map(|(at, _)| *at))
    }

    /// Changes a key, and carries out what follows. `None` if nobody wants it and no lease of it is held.
    pub(super) fn update<T>(
        &self,
        key: &Key,
        change: impl FnOnce(&mut Entry, Instant, &mut Effects) -> T,
    ) -> Option<T> {
        let changed = self.change(key, false, change);
        self.carry_out(key, changed)
    }

    /// Carries out what follows from a change. Returns the outcome of the change.
    pub(super) fn carry_out<T>(&self, key: &Key, changed: Option<(T, Vec<Job>)>) -> Option<T> {
        let (outcome, jobs) = changed?;
        telemetry::for_each(jobs, |job| self.run(key, job));
        Some(outcome)
    }

    /// Changes a key. Returns what follows from the change, which the caller carries out. If `inserts`, the key need not
    /// be there before.
    pub(super) fn change<T>(
        &self,
        key: &Key,
        inserts: bool,
        change: impl FnOnce(&mut Entry, Instant, &mut Effects) -> T,
    ) -> Option<(T, Vec<Job>)> {
        let (now, suspended) = (Instant::now(), suspension::total());
        let mut map = self.map.lock();
        let map = &mut *map;
        let facts = Facts {
            next_request: RequestNo(map.next_request),
            reports_freed: self.streams.freed.is_open(),
            is_closing: self.lifecycle.is_closing(),
            may_stay: !map.contended.contains(key, now),
            entering: None,
        };
        if inserts && !map.entries.contains_key(key) {
            let state = KeyState::new(self.call_timeout(), facts, now);
            map.entries.insert(key.clone(), Box::new(Entry::new(state)));
        }
        let entry = map.entries.get_mut(key)?;
        entry.refresh(facts, now, suspended);
        let mut out = std::mem::take(&mut map.effects);
        let outcome = change(entry, now, &mut out);
        // What was changed may be a lease, or a guard.
        entry.refresh(entry.state.facts, now, suspended);
        map.next_request = entry.state.facts.next_request.0;
        let jobs = out.drain(..).filter_map(|effect| match effect {
            Effect::Contended => {
                let until = now + CONTENDED_FOR;
                map.contended.insert(key.clone(), until, now);
                None
            }
            effect => self.job(entry, effect, now),
        });
        let mut jobs: Vec<_> = jobs.collect();
        // What runs in an event comes last: it is code of the application. The order is kept otherwise.
        jobs.sort_by_key(|job| matches!(job, Job::Report(_)));
        map.effects = out;
        let is_empty = entry.state.is_empty();
        let time = entry.state.next_timer().filter(|_| !is_empty);
        let before = std::mem::replace(&mut entry.time, time);
        if is_empty {
            jobs.extend(map.entries.remove(key).map(Job::Drop));
        }
        if time != before {
            self.set_time(&mut map.times, key, (before, time));
        }
        Some((outcome, jobs))
    }

    /// Sets the next time that matters for a key.
    fn set_time(
        &self,
        times: &mut BTreeSet<(Instant, Key)>,
        key: &Key,
        (before, time): (Option<Instant>, Option<Instant>),
    ) {
        before.map(|at| times.remove(&(at, key.clone())));
        if let Some(at) = time {
            times.insert((at, key.clone()));
            self.timers.arm(at);
        }
    }
}
