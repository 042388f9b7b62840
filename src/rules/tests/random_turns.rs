//! Random processes that wait for a key, hold it, give up and die. The tests check that no process overtakes another,
//! that two conflicting processes never hold the key at once, and that every process that goes on asking is granted it.

use std::{mem, num::NonZeroU16, time::Duration};

use fastrand::Rng;

use super::{acquire, at};
use crate::{
    messages::{AcquireAnswer, AcquireRequest, ReleaseRequest, Turn},
    model::{Access, Fence, Held, Key, LeaseId, LockRecord, Mode, Permits},
    rules::{Write, leave, release, turn::MAX_BIND_TIME},
};

/// The number of runs. The number of a run determines everything that happens in it.
const RUNS: u64 = 3_000;
/// The ttl of a lease whose process has died.
const TTL: Duration = Duration::from_secs(1);
/// How many permits the key has.
const CAPACITY: i64 = 3;
/// A waiting process asks again after at most this many milliseconds.
const ASKS_EVERY: i64 = 1_000;
/// A grant takes at most this many fences.
const FENCES: u16 = 500;
/// By this time all processes have had the key.
const END: i64 = 10 * 60 * 1_000;

/// A deliberate error in the rules, which a run has to find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wrong {
    Nothing,
    /// No place is written.
    ForgetsPlaces,
    /// Readers come before waiting writers.
    ReadersPass,
    /// The places of dead processes count, and a free key is kept for them, for ever.
    TheDeadBlock,
}

enum State {
    Idle,
    /// Since this time.
    Waits(i64, AcquireRequest),
    Holds(Vec<AcquireRequest>),
    Done,
    Dead,
}

struct Process {
    waiter: LeaseId,
    state: State,
    /// When it does something next.
    next: i64,
    /// How many more times it wants the key.
    wishes: u32,
}

struct Run {
    wrong: Wrong,
    rng: Rng,
    now: i64,
    record: Option<LockRecord>,
    processes: Vec<Process>,
    /// The processes that wait, in the order of their first refusals, and what they ask for.
    queue: Vec<(usize, Access)>,
    /// How long a place counts.
    counts_for: Duration,
    /// How many more processes may die, and in one of how many steps one does.
    deaths: usize,
    dies: u8,
    /// When the last lease was released.
    released: i64,
}

type Checked = Result<(), String>;

fn exclude_each_other(one: Access, other: Access) -> bool {
    use Access::{Permits, Shared};
    let beside = matches!((one, other), (Shared, Shared) | (Permits(_), Permits(_)));
    !beside
}

fn permits(access: Access) -> i64 {
    match access {
        Access::Permits(permits) => permits.n(),
        Access::Exclusive | Access::Shared => 0,
    }
}

impl Run {
    fn new(number: u64, wrong: Wrong) -> Self {
        let mut rng = Rng::with_seed(number);
        let processes: Vec<_> = (0..rng.usize(2..9))
            .map(|_| Process {
                waiter: LeaseId::random(),
                state: State::Idle,
                next: rng.i64(0..500),
                wishes: rng.u32(1..6),
            })
            .collect();
        Self {
            wrong,
            now: 0,
            record: None,
            queue: Vec::new(),
            // A short time also ends while the key is held.
            counts_for: Duration::from_secs(if rng.bool() { 60 } else { 2 }),
            deaths: rng.usize(..processes.len()),
            dies: if rng.bool() { 40 } else { 6 },
            released: 0,
            processes,
            rng,
        }
    }

    fn runs_to_its_end(mut self) -> Checked {
        loop {
            let goes_on = |process: &&Process| !matches!(process.state, State::Done | State::Dead);
            let next = self.processes.iter().filter(goes_on);
            let Some(now) = next.map(|process| process.next).min() else {
                return Ok(());
            };
            if now > END {
                return Err("somebody waits for ever".to_owned());
            }
            self.now = now;
            let is_next = |process: &Process| goes_on(&process) && process.next == now;
            let number = self.processes.iter().position(is_next).unwrap();
            self.step(number)?;
            self.holders_stand_beside_each_other()?;
        }
    }

