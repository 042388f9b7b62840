//! What the answers of the store change.

use std::sync::Arc;

use chrono::{DateTime, Utc};
use tokio::time::Instant;

use super::{
    call::Call,
    cell::{Refusal, WaiterNo},
    claim::{Claim, Left, Phase},
    effect::{Answer, Effect, Effects, Report},
    holding::{Holding, Serving},
    place::Wakes,
    state::KeyState,
    waiters::{FromMemory, Want},
};
use crate::{
    lease_state::LeaseState,
    messages::Earlier,
    model::{Error, Held, LeaseId, MAX_PLACES, Mode, WaitPolicy},
    retry::TRIES,
    telemetry::StayEndReason,
};

impl KeyState {
    pub(super) fn answered(
        &mut self,
        request: &Arc<Call>,
        answer: Answer,
        now: Instant,
        out: &mut Effects,
    ) {
        let mut claims = self.claims.iter_mut();
        let ended = claims.find_map(|claim| Some((claim.sent.end(request)?, claim)));
        let Some((answered, claim)) = ended else {
            return;
        };
        let (lease, was_awaited, is_in_turn) =
            (claim.lease(), answered.is_awaited, answered.is_in_turn);
        if matches!(answer, Answer::Overdue(_)) {
            // Its answer may still come.
            claim.sent.under_way.push(answered);
        }
        let is_grant = matches!(answer, Answer::Granted(..));
        let is_awaited = claim.sent.under_way.iter().any(|it| it.is_awaited);
        // A newer request is awaited, and a refusal or an error of this one says nothing about it. A grant that came too
        // late does not end the wait for the other request either.
        let is_late = matches!(answer, Answer::GrantedLate(..));
        let is_old = claim.asks() && (!was_awaited || is_late) && is_awaited;
        let counts = !is_old || is_grant || matches!(answer, Answer::Done(_));
        if counts {
            let left = claim.sent.under_way.iter_mut();
            left.for_each(|it| it.is_awaited = false);
            claim.sent.withdraw(out);
        }
        claim.note(&answer, is_in_turn);
        if is_grant && claim.asks() && std::mem::take(&mut claim.sent.has_place) {
            // The grant of a request that was not in turn has not ended the place.
            out.extend((!is_in_turn).then_some(Effect::LeavePlace(lease)));
        }
        if let Answer::Held(held) = &answer {
            self.release_leftovers(held, out);
        }
        if counts {
            self.apply(lease, answer, now, out);
        }
    }

    /// Records that a request was withdrawn, so that it has no answer.
    pub(super) fn withdrawn(&mut self, request: &Arc<Call>) {
        for claim in &mut self.claims {
            claim.sent.end(request);
        }
    }

    fn apply(&mut self, lease: LeaseId, answer: Answer, now: Instant, out: &mut Effects) {
        let Some(claim) = self.claim_mut(lease) else {
            return;
        };
        match claim.phase {
            Phase::AsksForLine => self.apply_to_line(lease, answer, now, out),
            Phase::AsksFor(no, _) => self.apply_beside(lease, no, answer, now, out),
            Phase::Settling(_) | Phase::GivenAway(_) => self.apply_late(lease, &answer, now, out),
            // What it may have left is released after the release.
            Phase::Releasing { .. } => {}
            // The lease is held already, and another request for it changes nothing else.
            Phase::Held(_) => claim.note_unclear(),
        }
    }

    /// Applies the late answer to a request of a claim that nobody wants, or whose lease was given away.
    fn apply_late(&mut self, lease: LeaseId, answer: &Answer, now: Instant, out: &mut Effects) {
        let (granted_at, leaves_doubt) = (answer.granted_at(), answer.leaves_doubt());
        if let Some(Phase::GivenAway(known)) = self.claim(lease).map(|claim| &claim.phase) {
            // A later grant than that of the lease came after the lease has expired, and nobody has it. The fence does
            // not tell them apart, because an upgrade gives the lease another one.
            if granted_at.is_some_and(|at| at > known.acquired_at()) {
                self.settle(lease, now, out);
            }
        } else if granted_at.is_some() || leaves_doubt {
            self.release_settling(lease, leaves_doubt, out);
        }
    }

