//! Which task gets a guard from memory, how guards come and go under the claims of a key, and when a lease goes back: a
//! waiter takes what it is offered, a guard is given up, converted, or made from a ticket.

use std::sync::Arc;

use tokio::time::Instant;

use super::{
    cell::{Granted, WaitEnd, WaiterNo},
    claim::{Claim, Left, Phase},
    effect::{Departed, Departure, Effect, Effects, Report},
    holding::{AtEnd, Conversion, Holding, Serving},
    state::KeyState,
    waiters::{FromMemory, Role, Want},
};
use crate::{
    lease_state::{LeaseNumber, LeaseState},
    model::{LeaseId, Mode},
    telemetry::StayEndReason,
};

/// Where a task gets what it wants, while this process has a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fit {
    /// From memory, under the lease, when its turn comes.
    Here,
    /// From the store, beside the lease.
    Beside,
    /// From the store, after the lease has gone back.
    After,
}

impl Claim {
    /// Where this task gets what it wants, if this lease serves.
    fn fit(&self, want: &Want) -> Fit {
        let (terms, wants) = (&self.request, &want.request);
        let stays = self.holding().is_some_and(Holding::stays);
        let from_memory = match want.memory {
            FromMemory::Never => false,
            FromMemory::IfItStays => stays,
            FromMemory::Always => true,
        };
        // The document names the holder and its note.
        let is_same = (&terms.owner, &terms.note) == (&wants.owner, &wants.note);
        let has_terms = stays || (terms.ttl, terms.access) == (wants.ttl, wants.access);
        let can_share = matches!(
            (terms.access.mode(), wants.access.mode()),
            (Mode::Exclusive, Mode::Exclusive | Mode::Shared) | (Mode::Shared, Mode::Shared)
        );
        if can_share && is_same && has_terms && from_memory {
            Fit::Here
        } else if want.conflicts_with(terms.access.mode()) {
            Fit::After
        } else {
            Fit::Beside
        }
    }

    /// Gives a task a guard under the lease. `None` if no fence is left, or the lease is over.
    fn take(&mut self, want: &Want, now: Instant) -> Option<Granted> {
        let mode = want.request.access.mode();
        let holding = self.holding_mut()?;
        let lease = holding.lease.clone();
        let is_first = !holding.was_taken;
        let fence = match holding.entered(mode, now).map(|guard| guard.fence()) {
            Some(fence) if want.request.is_reentrant() => fence,
            _ if is_first || holding.is_live(now) => holding.take_fence()?,
            _ => return None,
        };
        let mut request = want.request.clone();
        if request.lease != lease.id() {
            Arc::make_mut(&mut request).lease = lease.id();
        }
        let state = LeaseState::guard((lease, fence, is_first), request, now);
        holding.push(state.clone());
        Some(Granted { state, is_first })
    }
}

impl KeyState {
    /// Where a task gets what it wants, and whether it can have a guard under this claim now.
    pub(super) fn fit_of(&self, claim: &Claim, want: &Want, now: Instant) -> (Fit, bool) {
        let holding = claim.holding();
        let Some(holding) = holding.filter(|it| it.serves(want.request.ttl, now)) else {
            return (Fit::After, false);
        };
        let offered = self.waiters.offered(claim.lease());
        let offered = offered.map(|(_, waiter)| waiter.want.request.access.mode());
        let has_room = holding.has_room(want.request.access.mode(), offered);
        (claim.fit(want), has_room)
    }

    /// The claim that serves the line.
    pub(super) fn serving(&self) -> Option<&Claim> {
        let serves = |claim: &&Claim| {
            let holding = claim.holding();
            holding.is_some_and(|it| it.serving != Serving::Over)
        };
        self.claims.iter().find(serves)
    }

