//! How a claim that nobody wants ends: what its requests may have been granted is released, and its place is given up after
//! the last answer.
//!
//! A release that the server carries out before an acquire request does not undo that request. So there is a release
//! after each answer that may be a grant, and again if no answer came in time.

use tokio::time::Instant;

use super::{
    call::PolledCall,
    claim::{Claim, Left, Phase, Settlement},
    effect::{Effect, Effects},
    place::OwnPlace,
    state::KeyState,
};
use crate::model::{Held, LeaseId};

impl KeyState {
    /// Nobody wants this claim any more.
    pub(super) fn settle(&mut self, lease: LeaseId, now: Instant, out: &mut Effects) {
        if self.of_line() == Some(lease) {
            self.line.end_wait();
            self.line.place = OwnPlace::new();
        }
        let (call_timeout, at_work) = (self.call_timeout, self.at_work.token());
        let Some(claim) = self.claim_mut(lease) else {
            return;
        };
        claim.at_work = Some(at_work);
        // A request that may still be carried out may take a place.
        let (left, is_unclear) = (claim.sent.left, claim.sent.left == Left::Request);
        claim.sent.has_place |= claim.is_in_turn() && is_unclear;
        claim.phase = Phase::Settling(Settlement::begin(call_timeout, claim.request.ttl, now));
        claim.sent.withdraw(out);
        claim.sent.spawn(now, out);
        if left != Left::Nothing {
            self.release_settling(lease, is_unclear, out);
        }
    }

    /// Releases the leases that keep a task of this process from the key, and that nobody of it wants: a request that was
    /// late was granted them.
    pub(super) fn release_leftovers(&mut self, held: &Held, out: &mut Effects) {
        for holder in held.holders() {
            // One more release beside one that waits until no request is late any more.
            let is_left =
                |claim: &Claim| matches!(&claim.phase, Phase::Settling(it) if it.releases <= 1);
            if self.claim(holder.lease).is_some_and(is_left) {
                self.release_settling(holder.lease, false, out);
            }
        }
    }

    /// Releases what a claim that nobody wants may have left, and again if a request may be late.
    pub(super) fn release_settling(&mut self, lease: LeaseId, maybe_late: bool, out: &mut Effects) {
        let Some(claim) = self.claim_mut(lease) else {
            return;
        };
        if let Phase::Settling(settling) = &mut claim.phase {
            settling.releases += 1;
            out.push(Effect::Settle(claim.request.clone(), maybe_late));
        }
    }

    /// A release for a settlement is done, or was given up.
    pub(super) fn settled(&mut self, lease: LeaseId, out: &mut Effects) {
        let Some(Phase::Settling(settling)) = self.claim_mut(lease).map(|claim| &mut claim.phase)
        else {
            return;
        };
        settling.releases = settling.releases.saturating_sub(1);
        if settling.releases == 0 && std::mem::take(&mut settling.is_due) {
            self.release_settling(lease, true, out);
        }
    }

    /// The place of a claim was given up.
    pub(super) fn place_left(&mut self, lease: LeaseId) {
        let Some(Phase::Settling(settling)) = self.claim_mut(lease).map(|it| &mut it.phase) else {
            return;
        };
        // The next step of the settlement forgets the claim, unless a release is under way.
        settling.leaves = false;
    }

    /// The release of a lease is done, or was given up.
    pub(super) fn released(&mut self, lease: LeaseId, now: Instant, out: &mut Effects) {
        // The release for a settlement frees the key too.
        self.wake(now);
        let claim = self.claim(lease);
        if !claim.is_some_and(|it| matches!(it.phase, Phase::Releasing { .. })) {
            return;
        }
        // If nothing else is left of it, the next step of the settlement forgets it.
        self.settle(lease, now, out);
        self.attempt_after(lease, now, out);
    }

    /// Lets the caller poll the release of this lease by this call. Returns whether the caller may: no other task depends
    /// on the release.
    pub(crate) fn poll_release_here(&mut self, lease: LeaseId, call: &PolledCall) -> bool {
        let nobody_waits = self.waiters.is_empty() && !self.facts.is_closing;
        match self.claim_mut(lease) {
            Some(claim) if nobody_waits && matches!(claim.phase, Phase::Releasing { .. }) => {
                claim.release = Some(call.clone());
                true
            }
            _ => false,
        }
    }

    /// Lets tasks of their own poll the releases that began by this instant: another task depends on them, or their
    /// callers may have left them unpolled.
    pub(super) fn spawn_releases(&mut self, before: Instant, out: &mut Effects) {
        for claim in &mut self.claims {
            if matches!(claim.phase, Phase::Releasing { since, .. } if since <= before) {
                out.extend(claim.release.take().map(Effect::SpawnRelease));
            }
        }
    }

    /// Takes the next steps of the settlements.
    pub(super) fn settle_due(&mut self, now: Instant, out: &mut Effects) {
        let mut releases = Vec::new();
        self.claims.retain_mut(|claim| {
            let lease = claim.lease();
            let has_requests = !claim.sent.under_way.is_empty();
            match &mut claim.phase {
                Phase::Settling(settling) => {
                    if settling.end.take_if(|end| now >= *end).is_some() {
                        claim.at_work = None;
                    }
                    if has_requests && settling.take_timed_release(now) {
                        // More releases at the same time would only make a slow server slower.
                        settling.is_due |= settling.releases > 0;
                        if settling.releases == 0 {
                            settling.releases = 1;
                            releases.push(Effect::Settle(claim.request.clone(), true));
                        }
                    }
                    if !has_requests && !settling.leaves {
                        // It does not wait for the releases, which may go on for long.
                        settling.leaves = std::mem::take(&mut claim.sent.has_place);
                        out.extend(settling.leaves.then_some(Effect::LeavePlace(lease)));
                    }
                    has_requests || settling.leaves || settling.releases > 0
                }
                Phase::GivenAway(_) if !has_requests => {
                    out.extend(claim.sent.has_place.then_some(Effect::LeavePlace(lease)));
                    false
                }
                _ => true,
            }
        });
        out.extend(releases);
    }
}
