//! Random commands against memory and a search engine at once: every answer is the same.

use leasehold_tests::{long, model, permits};
use tokio::runtime::Runtime;

use super::{Engine, Fixture};

fn compare(engine: Engine) {
    let runtime = Runtime::new().unwrap();
    let store = runtime.block_on(Fixture::prepared(engine)).store();
    let cases = if long() { 400 } else { 20 };
    model::compare(&runtime, &store, cases).unwrap_or_else(|difference| panic!("{difference}"));
    model::compare_in_turn(&runtime, &store, cases * 2)
        .unwrap_or_else(|difference| panic!("{difference}"));
    permits::compare(&runtime, &store, cases).unwrap_or_else(|difference| panic!("{difference}"));
}

#[test]
fn elasticsearch_answers_as_memory_does() {
    compare(Engine::Elasticsearch);
}

#[test]
fn opensearch_answers_as_memory_does() {
    compare(Engine::OpenSearch);
}
