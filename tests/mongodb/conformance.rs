//! The suite, on a standalone server and on a replica set.

use super::{Clients, Engine, Fixture};

mod standalone {
    use super::*;

    async fn connect() -> Clients {
        Fixture::new(Engine::MongoDb).clients().await
    }

    leasehold::conformance_suite!(connect, flavor = "multi_thread", worker_threads = 2);
}

mod replica_set {
    use super::*;

    async fn connect() -> Clients {
        Fixture::new(Engine::MongoDbReplicaSet).clients().await
    }

    leasehold::conformance_suite!(connect, flavor = "multi_thread", worker_threads = 2);
}
