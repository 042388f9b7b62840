//! Calls to the store that belong to no lease of this client: inspect, list, evict, purge and others.

use std::sync::Arc;

use tracing::Instrument;

use crate::{
    key::Keys,
    model::{Error, Key, LockState},
    store::Store,
    telemetry,
};

/// Makes one call with the call timeout, in a task that outlives this future, and reports its span and event.
pub(super) async fn call<T, F>(
    keys: &Keys,
    operation: &'static str,
    key: Option<&Key>,
    work: impl FnOnce(Arc<dyn Store>) -> F,
) -> Result<T, Error>
where
    T: Send + 'static,
    F: Future<Output = Result<T, Error>> + Send + 'static,
{
    let span = telemetry::call(operation, key);
    let call = keys.call(operation, keys.call_timeout(), work);
    let end = call.instrument(span.clone()).await;
    telemetry::called(&span, operation, key, &end);
    end
}

/// The state of a key.
pub(super) async fn inspect(keys: &Keys, key: Key) -> Result<Option<LockState>, Error> {
    let named = key.clone();
    let work = async move |store: Arc<dyn Store>| store.inspect(&key).await;
    call(keys, "inspect", Some(&named), work).await
}
