//! `KeyState`: the state of one key in this process. No clock, no lock, no future: times come in. Ids and the jitter of
//! pauses come from `random`.
//!
//! `CONTRIBUTING.md` has the states of a claim on a page. `answers.rs` has what the answers of the store change,
//! `serving.rs` which task gets a guard from memory, `asking.rs` when the store is asked, and `settling.rs` how a claim
//! ends that nobody wants.
//!
//! Invariants:
//!
//! - A waiter is offered a guard, has a claim that asks for it, or stands behind others.
//! - At most one claim serves further tasks, and at most one asks for the line.
//! - An answer is applied to the request that it answers.
//! - The state is whole before any effect is carried out.

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;
use tokio_util::task::TaskTracker;

use super::{
    call::Call,
    cell::WaiterNo,
    claim::{Claim, Left, Phase, SILENT, UnderWay},
    effect::{Effect, Effects, Event, Report},
    holding::{Holding, Serving},
    line::{Line, NextRequest},
    waiters::Waiters,
};
use crate::{
    coalescer::HowSent,
    lease_state::LeaseState,
    model::{LeaseId, Mode},
    retry,
    telemetry::StayEndReason,
};

pub(crate) struct KeyState {
    pub(super) waiters: Waiters,
    pub(super) claims: Vec<Claim>,
    pub(super) line: Line,
    pub(super) call_timeout: Duration,
    /// What a close waits for.
    pub(super) at_work: TaskTracker,
    pub(super) facts: Facts,
    /// What was due at this instant, or before, is done.
    pub(super) passed: Instant,
    /// When the driver comes back to the key.
    pub(super) planned: Option<Instant>,
}

/// What the driver knows when something happens.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Facts {
    /// Whether the store reports freed keys.
    pub(super) reports_freed: bool,
    /// Whether the handle closes.
    pub(super) is_closing: bool,
    /// Whether leases of this key may stay with this process.
    pub(super) may_stay: bool,
    /// Whether another process uses the key too, so that it does not stay with this one for a while. The state itself
    /// finds it.
    pub(super) is_contended: bool,
    /// The waiter that comes now, whose future is about to be polled. The state itself sets it.
    pub(super) entering: Option<WaiterNo>,
}

impl KeyState {
    pub(crate) fn new(
        call_timeout: Duration,
        at_work: TaskTracker,
        facts: Facts,
        now: Instant,
    ) -> Self {
        Self {
            waiters: Waiters::default(),
            claims: Vec::new(),
            line: Line::new(now),
            call_timeout,
            at_work,
            facts,
            passed: now,
            planned: None,
        }
    }

    /// Whether nobody wants the key, and no lease of this process is left.
    pub(crate) fn is_empty(&self) -> bool {
        self.waiters.is_empty() && self.claims.is_empty()
    }

    /// Applies what happens, and adds what the driver is to do.
    pub(crate) fn step(&mut self, event: Event, now: Instant, out: &mut Effects) {
        match event {
            Event::Enter(cell, want) => {
                self.facts.entering = Some(cell.no);
                self.enter(cell, want, now, out);
            }
            Event::Leave(no) => self.leave(no, now, out),
            Event::Answered(request, answer) => self.answered(&request, answer, now, out),
            Event::Withdrawn(request) => self.withdrawn(&request),
            Event::Released(claim) => self.released(claim, now, out),
            Event::Settled(claim) => self.settled(claim, out),
            Event::PlaceLeft(claim) => self.place_left(claim),
            Event::Freed(next) => self.freed(next.as_deref(), now),
            Event::MayBeFree if self.has_own_lease() => {}
            Event::MayBeFree | Event::FreedHere => self.wake(now),
            Event::StopServing(which, why) => self.stop_serving(which, why, out),
            Event::Close => self.close(now, out),
            Event::Timer => self.pass_time(now, out),
        }
        self.advance(now, out);
    }

