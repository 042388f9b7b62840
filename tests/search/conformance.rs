//! The suite, on both engines, and with scripts that are stored in the cluster.

use super::*;

mod on_elasticsearch {
    use super::*;

    async fn connect() -> Clients {
        Fixture::prepared(Engine::Elasticsearch).await.clients()
    }

    leasehold::conformance_suite!(connect, flavor = "multi_thread", worker_threads = 2);
}

mod on_opensearch {
    use super::*;

    async fn connect() -> Clients {
        Fixture::prepared(Engine::OpenSearch).await.clients()
    }

    leasehold::conformance_suite!(connect, flavor = "multi_thread", worker_threads = 2);
}

mod on_opensearch_with_stored_scripts {
    use super::*;

    async fn connect() -> Clients {
        let fixture = Fixture::new(Engine::OpenSearch);
        let client = || opensearch(&fixture.url);
        let store = || OpenSearchStore::new(client(), &fixture.alias).stored_scripts();
        store().prepare().await.unwrap();
        Clients::new(store(), store())
    }

    leasehold::conformance_suite!(connect, flavor = "multi_thread", worker_threads = 2);
}

/// On a cluster that forbids inline scripts, with accounts.
mod on_elasticsearch_with_stored_scripts {
    use super::*;

    async fn connect() -> Clients {
        let fixture = Fixture::secured().await;
        let store = || fixture.on_elasticsearch().stored_scripts();
        store().prepare().await.unwrap();
        Clients::new(store(), store())
    }

    leasehold::conformance_suite!(connect, flavor = "multi_thread", worker_threads = 2);
}
