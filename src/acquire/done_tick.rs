//! Whether the tick of an acquire is done, for an acquire that waits behind other tasks of its process: the answers to
//! these do not say so.

use std::{sync::Arc, time::Duration};

use crate::{
    key::Keys,
    model::{Error, Key, Tick},
    rules,
    store::Store,
};

/// Reads whether the tick must not run, and returns [why](rules::not_due). `None` if it is due, if there is no tick,
/// or if the read fails within the limit.
pub(super) async fn read(
    keys: &Keys,
    key: &Key,
    tick: Option<Tick>,
    limit: Duration,
) -> Option<Error> {
    let (tick, of) = (tick?, key.clone());
    let read = |store: Arc<dyn Store>| async move { store.inspect(&of).await };
    let state = keys.call("inspect", limit, read).await;
    rules::not_due(&state.ok()??.done?, tick, key)
}