    fn step(&mut self, number: usize) -> Checked {
        let state = mem::replace(&mut self.processes[number].state, State::Idle);
        if self.deaths > 0 && self.rng.u8(..self.dies) == 0 {
            self.deaths -= 1;
            self.processes[number].state = State::Dead;
            return Ok(());
        }
        match state {
            State::Idle => {
                let request = self.wish(number);
                self.asks(number, self.now, request)
            }
            State::Waits(..) if self.rng.u8(..40) == 0 => {
                let waiter = self.processes[number].waiter;
                let left = leave(self.record.as_ref(), waiter, at(self.now));
                self.write(left.write);
                self.queue.retain(|(other, _)| *other != number);
                Ok(())
            }
            State::Waits(since, request) => self.asks(number, since, request),
            State::Holds(leases) => self.holds(number, leases),
            State::Done | State::Dead => Ok(()),
        }
    }

    fn wish(&mut self, number: usize) -> AcquireRequest {
        let key = Key::new("k").unwrap();
        let owner = format!("process {number}").into();
        let mut request = AcquireRequest::exclusive(key, LeaseId::random(), owner, TTL);
        if self.rng.bool() {
            request = request.reentrant();
        }
        request.fences = NonZeroU16::MIN.saturating_add(self.rng.u16(..FENCES));
        request.access = match self.rng.u8(..4) {
            0 => Access::Exclusive,
            1 | 2 => Access::Shared,
            _ => Access::Permits(Permits::new(self.rng.i64(1..=CAPACITY), CAPACITY).unwrap()),
        };
        request.turn(match self.rng.u8(..10) {
            0 => Turn::Behind,
            1 => Turn::Barging,
            _ => Turn::in_turn(self.processes[number].waiter, self.counts_for),
        })
    }

    fn asks(&mut self, number: usize, since: i64, request: AcquireRequest) -> Checked {
        self.let_the_dead_block();
        let mut asked = request.clone();
        if self.wrong == Wrong::ReadersPass && request.access == Access::Shared {
            asked.turn = Turn::Barging;
        }
        let decision = acquire(self.record.as_ref(), &asked, at(self.now));
        match decision.answer {
            AcquireAnswer::Granted(grant) => {
                self.may_be_granted(number, since, &request)?;
                self.takes_its_fences(number, &request, grant.fence)?;
                let bound = self.bound();
                self.write(decision.write);
                if !bound {
                    self.forget_the_passed();
                }
                self.queue.retain(|(other, _)| *other != number);
                self.processes[number].next = self.now + self.rng.i64(1..400);
                self.processes[number].state = State::Holds(vec![request]);
            }
            AcquireAnswer::Held(held) => {
                let is_free = held.holders().is_empty();
                if is_free == held.binds_for().is_zero() || held.binds_for() > MAX_BIND_TIME {
                    return Err(format!("{number} is told to ask again with {held:?}"));
                }
                if request.turn.waiter().is_some() {
                    self.write(decision.write);
                    self.waits(number, since, request, &held);
                } else if decision.write == Write::Keep {
                    self.is_done_with_a_wish(number);
                } else {
                    return Err(format!("{number} does not wait, and wrote"));
                }
            }
            AcquireAnswer::Done(done) => {
                return Err(format!("{number} asked for no tick, and {done}"));
            }
        }
        self.forget_the_dead();
        Ok(())
    }

    /// The fences of a grant follow each other, and the first of them is above all earlier ones.
    fn takes_its_fences(&self, number: usize, request: &AcquireRequest, fence: Fence) -> Checked {
        // Without a document, no fence is too early.
        let earlier = self.record.as_ref().map_or(-1, |it| it.fence.get());
        let first = fence.get() - i64::from(request.fences.get()) + 1;
        if first != (self.now * 1_024).max(earlier + 1) {
            let fences = request.fences;
            return Err(format!(
                "{number} took {fences} fences up to {fence} after {earlier}"
            ));
        }
        Ok(())
    }

