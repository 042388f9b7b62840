//! `Waiters`: the tasks of this process that wait for one key, in the order in which they are served; and `Want`: what a
//! task wants of a key, and how long it waits for it.
//!
//! Invariants:
//!
//! - Each waiter is in one [role](Role): in the line, offered a guard, beside the line with a claim of its own, or waiting
//!   for a release.
//! - Who does not wait stands in no line.
//! - The line has the order in which the tasks began to ask. Who barges is before all others. Who was passed over,
//!   because it did not take what it was offered, is behind all others.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use tokio::time::Instant;

use super::cell::{Cell, WaiterNo};
use crate::{
    messages::{AcquireRequest, Turn},
    model::{Access, Held, LeaseId, Mode, WaitPolicy},
    retry,
};

/// What a task wants of a key.
#[derive(Clone, Debug)]
pub(crate) struct Want {
    /// The terms of the lease, with the id of the claim that is made if no other one serves the task.
    pub(crate) request: Arc<AcquireRequest>,
    /// For how long the lease stays with this process although no task uses it. `None` if it does not stay.
    pub(crate) stays_for: Option<Duration>,
    pub(crate) memory: FromMemory,
    /// When the task began to ask.
    pub(crate) since: Instant,
    pub(crate) wait_policy: WaitPolicy,
    /// Whether the request of a task that does not wait is sent again after an error, or without an answer.
    pub(crate) repeats: bool,
}

/// Whether a task may get its guard from memory, under a lease that this process has already; and whether the lease
/// that it gets from the store may serve others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FromMemory {
    /// Never: the task needs the document of the key.
    Never,
    /// Only under a lease that stays: the caller has chosen the name of the owner, which another handle may bear too, or
    /// the lease has a maximum hold of its own.
    IfItStays,
    Always,
}

/// How long a waiter may leave an offer untaken before others are served. Its future is not polled any more.
pub(super) const UNCLAIMED: Duration = Duration::from_millis(500);

pub(super) struct Waiter {
    pub(super) cell: Arc<Cell>,
    pub(super) want: Want,
    pub(super) role: Role,
    /// How many waiting processes came first when a request for this waiter was first refused.
    pub(super) ahead: Option<usize>,
    rank: Rank,
    /// Whether a claim has the lease id of what it wants.
    has_asked: bool,
}

/// What a waiter waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// Its turn in the line.
    InLine,
    /// Its task, which has been offered a guard under this claim since this instant.
    Offered(LeaseId, Instant),
    /// The answer to a claim of its own.
    Beside(LeaseId),
    /// The release of this claim. After that it tries again.
    AfterRelease(LeaseId),
}

/// Where a waiter stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    Barging(Instant),
    InOrder(Instant),
    PassedOver(Instant),
}

impl Rank {
    fn of(want: &Want) -> Self {
        if want.is_barging() {
            Self::Barging(want.since)
        } else {
            Self::InOrder(want.since)
        }
    }
}

impl Want {
    pub(super) fn is_barging(&self) -> bool {
        self.request.turn == Turn::Barging
    }

    /// Whether the task waits for the key. Otherwise the first answer counts.
    pub(crate) fn waits(&self) -> bool {
        let none = [WaitPolicy::None, WaitPolicy::For(Duration::ZERO)];
        !none.contains(&self.wait_policy)
    }

    /// Whether the time of the task is over.
    pub(super) fn is_over(&self, now: Instant) -> bool {
        !self.waits() || self.until().is_some_and(|until| until <= now)
    }

    /// When the time of the task is over.
    pub(super) fn until(&self) -> Option<Instant> {
        match self.wait_policy {
            WaitPolicy::For(time) if self.waits() => Some(retry::wait_end(self.since, time)),
            _ => None,
        }
    }

    /// Whether a lease with these terms is what the task wants of the store.
    pub(super) fn has_terms_of(&self, other: &AcquireRequest) -> bool {
        let mine = &self.request;
        (&mine.owner, mine.access, &mine.own_leases, mine.ttl)
            == (&other.owner, other.access, &other.own_leases, other.ttl)
            && (&mine.note, mine.tick) == (&other.note, other.tick)
    }

    /// Whether the owner of the task has the key, by this answer, so that it comes before all who wait.
    pub(super) fn has_own_holder(&self, held: &Held) -> bool {
        let owner = &self.request.owner;
        self.request.is_reentrant() && held.holders().iter().any(|holder| holder.owner == *owner)
    }

    /// Whether a task of this process that has the key keeps this one from it.
    pub(super) fn conflicts_with(&self, held: Mode) -> bool {
        match self.request.access {
            Access::Exclusive => true,
            Access::Shared => held != Mode::Shared,
            Access::Permits(_) => held != Mode::Permits,
        }
    }
}

#[derive(Default)]
pub(super) struct Waiters {
    all: BTreeMap<WaiterNo, Box<Waiter>>,
    line: BTreeSet<(Rank, WaiterNo)>,
    /// When the times of those are over that are not offered a guard.
    ends: BTreeSet<(Instant, WaiterNo)>,
    /// Since when guards are offered.
    offers: BTreeSet<(Instant, WaiterNo)>,
}

impl Waiters {
    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    pub(super) fn get(&self, no: WaiterNo) -> Option<&Waiter> {
        self.all.get(&no).map(Box::as_ref)
    }

    pub(super) fn get_mut(&mut self, no: WaiterNo) -> Option<&mut Waiter> {
        self.all.get_mut(&no).map(Box::as_mut)
    }

