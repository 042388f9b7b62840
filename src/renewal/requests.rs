//! The renewal of several leases in one call.

use std::sync::{Arc, Weak};

use super::{
    schedule::{Batch, BatchId, RenewalOutcome},
    task::RenewalTask,
};
use crate::{
    lease_state::{LeaseNumber, LeaseState},
    messages::{RenewRequest, renewal_left_out},
    model::Error,
    runtime::{self, suspension::SentAt},
    store::Store,
    telemetry,
};

/// The leases of a batch. They are not kept in memory, because a guard may be dropped before the store has answered.
type Leases = Vec<(LeaseNumber, Weak<LeaseState>)>;

/// The outcomes of a batch. Its drop passes them to the schedule, also if the call is dropped with its runtime.
struct BatchReport {
    batch: BatchId,
    outcomes: Vec<(LeaseNumber, RenewalOutcome)>,
    task: Weak<RenewalTask>,
}

impl Drop for BatchReport {
    fn drop(&mut self) {
        if let Some(task) = self.task.upgrade() {
            task.answered(self.batch, &self.outcomes);
        }
    }
}

impl RenewalTask {
    /// Sends a batch, without the leases that need no renewal.
    pub(super) fn send(self: &Arc<Self>, batch: Batch<Weak<LeaseState>>) {
        let (mut requests, mut leases, mut over) = (Vec::new(), Leases::new(), Vec::new());
        let mut outcomes = Vec::new();
        for (number, of) in batch.leases {
            match of.upgrade() {
                // The holder has renewed the lease by a call of its own, and it is live until its maximum hold is over.
                Some(lease) if lease.is_kept_alive() && lease.reaches_end() => {
                    outcomes.push((number, RenewalOutcome::Final(lease.deadline())));
                }
                Some(lease) if lease.is_kept_alive() => {
                    requests.push(lease.begin_renewal());
                    leases.push((number, of));
                }
                lost => {
                    over.extend(lost);
                    outcomes.push((number, RenewalOutcome::Lost));
                }
            }
        }
        let report = BatchReport {
            batch: batch.id,
            outcomes,
            task: Arc::downgrade(self),
        };
        if requests.is_empty() {
            drop(report);
        } else {
            let sent = requests.len();
            // A runtime that is ending drops the work.
            let _ = runtime::spawn(renew(self.store.clone(), requests, leases, report));
            telemetry::renewals_sent(sent, batch.lag);
        }
        over.iter().for_each(|lease| lease.check_loss());
    }
}

/// Renews the leases in one call, and applies each answer to its lease. A lease that was dropped meanwhile counts as
/// lost. A subscriber that panics in the event of one lease loses the outcome of no other.
async fn renew(
    store: Arc<dyn Store>,
    requests: Vec<RenewRequest>,
    leases: Leases,
    mut report: BatchReport,
) {
    let sent = SentAt::now();
    let answers = runtime::caught(store.renew(&requests)).await;
    let answers = answers.unwrap_or_else(|error| vec![Err(error); requests.len()]);
    // A call counts once, however many of its renewals have failed.
    if let Some(error) = answers.iter().find_map(|answer| answer.as_ref().err()) {
        telemetry::store_failed("renew", None, error);
    }
    let mut answers = answers.into_iter();
    telemetry::for_each(leases, |(number, lease)| {
        let answer = answers.next().unwrap_or_else(|| Err(renewal_left_out()));
        let renewed = lease
            .upgrade()
            .map(|it| (it.apply_renewal(sent, answer), it));
        let outcome = match renewed {
            Some((Ok(()), lease)) if lease.reaches_end() => RenewalOutcome::Final(lease.deadline()),
            Some((Ok(()), lease)) => RenewalOutcome::Renewed(lease.deadline()),
            Some((Err(Error::Lost { .. }), _)) | None => RenewalOutcome::Lost,
            // A renewal without an outcome counts as failed.
            Some((Err(_), _)) => return,
        };
        report.outcomes.push((number, outcome));
    });
}