    /// Serves, refuses, gives back and asks what is due.
    pub(super) fn advance(&mut self, now: Instant, out: &mut Effects) {
        self.drop_expired(now, out);
        self.serve(now, out);
        self.end_waits(now, out);
        self.give_back(now, out);
        self.settle_due(now, out);
        self.ask(now, out);
        self.settle_due(now, out);
    }

    /// The leases of this process.
    pub(crate) fn leases(&self) -> impl Iterator<Item = &Arc<LeaseState>> {
        let all = self.claims.iter();
        all.filter_map(Claim::lease_state)
    }

    /// The leases that are held.
    pub(super) fn held(&self) -> impl Iterator<Item = &Holding> {
        self.claims.iter().filter_map(Claim::holding)
    }

    /// The lease of a claim, if it is held.
    pub(super) fn holding(&self, claim: LeaseId) -> Option<&Holding> {
        self.claim(claim)?.holding()
    }

    /// Whether the first waiter, or one beside the line, needs the store's reports of freed keys.
    pub(crate) fn needs_reports(&self) -> bool {
        let of_line = self.line.needs_reports && self.waiters.has_line();
        of_line && !self.has_own_exclusive() || self.claims.iter().any(Claim::has_been_refused)
    }

    pub(crate) fn has_guard(&self, guard: &LeaseState) -> bool {
        let holding = self.holding(guard.id());
        holding.is_some_and(|it| it.guards.iter().any(|it| it.number() == guard.number()))
    }

    /// Whether a place in the document may be that of this process.
    pub(crate) fn may_have_place(&self) -> bool {
        let may_be_left = |claim: &Claim| {
            let leaves = matches!(&claim.phase, Phase::Settling(settling) if settling.leaves);
            claim.sent.has_place || leaves
        };
        self.claims.iter().any(may_be_left)
    }

    /// Whether a request has no answer yet, and was not withdrawn.
    pub(super) fn is_under_way(&self, request: &Arc<Call>) -> bool {
        let mut all = self.claims.iter().flat_map(|claim| &claim.sent.under_way);
        all.any(|it| Arc::ptr_eq(&it.call, request))
    }

    /// Whether one request of a claim is under way, and no other may have been granted.
    pub(super) fn has_asked_once(&self, claim: LeaseId) -> bool {
        let sent = self.claim(claim).map(|claim| &claim.sent);
        sent.is_some_and(|sent| sent.left == Left::Nothing && sent.under_way.len() <= 1)
    }

    /// Whether a request of a claim, other than this one, may have been granted. One that was not sent yet has not.
    pub(super) fn may_be_granted_by_other(&self, claim: LeaseId, request: &Arc<Call>) -> bool {
        let is_sent = |it: &UnderWay| it.call.how_sent() != HowSent::NotYet;
        let is_other = |it: &UnderWay| !Arc::ptr_eq(&it.call, request) && is_sent(it);
        let sent = self.claim(claim).map(|claim| &claim.sent);
        sent.is_some_and(|sent| sent.left != Left::Nothing || sent.under_way.iter().any(is_other))
    }

    pub(super) fn add(&mut self, claim: Claim) {
        if self.claims.is_empty() {
            // Most keys have one claim.
            self.claims.reserve_exact(1);
        }
        self.claims.push(claim);
    }

    pub(super) fn claim(&self, lease: LeaseId) -> Option<&Claim> {
        self.claims.iter().find(|claim| claim.lease() == lease)
    }

    pub(super) fn claim_mut(&mut self, lease: LeaseId) -> Option<&mut Claim> {
        self.claims.iter_mut().find(|claim| claim.lease() == lease)
    }

    /// The claim that asks for the line.
    pub(super) fn of_line(&self) -> Option<LeaseId> {
        let asks = |claim: &&Claim| matches!(claim.phase, Phase::AsksForLine);
        self.claims.iter().find(asks).map(Claim::lease)
    }

