//! Whether the tick of an acquire is done, for an acquire that waits behind other tasks of its process: the answers to
//! these do not say so.

use std::time::Duration;

use crate::{
    key::Keys,
    model::{Error, Key, Tick},
    rules, runtime,
};

/// Reads whether the tick must not run, and returns [why](rules::not_due). `None` if it is due, if there is no tick,
/// or if the read fails within the limit.
pub(super) fn read(
    keys: &Keys,
    key: &Key,
    tick: Option<Tick>,
    limit: Duration,
) -> impl Future<Output = Option<Error>> + use<> {
    let (key, store) = (key.clone(), keys.store.clone());
    async move {
        let (tick, of) = (tick?, key.clone());
        let asked = store.clone();
        let read = async move { asked.inspect(&of).await };
        let state = runtime::call("inspect", limit, || store.name(), read).await;
        rules::not_due(&state.ok()??.done?, tick, &key)
    }
}
