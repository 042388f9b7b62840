//! How guards come and go under the claims of a key: a waiter takes what it is offered, a guard is given up, converted,
//! or made from a ticket.

use std::sync::Arc;

use tokio::time::Instant;

use super::{
    cell::WaiterNo,
    claim::{Claim, Phase},
    effect::{Departed, Departure},
    guards::Granted,
    holding::{Conversion, Holding, Serving},
    state::{Effects, KeyState},
    waiters::Role,
    want::FromMemory,
};
use crate::{
    lease_state::{LeaseNumber, LeaseState},
    model::LeaseId,
    telemetry::StayEndReason,
};

impl KeyState {
    /// Gives a waiter the guard that it is offered, and says how many processes came first. `None` if it is offered none
    /// any more: it waits on.
    pub(crate) fn take(
        &mut self,
        no: WaiterNo,
        number: LeaseNumber,
        now: Instant,
        out: &mut Effects,
    ) -> Option<(Granted, Option<usize>)> {
        // Its future is polled, so it stands where it stood if it was passed over.
        self.waiters.take_back(no);
        let waiter = self.waiters.get(no)?;
        let Role::Offered(claim, _) = waiter.role else {
            self.advance(now, out);
            return None;
        };
        let (want, ahead) = (waiter.want.clone(), waiter.ahead);
        let (mode, expires) = (want.access().mode(), now + want.request.ttl);
        let taken = self.claim_mut(claim).and_then(|claim| {
            let lease = claim.lease_state.clone()?;
            let holding = claim.holding_mut()?;
            let is_first = !holding.was_taken;
            let fence = match holding.entered(mode, now).map(|guard| guard.fence) {
                Some(fence) if want.request.reentrant => {
                    holding.push(number, mode, fence, expires);
                    fence
                }
                _ if is_first || holding.is_live(now) => holding.take(number, mode, expires)?,
                _ => return None,
            };
            Some((lease, fence, is_first))
        });
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
        let (lease, fence, is_first) = taken?;
        let mut request = want.request;
        if request.lease != lease.id() {
            Arc::make_mut(&mut request).lease = lease.id();
        }
        let state = LeaseState::guard((lease, fence, is_first), request, number, now);
        Some((Granted { state, is_first }, ahead))
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
    pub(crate) fn resume(
        &mut self,
        lease: &Arc<LeaseState>,
        number: LeaseNumber,
        now: Instant,
    ) -> Option<Granted> {
        let request = lease.request().clone();
        let (id, mode, expires) = (request.lease, request.access.mode(), now + request.ttl);
        let mut holding = Holding::new(lease, 1, Serving::Over);
        if self.claim(id).is_none() {
            let phase = Phase::GivenAway(lease.acquired_at());
            self.add(Claim::new(request.clone(), phase));
        }
        let known = self.claim_mut(id)?;
        match &mut known.phase {
            // The ticket comes back to the process that made it, or comes from another one.
            Phase::GivenAway(_) => {
                holding.take(number, mode, expires)?;
                known.phase = Phase::Held(holding);
            }
            // The ticket is resumed twice.
            Phase::Held(holding) => drop(holding.take(number, mode, expires)?),
            _ => return None,
        }
        known.request = request.clone();
        (known.stays_for, known.memory) = (None, FromMemory::Never);
        let has_ended = known.lease_state.as_ref().is_none_or(|it| it.has_ended());
        if has_ended {
            known.lease_state = Some(lease.clone());
        }
        let behind = known.lease_state.clone()?;
        let (mode, fence) = lease.mode_and_fence();
        let state = LeaseState::guard((behind, fence, true), request, number, now);
        state.converted_to(mode, fence);
        let is_first = true;
        Some(Granted { state, is_first })
    }
}
