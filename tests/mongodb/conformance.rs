//! The conformance suite on a standalone server, and on a replica set with as few rights as needed. `dialects.rs` and
//! `sharded.rs` run it for other engines.

use super::{Clients, Engine, Fixture, MongoStore, accounts};

mod standalone {
    use super::*;

    async fn connect() -> Clients {
        Fixture::new(Engine::MongoDb).clients().await
    }

    leasehold_conformance::conformance_suite!(connect, flavor = "multi_thread", worker_threads = 2);

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_key_has_a_bounded_number_of_holders() {
        let clients = connect().await;
        leasehold_conformance::a_key_has_a_bounded_number_of_holders(&clients)
            .await
            .unwrap();
    }
}

/// A replica set with accounts. The user has only the role that the documentation names.
mod replica_set {
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
