//! What is asked of a store for a lease that somebody has: renewals and conversions.

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;

use super::{Renewal, call};
use crate::{
    Cause, ConvertAnswer, ConvertRequest, Error, Held, LossReason, Mode, RenewAnswer, RenewAnswers,
    Store, calls::caught, hold::Hold, leases::Shared, observe, record::LeaseId,
};

/// Renews leases with one call, at this instant, and tells each what came of it.
pub(super) async fn renew(
    store: &dyn Store,
    holds: &[Arc<Hold>],
    sent: Instant,
) -> Vec<(LeaseId, Renewal)> {
    let requests: Vec<_> = holds.iter().map(|hold| hold.renewal()).collect();
    let answers = caught(store.renew(&requests)).await;
    let answers = answers.inspect_err(|error| observe::store_failed("renew", None, error));
    let mut answers = answers.map(Vec::into_iter);
    let outcome = |hold: &Arc<Hold>| {
        let answer = match &mut answers {
            Ok(answers) => answers.next().unwrap_or_else(|| Err(left_out())),
            Err(error) => Err(error.clone()),
        };
        let renewal = match hold.take_in(sent, answer) {
            Ok(()) => Renewal::Done,
            Err(Error::Lost { .. }) => Renewal::Lost,
            Err(_) => Renewal::Failed,
        };
        (hold.id(), renewal)
    };
    holds.iter().map(outcome).collect()
}

/// Renews one lease for somebody who waits for it.
pub(crate) async fn renew_now(
    store: Arc<dyn Store>,
    hold: Arc<Hold>,
    limit: Duration,
) -> Result<(), Error> {
    let renewed = hold.clone();
    let outcome = call("renew", limit, async move {
        let sent = Instant::now();
        let answers = caught(store.renew(&[renewed.renewal()])).await;
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
    call("convert", limit, async move {
        match caught(shared.store.convert(&request)).await? {
            ConvertAnswer::Converted(grant) => {
                hold.converted(request.mode, grant.fence);
                if request.mode == Mode::Shared {
                    shared.room.opened(hold.key());
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
