//! Which leases are renewed when, and which go in one batch: pure, times come in as arguments.
//!
//! Invariants:
//!
//! - A lease is in one state: planned for later, ready to be sent, sent in a batch, to be sent once more, or not to be
//!   sent any more, because its maximum hold ends with its deadline.
//! - A lease is due at a third of its ttl. Leases that will be due soon go along as far as the batch has room. So
//!   leases that were acquired at different moments come to be renewed together, and cost as few commands as those
//!   that were acquired at once. Where one batch is not enough, the batches are sent at different times, so that they
//!   do not come to the store all at once.
//! - Of the leases that are ready, the one with the nearest deadline goes first. One whose deadline will have
//!   passed before an answer can come goes last: a store that cannot renew all leases in time renews as many as it
//!   can, instead of each too late.
//! - Besides repeats, no more batches are under way than the [pace] of the store allows, except for one that finds out
//!   whether a silent store answers again. So a store that is slow, or cannot be reached, is not sent more and more.
//! - A batch without an answer after a sixth of the ttl is split, and each of its parts is sent once more, in a
//!   place of its own kind: a lease that hangs in the server, because a transaction has its document, is alone after
//!   three splits. The unanswered batch still counts as under way, for a ttl at the most, unless two that were sent
//!   later have ended: then it is the batch that hangs, and not the store that is slow.

mod due;
mod outcomes;
#[cfg(test)]
mod overload_tests;
mod pace;
#[cfg(test)]
mod tests;
mod under_way;

use std::{
    collections::{BTreeSet, HashMap, VecDeque},
    time::Duration,
};

use tokio::time::Instant;

pub(crate) use self::under_way::BatchId;
use self::{
    pace::Pace,
    under_way::{Batches, has_place},
};
use crate::lease_state::{LeaseNumber, timing::PERIOD};

/// The part of the ttl within which an answer is fast enough, and by which a renewal may wait for a place
/// before it is late.
const SLACK: u32 = 12;

/// The leases that are kept alive. `T` is what the caller gets back for each.
#[derive(Debug)]
pub(crate) struct Schedule<T> {
    leases: HashMap<LeaseNumber, Entry<T>>,
    /// The leases that are renewed later, by when they are due; and those that are not renewed any more, by their
    /// deadline, at which their loss is told.
    planned: BTreeSet<(Instant, LeaseNumber)>,
    /// The leases that are due and wait for a place, by their deadline.
    ready: BTreeSet<(Instant, LeaseNumber)>,
    /// The parts of batches without an answer that are to be sent once more.
    repeats: VecDeque<Vec<LeaseNumber>>,
    under_way: Batches,
    last_batch: BatchId,
    pace: Pace,
}

#[derive(Debug)]
struct Entry<T> {
    lease: T,
    ttl: Duration,
    due: Instant,
    /// Until when the lease has to be renewed.
    deadline: Instant,
    state: State,
    /// How many renewals of the lease have failed in a row.
    errors: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Planned,
    Ready,
    Sent(BatchId),
    Repeat,
    /// The lease is planned for its deadline, and is not renewed before.
    Final,
}

/// The work that is due now.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Due<T> {
    /// The batches to send.
    pub(crate) batches: Vec<Batch<T>>,
    /// The leases whose last renewal was not answered in time.
    pub(crate) overdue: Vec<T>,
    /// The leases whose deadline has passed; they are not in the schedule any more.
    pub(crate) expired: Vec<T>,
}

/// Leases that are renewed together.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Batch<T> {
    pub(crate) id: BatchId,
    pub(crate) leases: Vec<(LeaseNumber, T)>,
    /// How much later than due the lease goes that was due first.
    pub(crate) lag: Duration,
}

/// The outcome of a renewal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The lease is live until this deadline.
    Renewed(Instant),
    /// The lease is live until this deadline, which no renewal can put off.
    Final(Instant),
    /// The renewal may be tried again.
    Failed,
    /// The lease is lost.
    Lost,
}

/// How the schedule stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Load {
    /// How many leases are kept.
    pub(crate) kept: usize,
    /// How many of them are due and wait for a place.
    pub(crate) waiting: usize,
    /// How many have less than a third of their ttl left, without those that are not renewed any more.
    pub(crate) at_risk: usize,
}

impl<T: Clone> Schedule<T> {
    pub(crate) fn new() -> Self {
        Self {
            leases: HashMap::new(),
            planned: BTreeSet::new(),
            ready: BTreeSet::new(),
            repeats: VecDeque::new(),
            under_way: Batches::new(),
            last_batch: BatchId::default(),
            pace: Pace::new(),
        }
    }

