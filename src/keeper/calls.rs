//! What is asked of a store for a lease that somebody has: renewals and conversions.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use tokio::time::Instant;

use crate::runtime;
use crate::{
    hold::Hold,
    leases::Shared,
    messages::{ConvertAnswer, ConvertRequest, RenewAnswer, RenewAnswers, RenewRequest},
    model::{Cause, Error, Held, LeaseId, LossReason, Mode},
    schedule::Outcome,
    store::Store,
    telemetry,
};

/// What is asked for leases that are renewed together. It keeps none of them: a guard may be gone before the
/// store has answered.
pub(super) struct Renewals {
    requests: Vec<RenewRequest>,
    holds: Vec<Weak<Hold>>,
}

impl Renewals {
    pub(super) fn of(holds: &[Arc<Hold>]) -> Self {
        Self {
            requests: holds.iter().map(|hold| hold.renewal()).collect(),
            holds: holds.iter().map(Arc::downgrade).collect(),
        }
    }
}

/// Renews leases with one call, and tells each what came of it.
pub(super) async fn renew(store: &dyn Store, renewals: Renewals) -> Vec<(LeaseId, Outcome)> {
    let Renewals { requests, holds } = renewals;
    let sent = Instant::now();
    let answers = runtime::caught(store.renew(&requests)).await;
    let answers = answers.inspect_err(|error| telemetry::store_failed("renew", None, error));
    let mut answers = answers.map(Vec::into_iter);
    let outcome = |(request, hold): (RenewRequest, Weak<Hold>)| {
        let answer = match &mut answers {
            Ok(answers) => answers.next().unwrap_or_else(|| Err(left_out())),
            Err(error) => Err(error.clone()),
        };
        let outcome = hold.upgrade().map(|hold| match hold.take_in(sent, answer) {
            Ok(()) => Outcome::Renewed(hold.deadline()),
            Err(Error::Lost { .. }) => Outcome::Lost,
            Err(_) => Outcome::Failed,
        });
        (request.lease, outcome.unwrap_or(Outcome::Lost))
    };
    requests.into_iter().zip(holds).map(outcome).collect()
}

/// Renews one lease for somebody who waits for it.
pub(crate) async fn renew_now(
    store: Arc<dyn Store>,
    hold: Arc<Hold>,
    limit: Duration,
) -> Result<(), Error> {
    let renewed = hold.clone();
    let outcome = runtime::call("renew", limit, async move {
        let sent = Instant::now();
        let answers = runtime::caught(store.renew(&[renewed.renewal()])).await;
        renewed.take_in(sent, only(answers))
    })
    .await;
    if let Err(error @ Error::TimedOut { .. }) = &outcome {
        hold.failed(error.clone());
    }
    outcome
}

/// Converts one lease, and gives back who is in the way.
pub(crate) async fn convert(
    shared: Arc<Shared>,
    hold: Arc<Hold>,
    request: ConvertRequest,
    limit: Duration,
) -> Result<Option<Held>, Error> {
    if request.mode == Mode::Exclusive {
        hold.upgrades();
    }
    runtime::call("convert", limit, async move {
        match runtime::caught(shared.store.convert(&request)).await? {
            ConvertAnswer::Converted(grant) => {
                hold.converted(request.mode, grant.fence);
                if request.mode == Mode::Shared {
                    shared.queues.opened(hold.key());
                }
                Ok(None)
            }
            ConvertAnswer::Held(held) => Ok(Some(held)),
            ConvertAnswer::Expired => Err(hold.lost_error(hold.lose(LossReason::Expired))),
            ConvertAnswer::TakenOver => Err(hold.lost_error(hold.lose(LossReason::TakenOver))),
        }
    })
    .await
}

/// The answer to a single renewal.
pub(crate) fn only(answers: Result<RenewAnswers, Error>) -> Result<RenewAnswer, Error> {
    answers?.pop().unwrap_or_else(|| Err(left_out()))
}

fn left_out() -> Error {
    Error::Store {
        store: "the store",
        source: Cause::text("it left a renewal without an answer"),
    }
}
