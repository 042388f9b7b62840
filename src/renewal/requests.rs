//! The renewal of several leases in one call.

use std::sync::{Arc, Weak};

use super::schedule::RenewalOutcome;
use crate::{
    lease_state::{LeaseNumber, LeaseState},
    messages::{RenewRequest, renewal_left_out},
    model::Error,
    runtime::{self, suspension::SentAt},
    store::Store,
    telemetry,
};

/// The renewals of one batch. They do not keep the leases in memory, because a guard may be dropped before the store
/// has answered.
pub(super) struct Renewals {
    requests: Vec<RenewRequest>,
    leases: Vec<(LeaseNumber, Weak<LeaseState>)>,
}

impl Renewals {
    pub(super) fn of(leases: &[Arc<LeaseState>]) -> Self {
        Self {
            requests: leases.iter().map(|lease| lease.begin_renewal()).collect(),
            leases: leases
                .iter()
                .map(|lease| (lease.number(), Arc::downgrade(lease)))
                .collect(),
        }
    }
}

/// Renews the leases in one call, and applies each answer to its lease. A lease that was dropped meanwhile counts as
/// lost. A subscriber that panics in the event of one lease loses the outcome of no other.
pub(super) async fn renew(
    store: &dyn Store,
    renewals: Renewals,
    outcomes: &mut Vec<(LeaseNumber, RenewalOutcome)>,
) {
    let Renewals { requests, leases } = renewals;
    let sent = SentAt::now();
    let answers = runtime::caught(store.renew(&requests)).await;
    // A call counts once, however many of its renewals have failed.
    let error = match &answers {
        Ok(answers) => answers.iter().find_map(|answer| answer.as_ref().err()),
        Err(error) => Some(error),
    };
    if let Some(error) = error {
        telemetry::store_failed("renew", None, error);
    }
    let mut answers = answers.map(Vec::into_iter);
    telemetry::for_each(
        leases,
        |(number, lease): (LeaseNumber, Weak<LeaseState>)| {
            let answer = match &mut answers {
                Ok(answers) => answers.next().unwrap_or_else(|| Err(renewal_left_out())),
                Err(error) => Err(error.clone()),
            };
            let outcome = lease
                .upgrade()
                .map(|lease| match lease.apply_renewal(sent, answer) {
                    Ok(()) if lease.reaches_end() => RenewalOutcome::Final(lease.deadline()),
                    Ok(()) => RenewalOutcome::Renewed(lease.deadline()),
                    Err(Error::Lost { .. }) => RenewalOutcome::Lost,
                    Err(_) => RenewalOutcome::Failed,
                });
            outcomes.push((number, outcome.unwrap_or(RenewalOutcome::Lost)));
        },
    );
}