    fn apply_to_line(&mut self, lease: LeaseId, answer: Answer, now: Instant, out: &mut Effects) {
        match answer {
            Answer::Granted(granted, is_awaited) => {
                let first = self.waiters.first().map(|(no, _)| no);
                let ended = self.line.place.report.granted(now);
                out.extend(ended.map(|it| Effect::Report(Report::Turn(it))));
                self.line.granted(now);
                self.hold(granted, is_awaited, first, now, out);
            }
            Answer::Held(held) => self.line_refused(lease, held, now, out),
            Answer::Done(error)
            | Answer::GrantedLate(_, error)
            | Answer::Failed(error)
            | Answer::Overdue(error) => self.line_failed(error, now, out),
        }
    }

    fn line_refused(&mut self, lease: LeaseId, held: Held, now: Instant, out: &mut Effects) {
        let Some((no, first)) = self.waiters.first() else {
            return self.line.end_wait();
        };
        let mode = first.want.request.access.mode();
        let comes_first = first.want.is_barging() || first.want.has_own_holder(&held);
        let is_over = first.want.is_over(now);
        self.note_others(lease, &held);
        self.end_stay_if_contended(lease, &held);
        let staying = self.held().filter(|it| it.stays() && held.ahead() > 0);
        for lease in staying.map(|it| it.lease.id()).collect::<Vec<_>>() {
            // This process keeps a lease, beside which the first waiter asks, from a process that comes before it.
            self.stop_serving(Some(lease), StayEndReason::WaitedFor, out);
        }
        if let Some(first) = self.waiters.get_mut(no) {
            first.ahead.get_or_insert(held.ahead());
        }
        let wakes = match (self.has_own_exclusive(), self.facts.reports_freed) {
            (true, _) => Wakes::Here,
            (false, true) => Wakes::ByStore,
            (false, false) => Wakes::None,
        };
        let line = &mut self.line;
        let news = line.refused(held.clone(), (comes_first, mode), wakes, now);
        out.extend(news.map(|news| Effect::Report(Report::Place(news))));
        if is_over {
            return self.refuse(no, Refusal::Held(held), out);
        }
        self.report_wait(no, Some(held.ahead()), out);
        if self.needs_reports() {
            out.push(Effect::Listen);
        }
    }

    fn line_failed(&mut self, error: Error, now: Instant, out: &mut Effects) {
        let Some((no, first)) = self.waiters.first() else {
            return self.line.end_wait();
        };
        let (is_over, since) = (first.want.is_over(now), first.want.since);
        if !error.is_retryable() {
            self.line.end_wait();
            return self.refuse(no, Refusal::Failed(error), out);
        }
        let answered = self.line.answered.max(since);
        let failures = self.line.failed(error.clone(), now);
        if is_over {
            return self.refuse(no, Refusal::Failed(error), out);
        }
        let limit = self.call_timeout;
        let is_long_ago = |at: Instant| now.saturating_duration_since(at) >= limit;
        if !is_long_ago(answered) || failures < TRIES {
            return self.report_wait(no, None, out);
        }
        // The waits without a limit end that got nothing but errors for the whole call timeout.
        let gives_up =
            |want: &Want| want.wait_policy == WaitPolicy::Endless && is_long_ago(want.since);
        let all = self.waiters.in_line().filter(|(_, it)| gives_up(&it.want));
        for no in all.map(|(no, _)| no).collect::<Vec<_>>() {
            self.refuse(no, Refusal::Failed(error.clone()), out);
        }
    }

    /// Records that a claim was granted, for this waiter.
    pub(super) fn hold(
        &mut self,
        granted: Arc<LeaseState>,
        is_awaited: bool,
        waiter: Option<WaiterNo>,
        now: Instant,
        out: &mut Effects,
    ) {
        let lease = granted.id();
        let waiter = waiter.and_then(|no| Some((no, self.waiters.get(no)?.want.clone())));
        let is_other_serving = self.serving().is_some();
        let (may_stay, is_closing) = (self.facts.may_stay, self.facts.is_closing);
        let Some(claim) = self.claim_mut(lease) else {
            return;
        };
        let mode = claim.request.access.mode();
        let is_awaited = is_awaited || claim.sent.is_contended;
        // The lease of an owner that enters again is beside others of this process.
        let is_alone = !is_other_serving && !claim.request.is_reentrant();
        let may_serve = is_alone && !is_closing && mode != Mode::Permits;
        let stays_for = claim.stays_for.filter(|_| may_serve && may_stay);
        let serving = match stays_for {
            Some(idle) => Serving::Stays { idle, since: now },
            None if may_serve && claim.memory == FromMemory::Always => {
                Serving::turn(mode, is_awaited, now)
            }
            None => Serving::Over,
        };
        let fences = claim.request.fences.get();
        claim.phase = Phase::Held(Holding::new(granted.clone(), fences, serving));
        claim.at_work = None;
        claim.note_unclear();
        if stays_for.is_some() {
            out.push(Effect::Keep(granted.clone()));
            out.push(Effect::Report(Report::Stays(granted)));
        }
        if let Some((no, _)) = waiter.filter(|(_, want)| claim.is_for(want)) {
            self.offer(no, lease, now, out);
        }
    }

