//! Any text through MongoDB.

use super::{Engine, Fixture};
use leasehold_tests::fuzz;

/// Most of them where a write need not go to the disk: what a text is taken for does not depend on it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_keys_owners_and_notes_are_just_text() {
    for (engine, seed, number) in [
        (Engine::MongoDb, 1, 9_700),
        (Engine::MongoDbReplicaSet, 2, 300),
    ] {
        let store = Fixture::new(engine).store().await;
        fuzz::any_text_comes_back_or_is_refused(store, seed, number).await;
    }
}
