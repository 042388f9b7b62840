//! The outcomes of a batch: when each of its leases is renewed next.

use std::time::Duration;

use tokio::time::Instant;

use super::{
    RenewalOutcome, RenewalState, Schedule,
    under_way::{BatchId, InFlightBatch},
};
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
        let sent = answered.as_ref().map_or(now, |answered| answered.sent);
        let left = answered
            .as_ref()
            .map_or(Duration::ZERO, |batch| self.shortest_left(batch, now));
        for (id, outcome) in outcomes {
            match *outcome {
                RenewalOutcome::Renewed(deadline) => self.renewed(*id, sent, deadline, chance),
                RenewalOutcome::Final(deadline) => self.wait_for_end(*id, deadline),
                RenewalOutcome::Failed => self.failed(batch, *id, (now, left), chance),
                RenewalOutcome::Lost => drop(self.remove(*id)),
            }
        }
        let Some(answered) = answered else {
            return;
        };
        self.measure(&answered, outcomes, now);
        for (_, earlier) in self.under_way.range_mut(..batch) {
            earlier.overtaken += 1;
        }
        for id in answered.leases {
            self.failed(batch, id, (now, left), chance);
        }
    }

    /// How much is left until the first lease of this batch is lost.
    fn shortest_left(&self, batch: &InFlightBatch, now: Instant) -> Duration {
        let entries = batch.leases.iter().filter_map(|id| self.leases.get(id));
        let first = entries.map(|entry| entry.deadline).min();
        first.map_or(Duration::ZERO, |first| first.saturating_duration_since(now))
    }

    fn measure(
        &mut self,
        batch: &InFlightBatch,
        outcomes: &[(LeaseNumber, RenewalOutcome)],
        now: Instant,
    ) {
        let elapsed = now.saturating_duration_since(batch.sent);
        let answered = |(_, outcome): &(_, RenewalOutcome)| *outcome != RenewalOutcome::Failed;
        if batch.is_overdue {
            // This batch already shrank the window when it became overdue.
            self.window.observe(elapsed);
        } else if outcomes.iter().any(answered) {
            // An error says nothing about how many leases the store can renew.
            let (leases, target) = (batch.leases.len(), timing::slack(batch.ttl));
            self.window.answered(leases, batch.sent, now, target);
        }
    }

    /// Plans the next renewal, counted from the instant at which this one was sent.
    fn renewed(&mut self, id: LeaseNumber, sent: Instant, deadline: Instant, chance: f64) {
        let spread = self.leases.len() > self.window.size();
        let Some(entry) = self.leases.get_mut(&id) else {
            return;
        };
        self.ready.remove(entry.deadline, id, entry.ttl);
        entry.deadline = entry.deadline.max(deadline);
        entry.errors = 0;
        let period = timing::renewal_period(entry.ttl);
        let earlier = if spread {
            (period / DRIFT).mul_f64(chance.clamp(0.0, 1.0))
        } else {
            Duration::ZERO
        };
        self.set_state(id, RenewalState::Planned, sent + period - earlier);
    }

    /// Makes a lease final: it is not renewed any more, and stays in the schedule until its deadline.
    fn wait_for_end(&mut self, id: LeaseNumber, deadline: Instant) {
        let Some(entry) = self.leases.get_mut(&id) else {
            return;
        };
        self.ready.remove(entry.deadline, id, entry.ttl);
        entry.deadline = deadline;
        entry.errors = 0;
        self.set_state(id, RenewalState::Final, deadline);
    }

    /// Plans the next try of a renewal that has failed, after a pause. `left` is how much is left until the first lease
    /// of the batch is lost: the leases of a batch stay together.
    fn failed(
        &mut self,
        batch: BatchId,
        id: LeaseNumber,
        (now, left): (Instant, Duration),
        chance: f64,
    ) {
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
