//! A client whose requests arrive late, and whose answers are late or lost.

use std::sync::Arc;

use leasehold::Store;

use super::{path, store_at};

async fn connect() -> impl AsyncFn() -> Arc<dyn Store> {
    let path = path();
    async move || store_at(&path).await
}

leasehold_tests::delays!(connect());