    fn waits(&mut self, number: usize, since: i64, request: AcquireRequest, held: &Held) {
        if self.queue.iter().all(|(other, _)| *other != number) {
            self.queue.push((number, request.access));
        }
        let pause = self.rng.i64(1..=ASKS_EVERY);
        let binds_for = i64::try_from(held.binds_for().as_millis()).unwrap();
        let pause = if binds_for > 0 {
            pause.min(binds_for)
        } else {
            pause
        };
        self.processes[number].next = self.now + pause;
        self.processes[number].state = State::Waits(since, request);
    }

    /// Enters once more, or releases.
    fn holds(&mut self, number: usize, mut leases: Vec<AcquireRequest>) -> Checked {
        let first = &leases[0];
        let enters = first.is_reentrant()
            && permits(first.access) == 0
            && leases.len() == 1
            && self.rng.bool();
        if enters {
            let mut again = first.clone().turn(Turn::Behind);
            again.lease = LeaseId::random();
            let decision = acquire(self.record.as_ref(), &again, at(self.now));
            if !matches!(decision.answer, AcquireAnswer::Granted(_)) {
                return Err(format!("{number} waits for itself: {decision:?}"));
            }
            self.write(decision.write);
            leases.push(again);
            self.processes[number].next = self.now + self.rng.i64(1..400);
            self.processes[number].state = State::Holds(leases);
            return Ok(());
        }
        for lease in leases {
            let request = ReleaseRequest::new(lease.key, lease.lease);
            let released = release(self.record.as_ref(), &request, at(self.now));
            self.write(released.write);
            self.released = self.now;
        }
        self.is_done_with_a_wish(number);
        Ok(())
    }

    fn is_done_with_a_wish(&mut self, number: usize) {
        let process = &mut self.processes[number];
        process.wishes -= 1;
        process.next = self.now + self.rng.i64(1..1_500);
        process.state = if process.wishes == 0 {
            State::Done
        } else {
            State::Idle
        };
    }

    fn let_the_dead_block(&mut self) {
        let (Wrong::TheDeadBlock, Some(record)) = (self.wrong, &mut self.record) else {
            return;
        };
        let now = at(self.now);
        for place in &mut record.waiters {
            place.until = now + self.counts_for;
        }
        if record.live_holders(now).next().is_none() {
            record.expires_at = now;
        }
    }

    fn write(&mut self, write: Write) {
        match write {
            Write::Keep => {}
            Write::Put(mut record) => {
                if self.wrong == Wrong::ForgetsPlaces {
                    record.waiters.clear();
                }
                self.record = Some(record);
            }
            Write::Remove => self.record = None,
        }
    }

    /// Whether the places keep the key, if it is free.
    fn bound(&self) -> bool {
        self.record.as_ref().is_none_or(|record| {
            let is_held = record.live_holders(at(self.now)).next().is_some();
            is_held || at(self.now) < record.expires_at + MAX_BIND_TIME
        })
    }

    /// Processes that did not take a free key in time lose their places to a grant, and come last again.
    fn forget_the_passed(&mut self) {
        let places = self.record.iter().flat_map(|record| &record.waiters);
        let places: Vec<_> = places.map(|place| place.waiter).collect();
        let processes = &self.processes;
        self.queue
            .retain(|(number, _)| places.contains(&processes[*number].waiter));
    }

    /// Processes that have died stay in the queue until their places end or are passed.
    fn forget_the_dead(&mut self) {
        let places = self
            .record
            .iter()
            .flat_map(|it| it.live_places(at(self.now)));
        let places: Vec<_> = places.map(|place| place.waiter).collect();
        let processes = &self.processes;
        self.queue.retain(|(number, _)| {
            let process = &processes[*number];
            !matches!(process.state, State::Dead) || places.contains(&process.waiter)
        });
    }

