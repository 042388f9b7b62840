//! Any text as key, owner or note in MongoDB.

use super::{Engine, Fixture};
use leasehold_tests::{fuzz, long};

/// Most texts go to the engine where a write need not wait for the disk. How the store treats a text does not depend on
/// that.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn thousands_of_keys_owners_and_notes_are_just_text() {
    let numbers = if long() { [9_700, 300] } else { [2_000, 100] };
    for (engine, seed, number) in [
        (Engine::MongoDb, 1, numbers[0]),
        (Engine::MongoDbReplicaSet, 2, numbers[1]),
    ] {
        let store = Fixture::new(engine).store().await;
        fuzz::any_text_comes_back_or_is_refused(store, seed, number).await;
    }
}