    /// Records whether a claim was refused because of other processes.
    pub(super) fn note_others(&mut self, lease: LeaseId, held: &Held) {
        let is_own = |lease: LeaseId| self.claim(lease).is_some();
        let is_contended = held.ahead() > 0 || held.holders().iter().any(|it| !is_own(it.lease));
        if let Some(claim) = self.claim_mut(lease) {
            claim.sent.is_contended |= is_contended;
        }
    }

    /// If other processes use the key too, its lease does not stay here.
    pub(super) fn end_stay_if_contended(&mut self, lease: LeaseId, held: &Held) {
        let is_behind_own = self.waiters.has_line();
        let claim = self.claim_mut(lease);
        let Some(claim) = claim.filter(|it| it.stays_for.is_some()) else {
            return;
        };
        // A request that is not in turn is refused behind the place of this process too.
        let own = usize::from(is_behind_own && claim.request.turn.waiter().is_none());
        let is_other = |owner: &str| *owner != *claim.request.owner;
        if held.ahead() > own || held.holders().iter().any(|it| is_other(&it.owner)) {
            claim.stays_for = None;
            (self.facts.may_stay, self.facts.is_contended) = (false, true);
        }
    }

    /// Records that the store reported that the key became free.
    pub(super) fn freed(&mut self, next: Option<&[LeaseId]>, now: Instant) {
        let Some((_, first)) = self.waiters.first() else {
            return self.wake(now);
        };
        let mode = first.want.request.access.mode();
        let last = self.line.last.held();
        let comes_first =
            first.want.is_barging() || last.is_some_and(|held| first.want.has_own_holder(held));
        let claim = self.of_line();
        if comes_first || self.line.comes_next(claim, next, mode) && !self.has_own_lease() {
            self.wake(now);
        }
    }
}

impl Claim {
    /// Records what a request with this answer may have left.
    fn note(&mut self, answer: &Answer, is_in_turn: bool) {
        let doubt = answer.leaves_doubt();
        let (became, left, may_have_place) = match answer {
            Answer::Failed(_) if doubt => (Earlier::Unclear, Left::Request, true),
            Answer::Failed(_) => (Earlier::Unclear, Left::Nothing, false),
            // Its answer may still come.
            Answer::Overdue(_) => (Earlier::Unclear, Left::Nothing, doubt),
            Answer::Granted(..) | Answer::GrantedLate(..) => (Earlier::Unclear, Left::Grant, false),
            Answer::Held(held) => (Earlier::Refused, Left::Nothing, held.ahead() < MAX_PLACES),
            Answer::Done(_) => (Earlier::Refused, Left::Nothing, false),
        };
        // A request that is answered after the grant was refused before it, and the grant has ended the place.
        let takes_place = is_in_turn && self.holding().is_none();
        self.sent.ended = self.sent.ended.max(became);
        self.sent.left = self.sent.left.max(left);
        self.sent.has_place |= may_have_place && takes_place;
    }
}

impl Answer {
    /// When the lease was granted, on the server's clock, if it was.
    fn granted_at(&self) -> Option<DateTime<Utc>> {
        match self {
            Self::Granted(lease, _) => Some(lease.acquired_at()),
            Self::GrantedLate(granted_at, _) => Some(*granted_at),
            _ => None,
        }
    }

    /// Whether the request may have been granted all the same, or may still be.
    fn leaves_doubt(&self) -> bool {
        match self {
            Self::Failed(error) | Self::Overdue(error) => error.leaves_doubt(),
            _ => false,
        }
    }
}
