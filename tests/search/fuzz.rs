//! Any text as key, owner or note in Elasticsearch and OpenSearch.

use futures::future::join_all;
use leasehold_tests::{fuzz, long};

use super::{BOTH, Fixture};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_owners_and_notes_are_just_text() {
    let many = if long() { 10_000 } else { 300 };
    let any_text = async |(seed, engine)| {
        let store = Fixture::prepared(engine).await.store();
        fuzz::any_text_comes_back_or_is_refused(store, seed, many).await;
    };
    join_all((3..).zip(BOTH).map(any_text)).await;
}
