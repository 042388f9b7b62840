//! A client whose requests arrive late, and whose answers are late or lost.

use std::sync::Arc;

use leasehold::Store;

use super::{Engine, Fixture};

async fn connect() -> impl AsyncFn() -> Arc<dyn Store> {
    let fixture = Fixture::new(Engine::MongoDb);
    fixture.store().await.prepare().await.unwrap();
    async move || Arc::new(fixture.store().await) as Arc<dyn Store>
}

leasehold_tests::delays!(connect());
