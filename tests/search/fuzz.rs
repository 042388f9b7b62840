//! Any text through Elasticsearch and OpenSearch.

use super::{BOTH, Fixture};
use leasehold_tests::fuzz;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_keys_owners_and_notes_are_just_text() {
    for (engine, seed) in BOTH.into_iter().zip(3..) {
        let store = Fixture::prepared(engine).await.store();
        fuzz::any_text_comes_back_or_is_refused(store, seed, 1_000).await;
    }
}
