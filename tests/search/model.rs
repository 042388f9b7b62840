//! Random commands go to the memory store and to a search engine, and every answer has to be the
//! same.

use std::sync::Arc;

use leasehold::Store;
use leasehold_tests::{long, model, permits};
use tokio::runtime::Runtime;

use super::{Engine, Fixture};

/// Each comparison is a test of its own, because it takes long and they can run at the same time.
macro_rules! compared {
    ($($name:ident: $compare:path, $engine:expr, $cases:expr, $cases_of_long:expr;)*) => {$(
        #[test]
        fn $name() {
            let runtime = Runtime::new().unwrap();
            let store: Arc<dyn Store> = runtime.block_on(Fixture::prepared($engine)).store();
            let cases = if long() { $cases_of_long } else { $cases };
            $compare(&runtime, &store, cases).unwrap_or_else(|difference| panic!("{difference}"));
        }
    )*};
}

compared! {
    elasticsearch_answers_as_memory_does: model::compare, Engine::Elasticsearch, 20, 400;
    elasticsearch_serves_in_turn_as_memory_does: model::compare_in_turn, Engine::Elasticsearch, 20, 800;
    elasticsearch_grants_permits_as_memory_does: permits::compare, Engine::Elasticsearch, 20, 400;
    opensearch_answers_as_memory_does: model::compare, Engine::OpenSearch, 20, 400;
    opensearch_serves_in_turn_as_memory_does: model::compare_in_turn, Engine::OpenSearch, 10, 800;
    opensearch_grants_permits_as_memory_does: permits::compare, Engine::OpenSearch, 20, 400;
}
