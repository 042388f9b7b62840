//! A call to the store that has no guard.

use std::sync::Arc;

use tracing::Instrument;

use crate::{
    lease::LeaseRegistry,
    model::{Error, Key},
    runtime,
    store::Store,
    telemetry,
};

/// Makes one call, about this key if it is about one, and tells of it.
pub(super) async fn call<T, F>(
    registry: &LeaseRegistry,
    operation: &'static str,
    key: Option<&Key>,
    work: impl FnOnce(Arc<dyn Store>) -> F,
) -> Result<T, Error>
where
    T: Send + 'static,
    F: Future<Output = Result<T, Error>> + Send + 'static,
{
    let (store, call_timeout) = (registry.store.clone(), registry.call_timeout);
    let span = telemetry::call(operation, key);
    let call = runtime::call(operation, call_timeout, work(store));
    let end = call.instrument(span.clone()).await;
    telemetry::called(&span, operation, key, &end);
    end
}
