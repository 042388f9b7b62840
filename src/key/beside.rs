//! The answers to the requests of a claim that asks for one waiter beside the line.

use std::time::Duration;

use tokio::time::Instant;

use super::{
    cell::{Refusal, WaiterNo},
    claim::{Beside, Claim, Phase},
    effect::{Answer, Effect, Effects},
    serving::Fit,
    state::KeyState,
    waiters::{Role, Want},
};
use crate::{
    model::{Error, Held, LeaseId, WaitPolicy},
    random,
    retry::{self, TRIES},
};

impl KeyState {
    pub(super) fn apply_beside(
        &mut self,
        lease: LeaseId,
        no: WaiterNo,
        answer: Answer,
        now: Instant,
        out: &mut Effects,
    ) {
        let Some(waiter) = self.waiters.get(no) else {
            return;
        };
        let want = waiter.want.clone();
        let why = match answer {
            Answer::Granted(granted, is_awaited) => {
                return self.hold(granted, is_awaited, Some(no), now, out);
            }
            Answer::Held(held) => {
                self.end_stay_if_contended(lease, &held);
                if let Some(waiter) = self.waiters.get_mut(no) {
                    waiter.ahead.get_or_insert(held.ahead());
                }
                if !want.is_over(now) {
                    return self.beside_refused(lease, (no, &want), &held, now, out);
                }
                Refusal::Held(held)
            }
            Answer::Done(error) => Refusal::Failed(error),
            Answer::GrantedLate(_, error) | Answer::Failed(error) | Answer::Overdue(error) => {
                if !self.beside_failed(lease, &want, &error, now) {
                    return;
                }
                Refusal::Failed(error)
            }
        };
        self.refuse(no, why, out);
        self.settle(lease, now, out);
    }

    /// Plans what comes after the refusal of a waiter whose time is not over.
    fn beside_refused(
        &mut self,
        lease: LeaseId,
        (no, want): (WaiterNo, &Want),
        held: &Held,
        now: Instant,
        out: &mut Effects,
    ) {
        let joins_line = if want.is_barging() {
            // It is served from memory, or the lease goes back for it.
            let is_asked_for = |claim: &Claim| self.fit_of(claim, want, now).0 != Fit::Beside;
            self.serving().is_some_and(is_asked_for)
        } else {
            // It waits as others do, unless its owner has the key.
            !want.has_own_holder(held)
        };
        if joins_line {
            self.waiters.set_role(no, Role::InLine);
            return self.settle(lease, now, out);
        }
        // A lease beside which it asks is not there any more, or others hold the key too.
        let expires_in = (!held.holders().is_empty()).then(|| held.expires_in());
        self.report_wait(no, Some(held.ahead()), out);
        out.push(Effect::Listen);
        if let Some(beside) = self.beside_mut(lease) {
            (beside.failures, beside.answered) = (0, Some(now));
            beside.ask_later(want, expires_in, now);
        }
    }

    /// Plans the next request after one that failed. Returns whether the wait ends instead.
    fn beside_failed(&mut self, lease: LeaseId, want: &Want, error: &Error, now: Instant) -> bool {
        let limit = self.call_timeout;
        let Some(beside) = self.beside_mut(lease) else {
            return false;
        };
        if !want.waits() {
            let pause = beside.tries.pause_after(error).filter(|_| want.repeats);
            beside.next = pause.map(|pause| now + pause);
            return pause.is_none();
        }
        beside.failures += 1;
        let answered = beside.answered.unwrap_or(want.since);
        let silence = now.saturating_duration_since(answered);
        let is_silent = silence >= limit && beside.failures >= TRIES;
        beside.ask_later(want, None, now);
        let gives_up = want.wait_policy == WaitPolicy::Endless && is_silent;
        gives_up || !error.is_retryable() || want.is_over(now)
    }

    fn beside_mut(&mut self, lease: LeaseId) -> Option<&mut Beside> {
        match &mut self.claim_mut(lease)?.phase {
            Phase::AsksFor(_, beside) => Some(beside),
            _ => None,
        }
    }
}

impl Beside {
    /// Plans the next request.
    fn ask_later(&mut self, want: &Want, expires_in: Option<Duration>, now: Instant) {
        let pause = retry::pause_until_free(self.pauses, expires_in, random::fraction());
        self.pauses = self.pauses.saturating_add(1);
        let next = now + pause;
        self.next = Some(want.until().map_or(next, |end| end.min(next)));
    }
}
