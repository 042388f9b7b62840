//! Random commands against memory and MongoDB at once: every answer is the same.

use std::sync::Arc;

use leasehold::Store;
use leasehold_tests::{long, model, permits};
use tokio::runtime::Runtime;

use super::{Engine, Fixture};

fn compare(engine: Engine, cases: u32) {
    let runtime = Runtime::new().unwrap();
    let store = runtime.block_on(Fixture::new(engine).store());
    let store: Arc<dyn Store> = Arc::new(store);
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
fn a_replica_set_answers_as_memory_does() {
    compare(Engine::MongoDbReplicaSet, if long() { 30 } else { 8 });
}
