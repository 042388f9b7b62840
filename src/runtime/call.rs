//! Single calls to a store. Each call runs in a task of its own, is waited for until a limit, and ends with an error if
//! it panics.

use std::{panic::AssertUnwindSafe, time::Duration};

use futures::{FutureExt, future};
use tokio::{
    runtime::Handle,
    task::{JoinError, JoinHandle},
    time::timeout,
};

use crate::{
    model::{Cause, Error, Key, LeaseId},
    telemetry,
};

/// Runs a store call in a task of its own, and waits for it until the limit. `name` is the [name](crate::Store::name)
/// of the store.
///
/// Fails with `NoRuntime` outside of a tokio runtime, with `TimedOut` after the limit, and with `Interrupted` if the
/// task ended without an outcome. The call goes on after the limit, and after the returned future is dropped, because
/// the futures of the MongoDB driver are not cancel safe.
pub(crate) async fn call<T: Send + 'static>(
    operation: &'static str,
    limit: Duration,
    name: impl FnOnce() -> String,
    work: impl Future<Output = Result<T, Error>> + Send + 'static,
) -> Result<T, Error> {
    let task = spawn(work)?;
    let outcome = match timeout(limit, task).await {
        Ok(ended) => ended.unwrap_or_else(|error| Err(no_outcome(&error))),
        Err(_) => Err(timed_out(name(), operation, limit)),
    };
    report(operation, None, outcome).await
}

/// Reports the outcome of a call, if it is an error. A subscriber that panics in that event ends no more than a store that
/// [panics](caught) does: the outcome is an error all the same, and what made the call goes on.
pub(crate) fn report<T>(
    operation: &'static str,
    about: Option<(&Key, LeaseId)>,
    outcome: Result<T, Error>,
) -> impl Future<Output = Result<T, Error>> {
    let failed = move |error: &Error| telemetry::store_failed(operation, about, error);
    caught(future::lazy(move |_| outcome.inspect_err(failed)))
}

pub(crate) fn spawn<T: Send + 'static>(
    work: impl Future<Output = T> + Send + 'static,
) -> Result<JoinHandle<T>, Error> {
    let runtime = Handle::try_current().map_err(|_| Error::NoRuntime)?;
    Ok(runtime.spawn(work))
}

/// Turns a panic in a store into an error that leaves open whether the request was carried out.
///
/// (An `async fn` would have the work twice in its future, once as its argument, and this future is a part of every
/// request.)
pub(crate) fn caught<T>(
    work: impl Future<Output = Result<T, Error>>,
) -> impl Future<Output = Result<T, Error>> {
    let outcome = AssertUnwindSafe(work).catch_unwind();
    outcome.map(|outcome| outcome.unwrap_or_else(|_| Err(panicked())))
}

/// The error of an operation whose task gave no outcome.
pub(crate) fn no_outcome(error: &JoinError) -> Error {
    if error.is_panic() {
        panicked()
    } else {
        ended()
    }
}

/// The error of an operation that panicked. It leaves out the message of the panic, which may contain anything, even a
/// credential.
pub(crate) fn panicked() -> Error {
    interrupted("it panicked")
}

/// The error of an operation that was under way when its runtime ended.
pub(crate) fn ended() -> Error {
    interrupted("its runtime ended")
}

/// The error of an operation that was not answered within this time.
pub(crate) fn timed_out(store: String, operation: &'static str, limit: Duration) -> Error {
    Error::TimedOut {
        store,
        operation,
        limit,
    }
}

/// The error of an operation that the store may have carried out, and why that is not known.
pub(crate) fn interrupted(why: &'static str) -> Error {
    Error::Interrupted {
        store: "the store",
        source: Cause::text(why),
    }
}
