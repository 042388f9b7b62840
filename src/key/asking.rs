//! When the store is asked, and with which terms.

use std::{num::NonZeroU16, sync::Arc};

use tokio::time::Instant;

use super::{
    call::Call,
    cell::WaiterNo,
    claim::{Beside, Claim, Phase, UnderWay},
    effect::{Effect, Effects, Report},
    line::{LastAnswer, Line, NextRequest},
    place::OwnPlace,
    serving::Fit,
    state::KeyState,
    waiters::{FromMemory, Role, Want},
};
use crate::{
    messages::Turn,
    model::{Access, LeaseId},
    retry,
};

/// How many fences an exclusive lease takes that is to stay. Each guard under it needs one. After so many the store is
/// asked again, which costs two requests.
const FENCES_OF_STAY: NonZeroU16 = NonZeroU16::new(4_096).unwrap();

/// How many fences another exclusive lease takes that serves further tasks for a turn.
const FENCES_OF_TURN: NonZeroU16 = NonZeroU16::new(1_024).unwrap();

impl KeyState {
    /// Sends the requests that are due: for the first waiter of the line, and for those beside it.
    pub(super) fn ask(&mut self, now: Instant, out: &mut Effects) {
        self.ask_beside(now, out);
        let Some((no, first)) = self.waiters.first() else {
            return self.abandon_line(now, out);
        };
        let serves = |claim: &Claim| self.fit_of(claim, &first.want, now).0 == Fit::Here;
        let serves = self.serving().is_some_and(serves);
        // The line waits for no lease that serves no further task: its guards may be held for as long as their tasks like.
        if serves || self.waits_for_own(now) {
            self.report_wait(no, None, out);
            if let Some(claim) = self.of_line().filter(|_| serves) {
                // It would keep a place in the document, behind the own lease.
                self.settle(claim, now, out);
            }
            return;
        }
        let want = first.want.clone();
        if want.is_barging() {
            // It has a claim of its own, so that the others keep their place. The next one may ask too.
            self.begin_beside(no, &want);
            return self.ask(now, out);
        }
        let known = self.of_line();
        let claim = known.unwrap_or_else(|| self.begin(no, &want, Phase::AsksForLine));
        if !self.adopt(claim, &want) {
            // Nobody wants its terms any more. It is settled after the answers to its requests, or after a second.
            let old = self.claim(claim);
            if !old.is_some_and(|it| it.sent.has_new_request(now)) {
                self.settle(claim, now, out);
            }
            return;
        }
        let has_others = self.waiters.in_line().nth(1).is_some();
        let waits = self.claim(claim).is_none_or(|it| {
            let others_wait = has_others || it.sent.under_way.iter().any(|it| it.of != no);
            it.sent.waits(others_wait, now)
        });
        // An answer to a later request has planned the next one.
        let is_unanswered = matches!(self.line.next, NextRequest::UnderWay { .. })
            && self.claim(claim).is_some_and(Claim::has_one_request);
        if !waits && (is_unanswered || self.line.is_due(now)) {
            if is_unanswered {
                out.push(Effect::Report(Report::Unanswered(claim)));
            } else {
                self.line.sent(now);
            }
            self.send_for_line(claim, no, now, out);
        }
    }

    /// Whether the line waits for the release, or the settlement, of another claim of this process. It does so for a
    /// second at most, because that may hang.
    fn waits_for_own(&self, now: Instant) -> bool {
        self.of_line().is_none()
            && self.claims.iter().any(|claim| match &claim.phase {
                Phase::Releasing { since, .. } => now < *since + retry::LONGEST_PAUSE,
                Phase::Settling(settling) => now < settling.waited_for_until(),
                _ => false,
            })
    }

    /// Makes a claim for one waiter beside the line.
    pub(super) fn begin_beside(&mut self, no: WaiterNo, want: &Want) {
        let beside = Beside {
            next: Some(want.since),
            ..Beside::default()
        };
        let lease = self.begin(no, want, Phase::AsksFor(no, beside));
        self.waiters.set_role(no, Role::Beside(lease));
    }

    /// Makes a claim that asks for a waiter.
    fn begin(&mut self, no: WaiterNo, want: &Want, phase: Phase) -> LeaseId {
        let mut claim = Claim::new(self.waiters.take_request(no, want), phase);
        claim.at_work = Some(self.at_work.token());
        let lease = claim.lease();
        self.add(claim);
        self.adopt(lease, want);
        lease
    }

    /// Gives a claim the terms of this task, if it has others and they may change. Returns whether it has them.
    fn adopt(&mut self, claim: LeaseId, want: &Want) -> bool {
        let may_stay = self.facts.may_stay;
        let Some(claim) = self.claim_mut(claim) else {
            return false;
        };
        if !claim.may_change() {
            return claim.is_for(want);
        }
        if !want.has_terms_of(&claim.request) {
            let lease = claim.lease();
            claim.request = want.request.clone();
            Arc::make_mut(&mut claim.request).lease = lease;
        }
        claim.stays_for = want.stays_for.filter(|_| may_stay);
        claim.memory = want.memory;
        true
    }

    /// Settles the claim that asks for the line, because no waiter stands in it.
    fn abandon_line(&mut self, now: Instant, out: &mut Effects) {
        match self.of_line() {
            Some(claim) => self.settle(claim, now, out),
            None if matches!(self.line.last, LastAnswer::Unknown) => {}
            // The answer was for the waiters that there were.
            None => self.line = Line::new(now),
        }
    }

