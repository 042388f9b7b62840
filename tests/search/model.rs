//! Random commands against memory and a search engine at once: every answer is the same.

use tokio::runtime::Runtime;

use super::{Engine, Fixture, common::model};

fn compare(engine: Engine) {
    let runtime = Runtime::new().unwrap();
    let store = runtime.block_on(Fixture::prepared(engine)).store();
    if let Err(difference) = model::compare(&runtime, &store, 40) {
        panic!("{difference}");
    }
}

#[test]
fn elasticsearch_answers_as_memory_does() {
    compare(Engine::Elasticsearch);
}

#[test]
fn opensearch_answers_as_memory_does() {
    compare(Engine::OpenSearch);
}
