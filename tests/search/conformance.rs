//! The conformance suite on both engines, and with scripts that are stored in the cluster.

use leasehold::store::ReleaseRequest;

use super::*;

/// Stores that know already where their locks are, on an engine that has run the scripts already: some leases of the
/// suite are shorter than either may take on a busy machine.
async fn ready<S: Store>(first: S, second: S) -> Clients {
    let [first, second] = [first, second].map(Patient);
    for store in [&first, &second] {
        let request = ask().shared();
        granted(store, &request).await;
        let release = ReleaseRequest::new(request.key.clone(), request.lease);
        store.release(&release).await.unwrap();
        store.remove_expired(&request.key).await.unwrap();
    }
    Clients::new(first, second)
}

/// Stores the scripts in the cluster, once for all tests: that takes longer than most of these tests.
async fn once(stored: &OnceCell<()>, prepare: impl AsyncFn() -> Result<(), Error>) {
    let prepare = async || until_answered(&prepare).await.unwrap();
    stored.get_or_init(prepare).await;
}

mod on_elasticsearch {
    use super::*;

    async fn connect() -> Clients {
        // The next suite needs this engine.
        start(Engine::ElasticsearchSecured);
        let fixture = Fixture::prepared(Engine::Elasticsearch).await;
        ready(fixture.store(), fixture.store()).await
    }

    leasehold_conformance::conformance_suite!(connect, flavor = "multi_thread", worker_threads = 2);
}

mod on_opensearch {
    use super::*;

    async fn connect() -> Clients {
        let fixture = Fixture::prepared(Engine::OpenSearch).await;
        ready(fixture.store(), fixture.store()).await
    }

    leasehold_conformance::conformance_suite!(connect, flavor = "multi_thread", worker_threads = 2);
}

mod on_opensearch_with_stored_scripts {
    use super::*;

    async fn connect() -> Clients {
        static STORED: OnceCell<()> = OnceCell::const_new();
        let fixture = Fixture::prepared(Engine::OpenSearch).await;
        let client = || opensearch(&fixture.url);
        let store = || OpenSearchStore::new(client(), &fixture.alias).stored_scripts();
        once(&STORED, async || store().prepare().await).await;
        ready(store(), store()).await
    }

    leasehold_conformance::conformance_suite!(connect, flavor = "multi_thread", worker_threads = 2);
}

/// The cluster has accounts, and forbids inline scripts.
mod on_elasticsearch_with_stored_scripts {
    use super::*;

    async fn connect() -> Clients {
        let fixture = Fixture::secured(Engine::ElasticsearchSecured).await;
        let store = || fixture.on_elasticsearch().stored_scripts();
        store().prepare().await.unwrap();
        ready(store(), store()).await
    }

    leasehold_conformance::conformance_suite!(connect, flavor = "multi_thread", worker_threads = 2);
}
