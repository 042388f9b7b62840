//! `RenewalTask`: renews leases.

use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use tokio::time::Instant;

use super::{
    inbox::RenewalInbox,
    overload::Overload,
    requests::{self, renew},
    schedule::{Batch, BatchId, Due, RenewalOutcome},
};
use crate::{
    lease_state::{LeaseNumber, LeaseState, timing},
    model::Error,
    runtime::{self, timers::Look},
    store::Store,
    telemetry,
};

/// The task. It never waits for an answer of the store, so a request that hangs does not delay other leases.
pub(super) struct RenewalTask {
    pub(super) store: Arc<dyn Store>,
    pub(super) inbox: Arc<RenewalInbox>,
    pub(super) overload: Mutex<Overload>,
}

impl RenewalTask {
    /// Does what is due now, and says when the next look is due. If a subscriber of the application panics in an event,
    /// what was due was sent before.
    pub(super) fn look(&self) -> Look {
        let now = Instant::now();
        let due = self.inbox.with(|work| work.take_due(now));
        self.renew(due, now);
        let findings = self
            .inbox
            .with(|work| self.overload.lock().update(&work.schedule, now));
        findings.report();
        self.inbox.plan()
    }

    /// Does what is due. A subscriber that panics in the event of one lease keeps no other from it.
    fn renew(&self, due: Due<Weak<LeaseState>>, now: Instant) {
        let overdue = due.overdue.iter().filter_map(Weak::upgrade);
        let expired = due.expired.iter().filter_map(Weak::upgrade);
        let steps = overdue.map(Step::Overdue).chain(expired.map(Step::Expired));
        let steps = steps.chain(due.batches.into_iter().map(Step::Send));
        let mut is_reported = false;
        telemetry::for_each(steps, |step| match step {
            Step::Overdue(lease) => {
                let error = Error::TimedOut {
                    store: self.store.name(),
                    operation: "renew",
                    limit: timing::response_timeout(lease.ttl()),
                };
                if !std::mem::replace(&mut is_reported, true) {
                    telemetry::store_failed("renew", None, &error);
                }
                lease.failed(error);
            }
            // If the lease is still live, the holder has renewed it by a call of its own, which the schedule does not
            // know.
            Step::Expired(lease) if lease.is_kept_alive() => {
                self.inbox.with(|work| work.plan(&lease, now));
            }
            Step::Expired(lease) => lease.check_loss(),
            Step::Send(batch) => self.send(batch),
        });
    }

    fn send(&self, batch: Batch<Weak<LeaseState>>) {
        let (mut leases, mut over) = (Vec::with_capacity(batch.leases.len()), Vec::new());
        let mut outcomes = Vec::new();
        for (number, lease) in batch.leases {
            match lease.upgrade() {
                // The holder has renewed the lease by a call of its own, and it is live until its maximum hold is over.
                Some(lease) if lease.is_kept_alive() && lease.reaches_end() => {
                    outcomes.push((number, RenewalOutcome::Final(lease.deadline())));
                }
                Some(lease) if lease.is_kept_alive() => leases.push(lease),
                lost => {
                    over.extend(lost);
                    outcomes.push((number, RenewalOutcome::Lost));
                }
            }
        }
        let mut answered = BatchReport {
            batch: batch.id,
            outcomes,
            inbox: self.inbox.clone(),
        };
        if leases.is_empty() {
            drop(answered);
        } else {
            let renewals = requests::Renewals::of(&leases);
            let store = self.store.clone();
            // A runtime that is ending drops the work.
            let _ = runtime::spawn(async move {
                renew(&*store, renewals, &mut answered.outcomes).await;
            });
            telemetry::renewals_sent(leases.len(), batch.lag);
        }
        over.iter().for_each(|lease| lease.check_loss());
    }
}

/// What is due.
enum Step {
    /// A renewal was not answered in time.
    Overdue(Arc<LeaseState>),
    Expired(Arc<LeaseState>),
    Send(Batch<Weak<LeaseState>>),
}

/// Passes the outcomes of a batch to the schedule when it is dropped, also if the call is dropped with its runtime.
struct BatchReport {
    batch: BatchId,
    outcomes: Vec<(LeaseNumber, RenewalOutcome)>,
    inbox: Arc<RenewalInbox>,
}

impl Drop for BatchReport {
    fn drop(&mut self) {
        self.inbox.answered(self.batch, &self.outcomes);
    }
}

impl Drop for RenewalTask {
    fn drop(&mut self) {
        // Nobody looks any more, and the handle has gone.
        self.inbox.timers.end();
    }
}