    /// Offers guards to the first waiters of the line, as far as the lease that serves has room for them.
    pub(super) fn serve(&mut self, now: Instant, out: &mut Effects) {
        while let Some(claim) = self.serving() {
            let Some((no, first)) = self.waiters.first() else {
                return;
            };
            let lease = claim.lease();
            match self.fit_of(claim, &first.want, now) {
                (Fit::Here, true) => self.offer(no, lease, now, out),
                (Fit::Here, false) | (Fit::Beside, _) => return,
                // The turn is over, or the first waiter needs the document.
                (Fit::After, _) => {
                    self.stop_serving(Some(lease), StayEndReason::DocumentNeeded, out);
                }
            }
        }
    }

    /// Gives back the leases that have no guard, and serve nobody.
    pub(super) fn give_back(&mut self, now: Instant, out: &mut Effects) {
        let goes_back = |claim: &&Claim| {
            let is_used = |holding: &Holding| match holding.serving {
                _ if !holding.guards.is_empty() => true,
                Serving::Stays { idle, since } => holding.is_live(now) && now < since + idle,
                Serving::Turn { .. } | Serving::Over => false,
            };
            let is_used = claim.holding().is_none_or(is_used);
            !is_used && self.waiters.offered(claim.lease()).next().is_none()
        };
        let all = self.claims.iter().filter(goes_back);
        for lease in all.map(Claim::lease).collect::<Vec<_>>() {
            self.stop_serving(Some(lease), StayEndReason::NotUsed, out);
            self.send_back(lease, now, out);
        }
    }

    pub(super) fn send_back(&mut self, lease: LeaseId, now: Instant, out: &mut Effects) {
        let (is_awaited, at_work) = (!self.waiters.is_empty(), self.at_work.token());
        let Some(claim) = self.claim_mut(lease) else {
            return;
        };
        let Some(holding) = claim.holding() else {
            return;
        };
        let state = holding.lease.clone();
        if is_awaited {
            // The key goes to other processes, which learn of the release when a majority has it. Otherwise the waiters of
            // this process would come before them.
            state.set_release_terms(|terms| terms.is_awaited = true);
        }
        let is_given_away = match holding.at_end {
            AtEnd::Release => false,
            AtEnd::GiveAway => true,
            AtEnd::GiveAwayUntil(until) => now < until,
        };
        if is_given_away {
            claim.phase = Phase::GivenAway(state.clone());
            out.push(Effect::Detach(state));
            // The first waiter may not listen to the store yet.
            return self.wake(now);
        }
        // This release ends what was granted before. It is repeated if a request is unclear.
        claim.sent.left = Left::Nothing;
        claim.phase = Phase::Releasing {
            lease: state.clone(),
            since: now,
        };
        // A close waits for it from now on, also before it has begun.
        claim.at_work = Some(at_work);
        out.push(Effect::GiveBack(state));
    }

    /// Removes the guards that have outlived their ttl, so that others can have the key.
    pub(super) fn drop_expired(&mut self, now: Instant, out: &mut Effects) {
        for claim in &mut self.claims {
            let expired = claim.holding_mut().map(|holding| holding.take_expired(now));
            let lost = expired.filter(|guards| !guards.is_empty());
            out.extend(lost.map(|guards| Effect::Report(Report::Lost(guards))));
        }
    }

    /// Gives a waiter the guard that it is offered, which ends its wait. `None` if it is offered none any more: it waits on.
    pub(crate) fn take(
        &mut self,
        no: WaiterNo,
        now: Instant,
        out: &mut Effects,
    ) -> Option<WaitEnd> {
        // Its future is polled, so it stands where it stood if it was passed over.
        self.waiters.take_back(no);
        let waiter = self.waiters.get(no)?;
        let Role::Offered(claim, _) = waiter.role else {
            self.advance(now, out);
            return None;
        };
        let (want, ahead) = (waiter.want.clone(), waiter.ahead);
        let taken = self.claim_mut(claim);
        let taken = taken.and_then(|claim| claim.take(&want, now));
        if taken.is_some() {
            self.waiters.remove(no);
        } else {
            // No fence is left, so the store is asked again.
            let role = if want.waits() {
                Role::InLine
            } else {
                Role::AfterRelease(claim)
            };
            self.waiters.set_role(no, role);
            self.stop_serving(Some(claim), StayEndReason::DocumentNeeded, out);
        }
        self.advance(now, out);
        Some(WaitEnd {
            outcome: Ok(taken?),
            ahead,
            was_behind: false,
        })
    }

