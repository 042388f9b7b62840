//! The suite, on both engines.

use super::*;

mod on_elasticsearch {
    use super::*;

    async fn connect() -> Clients {
        let (url, alias) = (Engine::Elasticsearch.address(), fresh_alias());
        let store = || ElasticsearchStore::new(elasticsearch(&url), &alias);
        store().prepare().await.unwrap();
        Clients::new(store(), store())
    }

    leasehold::conformance_suite!(connect, flavor = "multi_thread", worker_threads = 2);
}

mod on_opensearch {
    use super::*;

    async fn connect() -> Clients {
        let (url, alias) = (Engine::OpenSearch.address(), fresh_alias());
        let store = || OpenSearchStore::new(opensearch(&url), &alias);
        store().prepare().await.unwrap();
        Clients::new(store(), store())
    }

    leasehold::conformance_suite!(connect, flavor = "multi_thread", worker_threads = 2);
}
