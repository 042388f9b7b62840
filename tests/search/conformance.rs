//! The suite, on both engines, and with scripts that are stored in the cluster.

use leasehold::store::ReleaseRequest;

use super::*;

/// With stores that know where their locks are, on an engine that has run the scripts before: some leases
/// here are shorter than what either takes on a machine that has much else to do.
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

/// Scripts belong to the cluster, and take longer to be stored than most of these tests: the first test has
/// them stored.
async fn once(stored: &OnceCell<()>, prepare: impl AsyncFn() -> Result<(), Error>) {
    let prepare = async || until_answered(&prepare).await.unwrap();
    stored.get_or_init(prepare).await;
}

mod on_elasticsearch {
    use super::*;

    async fn connect() -> Clients {
        // For the suite after this one.
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

/// On a cluster that forbids inline scripts, with accounts.
mod on_elasticsearch_with_stored_scripts {
    use super::*;

    async fn connect() -> Clients {
        static STORED: OnceCell<()> = OnceCell::const_new();
        let fixture = Fixture::secured().await;
        fixture.prepare().await.unwrap();
        let store = || fixture.on_elasticsearch().stored_scripts();
        once(&STORED, async || store().prepare().await).await;
        ready(store(), store()).await
    }

    leasehold_conformance::conformance_suite!(connect, flavor = "multi_thread", worker_threads = 2);
}
