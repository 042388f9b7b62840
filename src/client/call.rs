//! A call to the store that has no guard.

use std::{sync::Arc, time::Duration};

use tracing::Instrument;

use crate::{
    model::{Error, Key},
    runtime,
    store::Store,
    telemetry,
};

/// Makes one call, about this key if it is about one, and tells of it.
pub(super) async fn call<T, F>(
    (store, limit): (Arc<dyn Store>, Duration),
    operation: &'static str,
    key: Option<&Key>,
    work: impl FnOnce(Arc<dyn Store>) -> F,
) -> Result<T, Error>
where
    T: Send + 'static,
    F: Future<Output = Result<T, Error>> + Send + 'static,
{
    let span = telemetry::call(operation, key);
    let call = runtime::call(operation, limit, work(store));
    let end = call.instrument(span.clone()).await;
    telemetry::called(&span, operation, key, &end);
    end
}