    pub(super) fn numbers(&self) -> Vec<WaiterNo> {
        self.all.keys().copied().collect()
    }

    /// The first in the line.
    pub(super) fn first(&self) -> Option<(WaiterNo, &Waiter)> {
        self.in_line().next()
    }

    /// Those in the line, the first one first.
    pub(super) fn in_line(&self) -> impl Iterator<Item = (WaiterNo, &Waiter)> {
        let line = self.line.iter();
        line.filter_map(|(_, no)| Some((*no, self.get(*no)?)))
    }

    pub(super) fn has_line(&self) -> bool {
        !self.line.is_empty()
    }

    /// Whether somebody stands in the line who was not passed over.
    pub(super) fn has_patient_line(&self) -> bool {
        let first = self.line.first();
        first.is_some_and(|(rank, _)| !matches!(rank, Rank::PassedOver(_)))
    }

    /// Those that have been offered a guard under this claim.
    pub(super) fn offered(&self, claim: LeaseId) -> impl Iterator<Item = (WaiterNo, &Waiter)> {
        let offers = self.offers.iter();
        let offered = offers.filter_map(|(_, no)| Some((*no, self.get(*no)?)));
        offered.filter(move |(_, it)| matches!(it.role, Role::Offered(of, _) if of == claim))
    }

    /// Those that wait for the release of this claim, and what they want.
    pub(super) fn after_release_of(&self, claim: LeaseId) -> Vec<(WaiterNo, Want)> {
        let all = self.all.iter();
        let all = all.filter(|(_, it)| it.role == Role::AfterRelease(claim));
        all.map(|(no, it)| (*no, it.want.clone())).collect()
    }

    pub(super) fn push(&mut self, cell: Arc<Cell>, want: Want, role: Role) {
        let (no, rank) = (cell.no, Rank::of(&want));
        let waiter = Box::new(Waiter {
            cell,
            want,
            role,
            ahead: None,
            rank,
            has_asked: false,
        });
        self.insert(no, waiter);
    }

    /// The terms of a new claim for a waiter. No other claim has its lease id.
    pub(super) fn take_request(&mut self, no: WaiterNo, want: &Want) -> Arc<AcquireRequest> {
        let mut request = want.request.clone();
        let has_asked = self.all.get_mut(&no).map(|it| &mut it.has_asked);
        if has_asked.is_none_or(|has_asked| std::mem::replace(has_asked, true)) {
            Arc::make_mut(&mut request).lease = LeaseId::random();
        }
        request
    }

    pub(super) fn cell(&self, no: WaiterNo) -> Option<Arc<Cell>> {
        Some(self.get(no)?.cell.clone())
    }

    /// Gives a waiter another role.
    pub(super) fn set_role(&mut self, no: WaiterNo, role: Role) {
        self.change(no, |waiter| waiter.role = role);
    }

    /// Puts a waiter behind all others, because it does not take what it is offered.
    pub(super) fn pass_over(&mut self, no: WaiterNo, now: Instant) {
        self.change(no, |waiter| {
            (waiter.role, waiter.rank) = (Role::InLine, Rank::PassedOver(now));
        });
    }

    /// Puts a waiter that was passed over where it stood before, because its future is polled again.
    pub(super) fn take_back(&mut self, no: WaiterNo) {
        self.change(no, |waiter| waiter.rank = Rank::of(&waiter.want));
    }

    fn change(&mut self, no: WaiterNo, change: impl FnOnce(&mut Waiter)) {
        if let Some(mut waiter) = self.remove(no) {
            change(&mut waiter);
            self.insert(no, waiter);
        }
    }

    pub(super) fn remove(&mut self, no: WaiterNo) -> Option<Box<Waiter>> {
        let waiter = self.all.remove(&no)?;
        self.line.remove(&(waiter.rank, no));
        if let Role::Offered(_, at) = waiter.role {
            self.offers.remove(&(at, no));
        }
        if let Some(until) = waiter.want.until() {
            self.ends.remove(&(until, no));
        }
        Some(waiter)
    }

    fn insert(&mut self, no: WaiterNo, waiter: Box<Waiter>) {
        if waiter.role == Role::InLine {
            self.line.insert((waiter.rank, no));
        }
        if let Role::Offered(_, at) = waiter.role {
            // What is offered is the waiter's, whatever the time.
            self.offers.insert((at, no));
        } else if let Some(until) = waiter.want.until() {
            self.ends.insert((until, no));
        }
        self.all.insert(no, waiter);
    }

    /// Those whose time is over.
    pub(super) fn over(&self, now: Instant) -> Vec<WaiterNo> {
        let over = self.ends.iter().take_while(|(at, _)| *at <= now);
        over.map(|(_, no)| *no).collect()
    }

    /// Those that have left an offer untaken for too long.
    pub(super) fn silent(&self, now: Instant) -> Vec<WaiterNo> {
        let offers = self.offers.iter();
        let silent = offers.take_while(|(at, _)| *at + UNCLAIMED <= now);
        silent.map(|(_, no)| *no).collect()
    }

    /// When the time of the next waiter is over.
    pub(super) fn next_end(&self) -> Option<Instant> {
        self.ends.first().map(|(at, _)| *at)
    }

    /// When the first offer has been untaken for too long.
    pub(super) fn next_silent(&self) -> Option<Instant> {
        self.offers.first().map(|(at, _)| *at + UNCLAIMED)
    }
}
