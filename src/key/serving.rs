//! Which task gets a guard from memory, and when a lease goes back.

use tokio::time::Instant;

use super::{
    claim::{Claim, Phase},
    effect::{Effect, Report},
    holding::{AtEnd, Holding, Serving},
    state::{Effects, KeyState},
    want::{FromMemory, Want},
};
use crate::{
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
}

impl KeyState {
    /// Where a task gets what it wants, and whether it can have a guard under this claim now.
    pub(super) fn fit_of(&self, claim: &Claim, want: &Want, now: Instant) -> (Fit, bool) {
        let holding = claim.holding();
        let Some(holding) = holding.filter(|it| it.serves(want.request.ttl, now)) else {
            return (Fit::After, false);
        };
        let offered = self.waiters.offered(claim.lease());
        let offered = offered.map(|(_, waiter)| waiter.want.access().mode());
        let has_room = holding.has_room(want.access().mode(), offered);
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
        let Some(claim) = self.claim_mut(lease) else {
            return;
        };
        let Some(holding) = claim.holding() else {
            return;
        };
        let is_given_away = match holding.at_end {
            AtEnd::Release => false,
            AtEnd::GiveAway => true,
            AtEnd::GiveAwayUntil(until) => now < until,
        };
        let state = claim.lease_state.clone();
        if is_given_away {
            claim.phase = Phase::GivenAway(holding.acquired_at);
            out.extend(state.map(Effect::Detach));
            // The first waiter may not listen to the store yet.
            return self.wake(now);
        }
        // The release knows of what was unclear before it, and is repeated.
        claim.sent.is_unclear = false;
        claim.phase = Phase::Releasing {
            since: now,
            is_granted_again: false,
        };
        // A close waits for it from now on, also before it has begun.
        out.push(Effect::Bind(lease));
        out.extend(state.map(Effect::GiveBack));
    }

    /// Removes the guards that have outlived their ttl, so that others can have the key.
    pub(super) fn drop_expired(&mut self, now: Instant, out: &mut Effects) {
        for claim in &mut self.claims {
            let expired = claim.holding_mut().map(|holding| holding.take_expired(now));
            let expired = expired.unwrap_or_default();
            if let Some(lease) = claim.lease_state.as_ref().filter(|_| !expired.is_empty()) {
                let mut guards = lease.guards();
                guards.retain(|guard| expired.contains(&guard.number()));
                out.push(Effect::Report(Report::Lost(guards)));
            }
        }
    }
}
