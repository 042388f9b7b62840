//! How tasks come and go: what a task gets at once, where it waits otherwise, and what ends its wait.

use std::sync::Arc;

use tokio::time::Instant;

use super::{
    cell::{Cell, News, Refusal, WaitEnd, WaiterNo},
    claim::{Claim, Phase, SILENT},
    effect::{Effect, Effects, Report},
    holding::{Conversion, Holding},
    line::{LastAnswer, NextRequest},
    serving::Fit,
    state::KeyState,
    waiters::{FromMemory, Role, Want},
};
use crate::{
    model::{LeaseId, Mode},
    telemetry::StayEndReason,
};

impl KeyState {
    pub(super) fn enter(&mut self, cell: Arc<Cell>, want: Want, now: Instant, out: &mut Effects) {
        let no = cell.no;
        if self.facts.is_closing {
            self.waiters.push(cell, want, Role::InLine);
            return self.refuse(no, Refusal::Closed, out);
        }
        // Who leaves an offer untaken keeps nobody waiting.
        self.pass_over_silent(now, out);
        self.spawn_releases(now, out);
        let depends = self.waiters.has_line();
        // Who does not wait stands in no line.
        let role = if want.waits() {
            Role::InLine
        } else {
            Role::Beside(want.request.lease)
        };
        self.waiters.push(cell, want.clone(), role);
        if want.request.is_reentrant() {
            if let Some(claim) = self.entered_by(&want, now) {
                return self.offer(no, claim, now, out);
            }
            // An owner that may have the key waits for nobody of this process, because others may wait for it.
            self.facts.is_contended = true;
            self.stop_serving(None, StayEndReason::DocumentNeeded, out);
            return self.begin_beside(no, &want);
        }
        if !want.waits() {
            return self.attempt(no, &want, now, out);
        }
        if depends {
            self.spawn_requests_of_line(now, out);
            self.report_wait(no, None, out);
        }
    }

    /// Offers a waiter a guard under this claim.
    pub(super) fn offer(&mut self, no: WaiterNo, claim: LeaseId, now: Instant, out: &mut Effects) {
        self.waiters.set_role(no, Role::Offered(claim, now));
        let cell = self.waiters.cell(no);
        out.extend(cell.map(|cell| Effect::Tell(cell, News::Offered)));
    }

    /// Reports that a task has to wait, behind this many processes if that is known.
    pub(super) fn report_wait(&self, no: WaiterNo, ahead: Option<usize>, out: &mut Effects) {
        let cell = self.waiters.cell(no);
        out.extend(cell.map(|cell| Effect::Report(Report::Waits(cell, ahead))));
    }

    /// The claim under which an owner that enters again has a guard.
    fn entered_by(&self, want: &Want, now: Instant) -> Option<LeaseId> {
        let mode = want.request.access.mode();
        let enters = |claim: &&Claim| {
            let holding = claim.holding();
            claim.request.owner == want.request.owner
                && holding.is_some_and(|it| it.entered(mode, now).is_some())
        };
        let claim = self.claims.iter().find(enters).map(Claim::lease);
        claim.filter(|_| want.memory != FromMemory::Never)
    }

    /// A task that does not wait gets what is there, or is refused, or asks the store.
    fn attempt(&mut self, no: WaiterNo, want: &Want, now: Instant, out: &mut Effects) {
        let is_first = !self.waiters.has_patient_line() || want.is_barging();
        for claim in &self.claims {
            let lease = claim.lease();
            if is_first && self.fit_of(claim, want, now) == (Fit::Here, true) {
                return self.offer(no, lease, now, out);
            }
            let may_go_back = match &claim.phase {
                // A lease that was converted has the mode that the store says.
                Phase::Held(holding) => {
                    holding.is_live(now) && holding.conversion != Conversion::Sent
                }
                Phase::Releasing { since, .. } => !self.takes_too_long(*since, now),
                _ => false,
            };
            if !may_go_back || !want.conflicts_with(claim.request.access.mode()) {
                continue;
            }
            let is_offered = self.waiters.offered(lease).next().is_some();
            let is_used = |holding: &Holding| is_offered || !holding.guards.is_empty();
            if claim.holding().is_some_and(is_used) {
                self.waiters.set_role(no, Role::InLine);
                return self.refuse(no, self.held_here(lease), out);
            }
            // It stays here, or goes back already, and the store would refuse the task because of it.
            self.stop_serving(Some(lease), StayEndReason::DocumentNeeded, out);
            return self.waiters.set_role(no, Role::AfterRelease(lease));
        }
        if !is_first && let Some(held) = self.line.last.held().cloned() {
            self.waiters.set_role(no, Role::InLine);
            return self.refuse(no, Refusal::Held(held), out);
        }
        self.begin_beside(no, want);
    }

    /// A task does not want the key any more.
    pub(super) fn leave(&mut self, no: WaiterNo, now: Instant, out: &mut Effects) {
        let before = self.mode_of_first();
        let Some(waiter) = self.waiters.remove(no) else {
            return;
        };
        match waiter.role {
            Role::Beside(claim) => self.settle(claim, now, out),
            Role::InLine => {
                self.spawn_requests_of_line(now, out);
                self.follow_first(before);
            }
            Role::Offered(..) | Role::AfterRelease(_) => {}
        }
    }

    fn mode_of_first(&self) -> Option<Mode> {
        let (_, first) = self.waiters.first()?;
        Some(first.want.request.access.mode())
    }

