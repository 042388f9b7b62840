//! A call to the store that has no guard.

use std::sync::Arc;

use tracing::Instrument;

use super::Leases;
use crate::{
    model::{Error, Key},
    runtime,
    store::Store,
    telemetry,
};

impl Leases {
    /// Makes one call, about this key if it is about one, and tells of it.
    pub(super) async fn call<T, F>(
        &self,
        operation: &'static str,
        key: Option<&Key>,
        work: impl FnOnce(Arc<dyn Store>) -> F,
    ) -> Result<T, Error>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, Error>> + Send + 'static,
    {
        let work = work(self.shared.store.clone());
        let span = telemetry::call(operation, key);
        let call = runtime::call(operation, self.shared.call_timeout, work);
        let end = call.instrument(span.clone()).await;
        telemetry::called(&span, operation, key, &end);
        end
    }
}
