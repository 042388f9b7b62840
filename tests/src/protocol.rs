//! The statements in `docs/protocol/`, as a program in another language would take them from there.

use std::time::Duration;

use leasehold::{
    Key, Store,
    store::{AcquireAnswer, AcquireRequest, LeaseId, ReleaseAnswer, ReleaseRequest, Turn},
};
use tokio::time::sleep;

/// Leaves a free key with the place of a process that was killed while it waited. Returns when the place no longer
/// counts.
pub async fn a_waiter_was_killed(store: &dyn Store, key: &Key) {
    let ask = |owner: &str| {
        let ttl = Duration::from_secs(600);
        AcquireRequest::exclusive(key.clone(), LeaseId::random(), owner.into(), ttl)
    };
    let holder = ask("the holder");
    let granted = store.acquire(&holder).await.unwrap();
    assert!(matches!(granted, AcquireAnswer::Granted(_)), "{granted:?}");
    let turn = Turn::in_turn(LeaseId::random(), Duration::from_secs(2));
    let waits = store.acquire(&ask("the waiter").turn(turn)).await.unwrap();
    assert!(matches!(waits, AcquireAnswer::Held(_)), "{waits:?}");
    let release = ReleaseRequest::new(key.clone(), holder.lease);
    let released = store.release(&release).await.unwrap();
    assert_eq!(released, ReleaseAnswer::Released);
    while let Some(state) = store.inspect(key).await.unwrap()
        && !state.waiters.is_empty()
    {
        sleep(Duration::from_millis(100)).await;
    }
}

/// The statements of one kind with their names, in the order of the document.
pub fn statements(document: &str, kind: &str) -> Vec<(String, String)> {
    let mark = format!("<!-- statement: {kind} ");
    let blocks = document.split(&mark).skip(1);
    let statement = |block: &str| {
        let (name, rest) = block.split_once(" -->\n```").unwrap();
        let (_, rest) = rest.split_once('\n').unwrap();
        let (text, _) = rest.split_once("\n```\n").unwrap();
        (name.to_owned(), text.to_owned())
    };
    blocks.map(statement).collect()
}