    /// Plans the next request, if another waiter is the first now: it may be granted the key although the one before
    /// was refused.
    fn follow_first(&mut self, before: Option<Mode>) {
        let Some((_, first)) = self.waiters.first() else {
            return;
        };
        let mode = first.want.request.access.mode();
        let may_be_granted = match mode {
            Mode::Shared | Mode::Permits => self.line.last.is_refusal_by(mode),
            // It may have been refused because of the processes ahead.
            Mode::Exclusive => first.want.is_barging() && self.line.last.ahead() > 0,
        };
        let is_other = Some(mode) != before || first.want.is_barging();
        let is_paused = matches!(self.line.next, NextRequest::Paused(_));
        if is_other && may_be_granted && is_paused {
            self.line.next = NextRequest::AtOnce;
        }
    }

    /// Ends the wait of a task without a guard.
    pub(super) fn refuse(&mut self, no: WaiterNo, why: Refusal, out: &mut Effects) {
        let is_first = self.waiters.first().is_some_and(|(first, _)| first == no);
        let before = self.mode_of_first();
        let Some(waiter) = self.waiters.remove(no) else {
            return;
        };
        let was_behind = waiter.role == Role::InLine && !is_first;
        if is_first {
            self.follow_first(before);
        }
        let refused = WaitEnd {
            outcome: Err(why),
            ahead: waiter.ahead,
            was_behind,
        };
        out.push(Effect::Tell(waiter.cell, News::Refused(Box::new(refused))));
    }

    /// The handle closes: nobody waits, and nothing is served.
    pub(super) fn close(&mut self, now: Instant, out: &mut Effects) {
        self.spawn_releases(now, out);
        for no in self.waiters.numbers() {
            let role = self.waiters.get(no).map(|it| it.role);
            self.refuse(no, Refusal::Closed, out);
            if let Some(Role::Beside(claim)) = role {
                self.settle(claim, now, out);
            }
        }
        self.stop_serving(None, StayEndReason::Closed, out);
        for lease in self.claims.iter().map(Claim::lease).collect::<Vec<_>>() {
            self.send_back(lease, now, out);
        }
    }

    /// Does what is due by time alone.
    pub(super) fn pass_time(&mut self, now: Instant, out: &mut Effects) {
        if self.waiters.has_line() {
            self.pass_over_silent(now, out);
        }
        self.overdue(now, out);
        if let Some(silent) = now.checked_sub(SILENT) {
            self.spawn_releases(silent, out);
            let claims = self.claims.iter_mut();
            claims.for_each(|claim| claim.sent.spawn(silent, out));
        }
        self.release_waited_for_too_long(now);
        self.passed = now;
    }

    /// Ends the waits of those whose time is over. The first of the line gets the answer to one more request.
    pub(super) fn end_waits(&mut self, now: Instant, out: &mut Effects) {
        for no in self.waiters.over(now) {
            let in_line = self.waiters.get(no).filter(|it| it.role == Role::InLine);
            let Some(waiter) = in_line else {
                // Its own claim has an answer soon, or counts as failed.
                continue;
            };
            let is_first = self.waiters.first().is_some_and(|(first, _)| first == no);
            let has_others = self.waiters.in_line().nth(1).is_some();
            let serves = |claim: &Claim| self.fit_of(claim, &waiter.want, now).0 == Fit::Here;
            let asks_once_more = is_first
                && !self.claims.iter().any(serves)
                && !self.line.can_skip_last_request(has_others, now);
            if !asks_once_more {
                self.refuse(no, self.refusal_of_line(), out);
            } else if !matches!(self.line.next, NextRequest::UnderWay { .. }) {
                self.line.next = NextRequest::AtOnce;
            }
        }
    }

    /// Why a task of the line is refused whose time is over.
    fn refusal_of_line(&self) -> Refusal {
        match &self.line.last {
            LastAnswer::Held(held) => Refusal::Held(held.clone()),
            LastAnswer::Failed { error, .. } => Refusal::Failed(error.clone()),
            LastAnswer::Unknown => {
                let held = self.held().next();
                held.map_or(Refusal::TimedOut, |it| Refusal::HeldHere(it.lease.clone()))
            }
        }
    }

    /// The refusal of a task because tasks of this process have the key, under this claim.
    pub(super) fn held_here(&self, claim: LeaseId) -> Refusal {
        let lease = self.claim(claim).and_then(Claim::lease_state);
        lease.map_or(Refusal::TimedOut, |it| Refusal::HeldHere(it.clone()))
    }

    /// Whether a release that began at this instant takes longer than a call may take. Nobody waits for it then.
    fn takes_too_long(&self, since: Instant, now: Instant) -> bool {
        let end = since.checked_add(self.call_timeout);
        end.is_some_and(|end| end <= now)
    }

    /// Lets those ask that have waited for the release of a lease for as long as a call may take.
    fn release_waited_for_too_long(&mut self, now: Instant) {
        let is_over = |claim: &&Claim| match claim.phase {
            Phase::Releasing { since, .. } => self.takes_too_long(since, now),
            _ => false,
        };
        let over = self.claims.iter().filter(is_over);
        let waited = over.flat_map(|claim| self.waiters.after_release_of(claim.lease()));
        for (no, want) in waited.collect::<Vec<_>>() {
            self.begin_beside(no, &want);
        }
    }

    /// Lets those try again that have waited for the release of this lease.
    pub(super) fn attempt_after(&mut self, claim: LeaseId, now: Instant, out: &mut Effects) {
        for (no, want) in self.waiters.after_release_of(claim) {
            self.attempt(no, &want, now, out);
        }
    }
}