    /// Records that a guard is given up.
    pub(crate) fn depart(
        &mut self,
        (claim, guard): (LeaseId, LeaseNumber),
        how: Departure,
        now: Instant,
        out: &mut Effects,
    ) -> Departed {
        let is_closing = self.facts.is_closing;
        let mut departed = Departed::default();
        if let Some(holding) = self.claim_mut(claim).and_then(Claim::holding_mut) {
            let expires = holding.leave(guard, now);
            departed.was_there = expires.is_some();
            let wants = match how {
                Departure::Released | Departure::Done(_) => false,
                Departure::Detached => true,
                Departure::Ticketed => holding.guards.is_empty(),
            };
            departed.detaches = wants && departed.was_there && !is_closing;
            if let Some(expires) = expires.filter(|_| departed.detaches) {
                holding.give_away(expires);
            }
        }
        if departed.detaches {
            // Nobody may get a guard under a lease that is not this process's any more.
            self.withdraw_offers(claim, out);
            self.stop_serving(Some(claim), StayEndReason::Detached, out);
        }
        self.advance(now, out);
        departed
    }

    /// Records that a guard is converted, or that the store is asked to convert its lease.
    pub(crate) fn convert(&mut self, claim: LeaseId, conversion: Conversion, out: &mut Effects) {
        self.withdraw_offers(claim, out);
        if let Some(holding) = self.claim_mut(claim).and_then(Claim::holding_mut) {
            holding.conversion = holding.conversion.max(conversion);
        }
    }

    /// Withdraws the guards that are offered under a claim. Who waits for the key waits on.
    fn withdraw_offers(&mut self, claim: LeaseId, out: &mut Effects) {
        let offered: Vec<_> = self.waiters.offered(claim).map(|(no, _)| no).collect();
        for no in offered {
            if self.waiters.get(no).is_some_and(|it| it.want.waits()) {
                self.waiters.set_role(no, Role::InLine);
            } else {
                self.refuse(no, self.held_here(claim), out);
            }
        }
    }

    /// Lets others have what was offered to those that have not taken it for too long.
    pub(super) fn pass_over_silent(&mut self, now: Instant, out: &mut Effects) {
        for no in self.waiters.silent(now) {
            let waiter = self.waiters.get(no).map(|it| (it.role, it.want.waits()));
            if let Some((Role::Offered(claim, _), false)) = waiter {
                self.refuse(no, self.held_here(claim), out);
            } else {
                self.waiters.pass_over(no, now);
            }
        }
    }

    /// Adds a lease that a ticket continues, with its only guard. The lease may be known. `None` if this process is about
    /// to release it.
    pub(crate) fn resume(&mut self, lease: &Arc<LeaseState>, now: Instant) -> Option<Granted> {
        let request = lease.request().clone();
        if self.claim(lease.id()).is_none() {
            let phase = Phase::GivenAway(lease.clone());
            self.add(Claim::new(request.clone(), phase));
        }
        let known = self.claim_mut(lease.id())?;
        if let Phase::GivenAway(_) = known.phase {
            // The ticket comes back to the process that made it, or comes from another one. Otherwise it is resumed twice.
            known.phase = Phase::Held(Holding::new(lease.clone(), 1, Serving::Over));
        }
        let holding = known.holding_mut()?;
        let (mode, fence) = lease.mode_and_fence();
        let of = (holding.lease.clone(), fence, true);
        let state = LeaseState::guard(of, request.clone(), now);
        state.converted_to(mode, fence);
        holding.push(state.clone());
        known.request = request;
        (known.stays_for, known.memory) = (None, FromMemory::Never);
        let is_first = true;
        Some(Granted { state, is_first })
    }
}
