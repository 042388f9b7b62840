//! The suite, on a standalone server, on a replica set, and with no more rights than needed.

use super::{Clients, Engine, Fixture, MongoStore, accounts};

mod standalone {
    use super::*;

    async fn connect() -> Clients {
        Fixture::new(Engine::MongoDb).clients().await
    }

    leasehold_conformance::conformance_suite!(connect, flavor = "multi_thread", worker_threads = 2);
}

mod replica_set {
    use super::*;

    async fn connect() -> Clients {
        Fixture::new(Engine::MongoDbReplicaSet).clients().await
    }

    leasehold_conformance::conformance_suite!(connect, flavor = "multi_thread", worker_threads = 2);
}

/// On a server that asks who its clients are, with the role that the documentation names.
mod read_and_write {
    use super::*;

    async fn connect() -> Clients {
        let fixture = Fixture::new(Engine::MongoDbSecured);
        let user = accounts::user(&fixture, &["readWrite"]).await;
        let store = || MongoStore::new(&fixture.collection_with(user.clone()));
        store().prepare().await.unwrap();
        Clients::new(store(), store())
    }

    leasehold_conformance::conformance_suite!(connect, flavor = "multi_thread", worker_threads = 2);
}