    fn send_for_line(&mut self, claim: LeaseId, no: WaiterNo, now: Instant, out: &mut Effects) {
        let is_alone = self.waiters.in_line().nth(1).is_none();
        let turn = Turn::InTurn(self.line.place.in_turn(claim));
        // If no process is ahead, the request goes when the key is about to be free, so it is not likely to be refused.
        // If the place is due to be written again, a read alone is not enough.
        let last = self.line.last.held().filter(|_| !self.line.place.is_due);
        let likely_held = last.is_some_and(|held| held.turns_ahead() > 0);
        self.send(claim, (turn, likely_held), (no, is_alone), now, out);
    }

    fn ask_beside(&mut self, now: Instant, out: &mut Effects) {
        let due = |claim: &Claim| {
            let Phase::AsksFor(no, beside) = &claim.phase else {
                return None;
            };
            let is_slow = claim.has_one_request() && !claim.sent.waits(false, now);
            let is_due = beside.next.map_or(is_slow, |at| at <= now);
            is_due.then_some((claim.lease(), *no, beside.next.is_none()))
        };
        for (claim, no, repeats) in self.claims.iter().filter_map(due).collect::<Vec<_>>() {
            let Some(waiter) = self.waiters.get(no) else {
                continue;
            };
            if repeats {
                if !waiter.want.repeats {
                    continue;
                }
                out.push(Effect::Report(Report::Unanswered(claim)));
            }
            let request = &waiter.want.request;
            let is_again = self.claim(claim).is_some_and(Claim::has_been_refused);
            let turn = if waiter.want.is_barging() {
                Turn::Barging
            } else if is_again && waiter.want.waits() {
                // Others see that it waits, and do not come before it again and again. It asks once a second at least.
                Turn::InTurn(OwnPlace::new().in_turn(claim))
            } else {
                Turn::Behind
            };
            let said = (turn, request.likely_held);
            if let Some(Phase::AsksFor(_, beside)) = self.claim_mut(claim).map(|it| &mut it.phase) {
                beside.next = None;
            }
            self.send(claim, said, (no, true), now, out);
        }
    }

    fn send(
        &mut self,
        lease: LeaseId,
        (turn, likely_held): (Turn, bool),
        (of, may_be_inline): (WaiterNo, bool),
        now: Instant,
        out: &mut Effects,
    ) {
        // Later requests are sent while the future of the waiter may not be polled.
        let is_inline = may_be_inline && self.facts.entering == Some(of);
        let by = self.waiters.cell(of).filter(|_| is_inline);
        // The waiter has asked by now, also if it came after this step had taken its time.
        let waiter = self.waiters.get(of);
        let since = waiter.map_or(now, |it| it.want.since.max(now));
        let Some(claim) = self.claim_mut(lease) else {
            return;
        };
        let (fences, earlier) = (claim.fences(), claim.sent.earlier());
        let request = Arc::make_mut(&mut claim.request);
        (request.turn, request.likely_held) = (turn, likely_held);
        (request.fences, request.earlier) = (fences, earlier);
        let call = Arc::<Call>::default();
        if claim.may_change() {
            claim.sent.since = Some(since);
        }
        claim.sent.under_way.push(UnderWay {
            call: call.clone(),
            of,
            at: now,
            is_awaited: true,
            is_inline: by.is_some(),
            is_in_turn: turn.waiter().is_some(),
        });
        out.push(Effect::Send(call, claim.request.clone(), by));
    }

    /// Lets tasks of their own poll the requests for the line, because another task depends on them.
    pub(super) fn spawn_requests_of_line(&mut self, now: Instant, out: &mut Effects) {
        let line = self.of_line();
        if let Some(claim) = line.and_then(|line| self.claim_mut(line)) {
            claim.sent.spawn(now, out);
        }
    }

    /// Looks for the requests that take longer than a call may take. They count as failed.
    pub(super) fn overdue(&mut self, now: Instant, out: &mut Effects) {
        for claim in &mut self.claims {
            let limit = self.call_timeout.min(claim.request.ttl);
            let is_over = |it: &&UnderWay| {
                let end = it.at.checked_add(limit);
                it.is_awaited && end.is_some_and(|end| end <= now)
            };
            if let Some(over) = claim.sent.under_way.iter().find(is_over) {
                // Its failure withdraws it. A request that is withdrawn before has no answer to wait for.
                out.push(Effect::Overdue(over.call.clone(), limit));
                // Its repetition has no time of its own.
                let all = claim.sent.under_way.iter_mut();
                all.for_each(|it| it.is_awaited = false);
            }
        }
    }

    /// The key may be free: the line asks at once, and so do owners beside it.
    pub(super) fn wake(&mut self, now: Instant) {
        self.line.report();
        for claim in &mut self.claims {
            if let Phase::AsksFor(_, beside) = &mut claim.phase
                && let Some(next) = &mut beside.next
                && beside.failures == 0
            {
                *next = now;
            }
        }
    }
}

impl Claim {
    /// How many fences its lease takes.
    fn fences(&self) -> NonZeroU16 {
        match (self.request.access, self.stays_for, self.memory) {
            _ if self.request.is_reentrant() => NonZeroU16::MIN,
            (Access::Exclusive, Some(_), _) => FENCES_OF_STAY,
            (Access::Exclusive, None, FromMemory::Always) => FENCES_OF_TURN,
            _ => NonZeroU16::MIN,
        }
    }
}
