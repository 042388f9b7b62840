//! A client whose requests arrive late, and whose answers are late or lost.

use std::sync::Arc;

use leasehold::Store;

use super::{Engine, Fixture};

async fn connect(engine: Engine) -> impl AsyncFn() -> Arc<dyn Store> {
    let fixture = Fixture::prepared(engine).await;
    async move || fixture.store()
}

mod on_elasticsearch {
    use super::{Engine, connect};

    leasehold_tests::delays!(connect(Engine::Elasticsearch));
}

mod on_opensearch {
    use super::{Engine, connect};

    leasehold_tests::delays!(connect(Engine::OpenSearch));
}
