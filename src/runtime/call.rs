//! Single calls to a store: each in a task of its own, for so long, and whatever happens to that task.

use std::{panic::AssertUnwindSafe, time::Duration};

use futures::FutureExt;
use tokio::{runtime::Handle, task::JoinHandle, time::timeout};

use crate::{
    model::{Cause, Error},
    telemetry,
};

/// Runs a store call in a task of its own and waits for it this long.
///
/// Dropping the returned future, or running out of time, leaves the call running: the MongoDB
/// driver documents that its futures are not cancel safe.
pub(crate) async fn call<T: Send + 'static>(
    operation: &'static str,
    limit: Duration,
    work: impl Future<Output = Result<T, Error>> + Send + 'static,
) -> Result<T, Error> {
    let task = spawn(work)?;
    let outcome = match timeout(limit, task).await {
        Ok(Ok(outcome)) => outcome,
        // The task was killed by a panic in the store or by the end of its runtime.
        Ok(Err(ended)) => Err(Error::Interrupted {
            store: "the store",
            source: ended.into(),
        }),
        Err(_) => Err(Error::TimedOut { operation, limit }),
    };
    outcome.inspect_err(|error| telemetry::store_failed(operation, None, error))
}

pub(crate) fn spawn<T: Send + 'static>(
    work: impl Future<Output = T> + Send + 'static,
) -> Result<JoinHandle<T>, Error> {
    let runtime = Handle::try_current().map_err(|_| Error::NoRuntime)?;
    Ok(runtime.spawn(work))
}

/// A panic in a store is an error, like any other that leaves open what was carried out.
pub(crate) async fn caught<T>(work: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
    let outcome = AssertUnwindSafe(work).catch_unwind().await;
    outcome.unwrap_or_else(|_| {
        Err(Error::Interrupted {
            store: "the store",
            source: Cause::text("it panicked"),
        })
    })
}

/// Why there is no outcome of a task that is over.
pub(crate) fn no_outcome() -> Error {
    Error::Interrupted {
        store: "the store",
        source: Cause::text("its task is over: its runtime ended, or it panicked"),
    }
}

/// Why there is no outcome of what was going on when its runtime ended.
pub(crate) fn ended() -> Error {
    Error::Interrupted {
        store: "the store",
        source: Cause::text("its runtime ended"),
    }
}