    /// No process that goes on asking is overtaken, and no process waits long for dead ones.
    fn may_be_granted(&mut self, number: usize, since: i64, request: &AcquireRequest) -> Checked {
        let Some(record) = self.record.clone() else {
            return Ok(());
        };
        let holders: Vec<_> = record.live_holders(at(self.now)).collect();
        let is_alive = |number: usize| !matches!(self.processes[number].state, State::Dead);
        let free_since = record.expires_at.max(at(self.released));
        let waited_then = |process: &Process| matches!(process.state, State::Waits(since, _) if at(since) <= free_since);
        let waited = at(since) <= free_since || self.processes.iter().any(waited_then);
        if holders.is_empty() && waited && at(self.now) > free_since + MAX_BIND_TIME {
            return Err(format!("{number} is the first after too long a time"));
        }
        if request.turn == Turn::Barging {
            return Ok(());
        }
        let place = self.queue.iter().position(|(other, _)| *other == number);
        let ahead = &self.queue[..place.unwrap_or(self.queue.len())];
        let taken = holders.iter().filter(|it| it.mode == Mode::Permits);
        let taken: i64 = taken.map(|holder| holder.permits).sum();
        let alive = ahead.iter().filter(|(other, _)| is_alive(*other));
        let wanted: i64 = alive.map(|(_, access)| permits(*access)).sum();
        let is_too_much = taken + wanted + permits(request.access) > CAPACITY;
        for (other, access) in ahead {
            let both_permits = permits(*access) > 0 && permits(request.access) > 0;
            let overtakes =
                exclude_each_other(*access, request.access) || both_permits && is_too_much;
            if !overtakes || !is_alive(*other) {
                continue;
            }
            let order_is_kept = if holders.is_empty() {
                // If a reader died before the last one released, the document has the time of its expiry.
                let is_known = free_since == record.expires_at;
                // From this time on the places keep the key from nobody.
                let is_over = at(self.now) >= free_since + MAX_BIND_TIME;
                is_known && !is_over
            } else {
                true
            };
            if order_is_kept {
                return Err(format!("{number} overtakes {other}: {ahead:?}"));
            }
            // A process that was passed comes last again.
            let passed = *other;
            self.queue.retain(|(other, _)| *other != passed);
            return self.may_be_granted(number, since, request);
        }
        Ok(())
    }

    fn holders_stand_beside_each_other(&self) -> Checked {
        let holders = self.record.iter();
        let holders = holders.flat_map(|record| record.live_holders(at(self.now)));
        let holders: Vec<_> = holders.collect();
        for (index, one) in holders.iter().enumerate() {
            for other in &holders[..index] {
                let beside = one.mode == other.mode && one.mode != Mode::Exclusive;
                if !beside && one.owner != other.owner {
                    return Err(format!("{one:?} and {other:?} have the key"));
                }
            }
        }
        let permits = holders.iter().filter(|it| it.mode == Mode::Permits);
        let taken: i64 = permits.map(|holder| holder.permits).sum();
        if taken > CAPACITY {
            return Err(format!("{taken} of {CAPACITY} permits are taken"));
        }
        Ok(())
    }
}

#[test]
fn whoever_goes_on_asking_is_granted_the_key_in_turn() {
    for number in 0..RUNS {
        if let Err(why) = Run::new(number, Wrong::Nothing).runs_to_its_end() {
            panic!("run {number}: {why}");
        }
    }
}

#[test]
fn a_wrong_rule_is_found() {
    for wrong in [
        Wrong::ForgetsPlaces,
        Wrong::ReadersPass,
        Wrong::TheDeadBlock,
    ] {
        let is_found = |number| Run::new(number, wrong).runs_to_its_end().is_err();
        assert!((0..RUNS).any(is_found), "{wrong:?}");
    }
}
