//! The outcomes of a batch: when each of its leases is renewed next.

use tokio::time::Instant;

use super::{BatchId, RenewalOutcome, RenewalState, Schedule};
use crate::{
    lease_state::{LeaseNumber, timing},
    retry,
};

/// Batches are sent earlier than due by up to the period divided by this, so that they drift apart.
const DRIFT: u32 = 8;

impl<T: Clone> Schedule<T> {
    /// Applies the outcomes of a batch. A lease of the batch without an outcome has failed. `chance` is a random number
    /// from 0 to 1. It is the same for all leases of a batch, so that they are renewed together again.
    pub(crate) fn answered(
        &mut self,
        batch: BatchId,
        outcomes: &[(LeaseNumber, RenewalOutcome)],
        now: Instant,
        chance: f64,
    ) {
        let answered = self.under_way.remove(&batch);
        let leases = answered.iter().flat_map(|answered| &answered.leases);
        let first_deadline = leases
            .filter_map(|id| Some(self.leases.get(id)?.deadline))
            .min();
        let sent = answered.as_ref().map_or(now, |answered| answered.sent);
        for (id, outcome) in outcomes {
            match *outcome {
                RenewalOutcome::Renewed(deadline) => self.renewed(*id, sent, deadline, chance),
                RenewalOutcome::Final(deadline) => {
                    self.extend(*id, RenewalState::Final, deadline, deadline);
                }
                RenewalOutcome::Lost => drop(self.remove(*id)),
            }
        }
        let Some(answered) = answered else {
            return;
        };
        // An error says nothing about how many leases the store can renew. A batch that was overdue has no leases here, and
        // does not shrink the window again: it did when it became overdue.
        if answered.is_overdue || !outcomes.is_empty() {
            let (leases, target) = (answered.leases.len(), timing::slack(answered.ttl));
            self.window.answered(leases, answered.sent, now, target);
        }
        for (_, earlier) in self.under_way.range_mut(..batch) {
            earlier.overtaken += 1;
        }
        // The leases that have failed stay together, so they share the time that is left for the first of them.
        let left = first_deadline.unwrap_or(now).saturating_duration_since(now);
        for id in answered.leases {
            if let Some(entry) = self.leases.get_mut(&id)
                && entry.state == RenewalState::Sent(batch)
            {
                let longest = timing::max_retry_pause(entry.ttl, left);
                let pause = retry::pause(entry.errors, longest, chance);
                entry.errors = entry.errors.saturating_add(1);
                self.set_state(id, RenewalState::Planned, now + pause);
            }
        }
    }

    /// Plans the next renewal, counted from the instant at which this one was sent.
    fn renewed(&mut self, id: LeaseNumber, sent: Instant, deadline: Instant, chance: f64) {
        let Some(entry) = self.leases.get(&id) else {
            return;
        };
        let deadline = entry.deadline.max(deadline);
        let period = timing::renewal_period(entry.ttl);
        let mut due = sent + period;
        if self.leases.len() > self.window.size() {
            due -= (period / DRIFT).mul_f64(chance.clamp(0.0, 1.0));
        }
        self.extend(id, RenewalState::Planned, due, deadline);
    }

    /// Records that a lease is live until this deadline.
    fn extend(&mut self, id: LeaseNumber, state: RenewalState, due: Instant, deadline: Instant) {
        self.set_state(id, state, due);
        if let Some(entry) = self.leases.get_mut(&id) {
            (entry.deadline, entry.errors) = (deadline, 0);
        }
    }
}