    /// Takes in a lease, or replaces it. `due` is when it is renewed first, `deadline` until when it has to be renewed.
    /// A lease that is due at its deadline is not renewed any more.
    pub(crate) fn insert(
        &mut self,
        id: LeaseNumber,
        lease: T,
        ttl: Duration,
        due: Instant,
        deadline: Instant,
    ) {
        self.remove(id);
        let entry = Entry {
            lease,
            ttl,
            due,
            deadline,
            state: if due < deadline {
                State::Planned
            } else {
                State::Final
            },
            errors: 0,
        };
        self.planned.insert((due, id));
        self.leases.insert(id, entry);
    }

    /// Forgets a lease; `None` if it is not in the schedule.
    pub(crate) fn remove(&mut self, id: LeaseNumber) -> Option<T> {
        let entry = self.leases.remove(&id)?;
        self.planned.remove(&(entry.due, id));
        self.ready.remove(&(entry.deadline, id));
        // A map does not shrink by itself, so its memory is freed here after most leases are gone.
        if self.leases.len() < self.leases.capacity() / 8 {
            self.leases.shrink_to(self.leases.len() * 2);
        }
        Some(entry.lease)
    }

    pub(crate) fn leases(&self) -> impl Iterator<Item = &T> {
        self.leases.values().map(|entry| &entry.lease)
    }

    /// When to [take what is due](Self::take_due) next, unless an answer comes before; `None` if nothing will be due.
    pub(crate) fn next(&self, now: Instant) -> Option<Instant> {
        let ready = !self.ready.is_empty() && self.has_place(false);
        let repeats = !self.repeats.is_empty() && self.has_place(true);
        if ready || repeats {
            return Some(now);
        }
        let batches = self.under_way.values();
        let changes = batches.map(|batch| {
            if batch.is_overdue {
                batch.forgotten_at()
            } else {
                batch.overdue_at()
            }
        });
        let late = self.late_at().filter(|at| *at > now);
        [
            self.planned.first().map(|(due, _)| *due),
            self.ready.first().map(|(deadline, _)| *deadline),
            changes.min(),
            late,
        ]
        .into_iter()
        .flatten()
        .min()
    }

    /// Whether renewals that are due have waited so long for a place that the store, or this process, is taken to be
    /// overloaded.
    pub(crate) fn is_late(&self, now: Instant) -> bool {
        self.late_at().is_some_and(|at| at <= now)
    }

    /// How many leases are kept.
    pub(crate) fn len(&self) -> usize {
        self.leases.len()
    }

    /// For how long the lease that is sent next has been due; zero if none waits for a place.
    pub(crate) fn lag(&self, now: Instant) -> Duration {
        let first = self.ready.first().and_then(|(_, id)| self.leases.get(id));
        first.map_or(Duration::ZERO, |entry| {
            now.saturating_duration_since(entry.due)
        })
    }

    /// How the schedule stands. This looks at every lease.
    pub(crate) fn load(&self, now: Instant) -> Load {
        let at_risk = |entry: &&Entry<T>| entry.is_at_risk(now);
        Load {
            kept: self.leases.len(),
            waiting: self.ready.len(),
            at_risk: self.leases.values().filter(at_risk).count(),
        }
    }

    /// The leases that are due, wait for a place, and have less than a third of their ttl left.
    pub(crate) fn at_risk_and_waiting(&self, now: Instant) -> impl Iterator<Item = &T> {
        let waiting = self.ready.iter().filter_map(|(_, id)| self.leases.get(id));
        waiting
            .filter(move |entry| entry.is_at_risk(now))
            .map(|entry| &entry.lease)
    }

    fn late_at(&self) -> Option<Instant> {
        let (_, id) = self.ready.first()?;
        let entry = self.leases.get(id)?;
        Some(entry.due + entry.ttl / SLACK)
    }

    fn has_place(&self, is_repeat: bool) -> bool {
        has_place(&self.under_way, is_repeat, self.pace.under_way())
    }

    fn set_state(&mut self, id: LeaseNumber, state: State, due: Instant) {
        let Some(entry) = self.leases.get_mut(&id) else {
            return;
        };
        match entry.state {
            State::Planned | State::Final => drop(self.planned.remove(&(entry.due, id))),
            State::Ready => drop(self.ready.remove(&(entry.deadline, id))),
            State::Sent(_) | State::Repeat => {}
        }
        (entry.state, entry.due) = (state, due);
        match state {
            State::Planned | State::Final => drop(self.planned.insert((due, id))),
            State::Ready => drop(self.ready.insert((entry.deadline, id))),
            State::Sent(_) | State::Repeat => {}
        }
    }
}

impl<T> Entry<T> {
    fn is_at_risk(&self, now: Instant) -> bool {
        self.state != State::Final
            && self.deadline.saturating_duration_since(now) < self.ttl / PERIOD
    }
}
