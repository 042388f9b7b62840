//! How a key changes: its state is told what happens, and what the state asks for is carried out.
//!
//! Invariant: effects are carried out after the lock of the keys is released, and reports to telemetry come last. So a
//! subscriber of the application runs under no lock, and what it does breaks nothing.

use std::time::Duration;

use tokio::time::Instant;

use super::{
    cell::Refusal,
    effect::{Answer, Effect, Effects, Event, Report},
    keys::Keys,
    place::PlaceNews,
    state::{Facts, KeyState},
};
use crate::{
    model::{Error, Held, Key, LossReason},
    retry::OVERDUE,
    runtime::{self, suspension, timers::Look},
    telemetry::{self, Waiting},
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
        let mut map = self.map.lock();
        let map = &mut *map;
        // The steps of a key get later and later times.
        let (now, suspended) = (Instant::now(), suspension::total());
        let facts = Facts {
            reports_freed: self.streams.freed.is_open(),
            is_closing: self.lifecycle.is_closing(),
            may_stay: !map.contended.contains(key, now),
            is_contended: false,
            entering: None,
        };
        if inserts && !map.states.contains_key(key) {
            let at_work = self.lifecycle.at_work.clone();
            let state = KeyState::new(self.call_timeout(), at_work, facts, now);
            map.states.insert(key.clone(), Box::new(state));
        }
        let state = map.states.get_mut(key)?;
        state.refresh(facts, now, suspended);
        let mut out = Effects::new();
        let outcome = change(state, now, &mut out);
        // What was changed may be a lease, or a guard.
        state.refresh(state.facts, now, suspended);
        if state.facts.is_contended {
            map.contended.insert(key.clone(), now + CONTENDED_FOR, now);
        }
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

    /// Carries out an effect.
    pub(super) fn run(&self, key: &Key, effect: Effect) {
        match effect {
            Effect::Send(call, message, by) => {
                match by {
                    Some(cell) => cell.set_call(call.clone()),
                    None => self.leave(&call),
                }
                self.send(&call, message);
            }
            Effect::Withdrawn(request, withdrawn) => {
                self.step(key, Event::Withdrawn(request));
                drop(withdrawn);
            }
            Effect::Spawn(call) => self.leave(&call),
            // Its caller polls it on another runtime.
            Effect::SpawnRelease(_) if self.lifecycle.has_runtime_ended() => {}
            Effect::SpawnRelease(call) => call.leave(),
            Effect::Overdue(request, limit) => {
                let error = self.timed_out(limit);
                let answer = Answer::Overdue(error.clone());
                self.step(key, Event::Answered(request, answer));
                telemetry::store_failed("acquire", None, &error);
            }
            Effect::Keep(lease) => {
                self.renewals.keep(&lease);
                self.look_after();
                self.bound_stays(lease.id());
            }
            Effect::Tell(cell, news) => cell.tell(news),
            Effect::GiveBack(lease) => self.abandon(&lease),
            Effect::Detach(lease) => self.detach(&lease),
            Effect::Settle(claim, maybe_in_flight) => self.settle(&claim, maybe_in_flight),
            Effect::LeavePlace(claim) => self.leave_place(key, claim),
            Effect::Listen => self.listen(),
            Effect::Report(report) => self.report(key, report),
            Effect::Drop(state) => drop(state),
        }
    }

    fn report(&self, key: &Key, report: Report) {
        match report {
            Report::Lost(guards) => telemetry::for_each(guards, |guard| {
                guard.lose(guard.loss(Instant::now()).unwrap_or(LossReason::Expired));
            }),
            Report::Ended(lease, ended) => lease.report_end(ended),
            Report::Waits(cell, ahead) => cell.begins_to_wait(|| Waiting::begins(key, ahead)),
            Report::Unanswered(claim) => {
                telemetry::store_failed("acquire", Some((key, claim)), &self.timed_out(OVERDUE));
            }
            Report::Place(PlaceNews::Taken { ahead }) => telemetry::place_taken(key, ahead),
            Report::Place(PlaceNews::NoRoom) => telemetry::no_place(key),
            Report::Turn(ended) => {
                telemetry::turn_came(key, ended.ahead, ended.waited);
                if let Some((ahead, waited)) = ended.passed {
                    telemetry::places_passed(key, ahead, waited);
                }
            }
            Report::Stays(lease) => telemetry::stays(lease.fields()),
            Report::StayEnded(lease, why, at_once) => {
                telemetry::stay_ended(lease.fields(), why, at_once);
            }
        }
    }

    /// What a task is told that is refused.
    pub(crate) fn end_reason(&self, why: Refusal) -> Result<Held, Error> {
        match why {
            Refusal::Held(held) => Ok(held),
            Refusal::HeldHere(lease) => Ok(lease.refusal(Instant::now())),
            Refusal::Failed(error) => Err(error),
            Refusal::TimedOut => Err(self.timed_out(self.call_timeout())),
            Refusal::Closed => Err(self.lifecycle.why_closed()),
        }
    }

    pub(super) fn timed_out(&self, limit: Duration) -> Error {
        runtime::timed_out(self.store.name(), "acquire", limit)
    }
}
