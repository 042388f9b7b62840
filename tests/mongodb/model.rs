//! Random commands go to the memory store and to MongoDB, and every answer has to be the same.

use std::sync::Arc;

use leasehold::{MongoStore, Store};
use leasehold_tests::{long, model, permits};
use tokio::runtime::Runtime;

use super::{Engine, Fixture};

/// Each comparison is a test of its own, because it takes long and they can run at the same time. The two numbers of
/// cases are those of a short run and of a long one.
macro_rules! compared {
    ($($name:ident: $compare:path, $engine:expr, $dialect:expr, $short:literal or $long:literal;)*) => {$(
        #[test]
        fn $name() {
            let runtime = Runtime::new().unwrap();
            let store = runtime.block_on(Fixture::new($engine).store());
            let store: Arc<dyn Store> = Arc::new($dialect(store));
            let cases = if long() { $long } else { $short };
            $compare(&runtime, &store, cases).unwrap_or_else(|difference| panic!("{difference}"));
        }
    )*};
}

fn pipelines(store: MongoStore) -> MongoStore {
    store
}

fn classic(store: MongoStore) -> MongoStore {
    store.without_pipelines()
}

compared! {
    a_standalone_answers_as_memory_does: model::compare, Engine::MongoDb, pipelines, 40 or 200;
    a_standalone_serves_in_turn_as_memory_does: model::compare_in_turn, Engine::MongoDb, pipelines, 40 or 200;
    a_standalone_grants_permits_as_memory_does: permits::compare, Engine::MongoDb, pipelines, 40 or 200;
    the_classic_dialect_answers_as_memory_does: model::compare, Engine::MongoDb, classic, 20 or 200;
    the_classic_dialect_serves_in_turn_as_memory_does: model::compare_in_turn, Engine::MongoDb, classic, 20 or 200;
    the_classic_dialect_grants_permits_as_memory_does: permits::compare, Engine::MongoDb, classic, 20 or 200;
    a_replica_set_answers_as_memory_does: model::compare, Engine::MongoDbReplicaSet, pipelines, 8 or 30;
    a_replica_set_serves_in_turn_as_memory_does: model::compare_in_turn, Engine::MongoDbReplicaSet, pipelines, 8 or 30;
    a_replica_set_grants_permits_as_memory_does: permits::compare, Engine::MongoDbReplicaSet, pipelines, 8 or 30;
}
