//! Sends a request again, alone, if its batch is not answered in time.

use std::{future::pending, pin::pin, time::Duration};

use futures::future::{Either, select};
use tokio::{sync::oneshot, time::sleep};

use crate::{
    model::{Error, Key, LeaseId},
    runtime::in_flight::{Answer, Call, Progress},
    telemetry,
};

/// How long a request waits for the answer to its batch before it is sent again.
const OVERDUE: Duration = Duration::from_secs(1);

/// Makes a call again.
pub(super) struct Repeat<A>(Box<dyn FnOnce() -> Call<A> + Send>);

impl<A> Repeat<A> {
    pub(super) fn new(
        operation: &'static str,
        key: &Key,
        lease: LeaseId,
        call: impl FnOnce() -> Call<A> + Send + 'static,
    ) -> Self {
        let key = key.clone();
        Self(Box::new(move || {
            let late = Error::TimedOut {
                operation,
                limit: OVERDUE,
            };
            telemetry::store_failed(operation, Some((&key, lease)), &late);
            call()
        }))
    }
}

/// Waits for an answer. If the call may be repeated, it waits no longer than [`OVERDUE`] after the request was sent in
/// a batch.
pub(super) async fn in_time<A: Send + 'static>(
    answer: impl Future<Output = Answer<A>> + Send + 'static,
    went: oneshot::Receiver<()>,
    repeat: Option<Repeat<A>>,
) -> Progress<A> {
    let Some(repeat) = repeat else {
        return Progress::Answered(answer.await);
    };
    let overdue = pin!(async {
        match went.await {
            Ok(()) => sleep(OVERDUE).await,
            // The request is sent alone, so it is never overdue.
            Err(_) => pending().await,
        }
    });
    match select(Box::pin(answer), overdue).await {
        Either::Left((answer, _)) => Progress::Answered(answer),
        Either::Right(((), rest)) => {
            let rest = async move { Progress::Answered(rest.await) };
            Progress::Overdue(Call::new(rest, None), repeat.0)
        }
    }
}
