//! Random commands go to the memory store and to a file, and every answer has to be the same. And
//! any text as key, owner and note.

use leasehold_tests::{fuzz, long, model, permits};
use tokio::runtime::Runtime;

use super::{path, store_at};

#[test]
fn a_file_answers_as_memory_does() {
    let runtime = Runtime::new().unwrap();
    let store = runtime.block_on(store_at(&path()));
    model::compare(&runtime, &store, 40).unwrap_or_else(|difference| panic!("{difference}"));
    model::compare_in_turn(&runtime, &store, 40)
        .unwrap_or_else(|difference| panic!("{difference}"));
    permits::compare(&runtime, &store, 40).unwrap_or_else(|difference| panic!("{difference}"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_keys_owners_and_notes_are_just_text() {
    let texts = if long() { 10_000 } else { 300 };
    fuzz::any_text_comes_back_or_is_refused(store_at(&path()).await, 9, texts).await;
}