    /// Whether a lease of this process, except of permits, holds the key: its end wakes the line, and reports of the
    /// store do not. (A release elsewhere may free a permit while this process has others.)
    pub(super) fn has_own_lease(&self) -> bool {
        let holds = |claim: &Claim| {
            claim.request.access.mode() != Mode::Permits
                && matches!(claim.phase, Phase::Held(_) | Phase::Releasing { .. })
        };
        self.claims.iter().any(holds)
    }

    pub(super) fn has_own_exclusive(&self) -> bool {
        let holds = |claim: &Claim| {
            claim.request.access.mode() == Mode::Exclusive && claim.holding().is_some()
        };
        self.claims.iter().any(holds)
    }

    /// Ends the turns and stays of these leases.
    pub(super) fn stop_serving(
        &mut self,
        which: Option<LeaseId>,
        why: StayEndReason,
        out: &mut Effects,
    ) {
        let is_meant = |claim: &&mut Claim| which.is_none_or(|which| which == claim.lease());
        let meant = self.claims.iter_mut().filter(is_meant);
        for holding in meant.filter_map(Claim::holding_mut) {
            if holding.stays() {
                let lease = &holding.lease;
                let at_once = holding.guards.is_empty();
                let ended = Report::StayEnded(lease.clone(), why, at_once);
                out.push(Effect::Report(ended));
                if why == StayEndReason::WaitedFor {
                    lease.set_release_terms(|terms| terms.is_awaited = true);
                }
            }
            holding.serving = Serving::Over;
        }
    }

    /// When the next time comes of which the driver tells this state by [`Event::Timer`].
    pub(crate) fn next_timer(&self) -> Option<Instant> {
        let has_line = self.waiters.has_line();
        let claims = self.claims.iter();
        let of_claims = claims.flat_map(|claim| self.times_of(claim, has_line));
        let of_line = match self.line.next {
            NextRequest::Paused(until) if has_line => Some(until),
            _ => None,
        };
        let of_waiters = [
            self.waiters.next_end(),
            self.waiters.next_silent().filter(|_| has_line),
            of_line,
        ];
        let all = of_claims.chain(of_waiters.into_iter().flatten());
        all.filter(|at| *at > self.passed).min()
    }

    /// The times that matter for a claim.
    fn times_of(&self, claim: &Claim, has_line: bool) -> impl Iterator<Item = Instant> {
        let limit = self.call_timeout.min(claim.request.ttl);
        let (passed, is_repeated) = (self.passed, claim.sent.under_way.len() > 1);
        let of_requests = claim.sent.under_way.iter().flat_map(move |it| {
            let silent = it.is_inline.then(|| it.at + SILENT);
            let overdue = it.at.checked_add(limit).filter(|_| it.is_awaited);
            [silent, overdue, it.next_look(is_repeated, passed)]
        });
        let of_phase = match &claim.phase {
            Phase::AsksForLine | Phase::GivenAway(_) => [None; 3],
            Phase::AsksFor(_, beside) => [beside.next, None, None],
            Phase::Held(holding) => {
                let is_offered = self.waiters.offered(claim.lease()).next().is_some();
                holding.times((has_line, is_offered), passed)
            }
            Phase::Releasing { since, .. } => {
                let of_line = has_line.then(|| *since + retry::LONGEST_PAUSE);
                let of_others = since.checked_add(self.call_timeout);
                [
                    of_line,
                    of_others.filter(|_| !self.waiters.is_empty()),
                    claim.release.is_some().then(|| *since + SILENT),
                ]
            }
            Phase::Settling(settling) => {
                let of_line = has_line.then(|| settling.waited_for_until());
                let has_requests = !claim.sent.under_way.is_empty();
                let release = settling.next_release.filter(|_| has_requests);
                [of_line, release, settling.end]
            }
        };
        of_requests.chain(of_phase).flatten()
    }
}
