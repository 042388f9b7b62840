//! Random commands against memory and MongoDB at once: every answer is the same.

use std::sync::Arc;

use leasehold::{MongoStore, Store};
use leasehold_tests::{long, model, permits};
use tokio::runtime::Runtime;

use super::{Engine, Fixture};

fn compare(engine: Engine, cases: u32) {
    compare_with(engine, cases, |store| store);
}

fn compare_with(engine: Engine, cases: u32, set: fn(MongoStore) -> MongoStore) {
    let runtime = Runtime::new().unwrap();
    let store = runtime.block_on(Fixture::new(engine).store());
    let store: Arc<dyn Store> = Arc::new(set(store));
    model::compare(&runtime, &store, cases).unwrap_or_else(|difference| panic!("{difference}"));
    model::compare_in_turn(&runtime, &store, cases)
        .unwrap_or_else(|difference| panic!("{difference}"));
    permits::compare(&runtime, &store, cases).unwrap_or_else(|difference| panic!("{difference}"));
}

#[test]
fn a_standalone_answers_as_memory_does() {
    compare(Engine::MongoDb, if long() { 200 } else { 40 });
}

#[test]
fn the_classic_dialect_answers_as_memory_does() {
    let cases = if long() { 200 } else { 20 };
    compare_with(Engine::MongoDb, cases, MongoStore::without_pipelines);
}

#[test]
fn a_replica_set_answers_as_memory_does() {
    compare(Engine::MongoDbReplicaSet, if long() { 30 } else { 8 });
}
