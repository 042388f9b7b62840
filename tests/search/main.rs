//! The stores on Elasticsearch and OpenSearch, on real engines.

#[path = "../common/mod.rs"]
mod common;

mod conformance;

use std::time::Duration;

use common::engine::Engine;
use elasticsearch::Elasticsearch;
use leasehold::{ElasticsearchStore, LeaseId, OpenSearchStore, conformance::Clients};
use opensearch::OpenSearch;

/// A time to live that outlasts any test.
const LONG: Duration = Duration::from_secs(600);
/// A time to live that a test waits for.
const SHORT: Duration = Duration::from_secs(1);

/// A name that no other test uses.
fn fresh_alias() -> String {
    format!("locks-{}", LeaseId::random())
}

fn elasticsearch(url: &str) -> Elasticsearch {
    Elasticsearch::new(elasticsearch::http::transport::Transport::single_node(url).unwrap())
}

fn opensearch(url: &str) -> OpenSearch {
    OpenSearch::new(opensearch::http::transport::Transport::single_node(url).unwrap())
}
