//! An acquire for a tick that waits behind other tasks of its process. The answers to the first of them do not say
//! whether the tick is done, so this acquire reads the document: before its wait, and when its time is over.

use super::AcquireOperation;
use crate::{model::Error, retry::LONGEST_PAUSE, rules, runtime};

impl AcquireOperation {
    /// Whether this acquire is for a tick, and other tasks of its process wait before it.
    pub(super) fn depends_on_first_waiter(&self) -> bool {
        let is_behind = || match &self.waiter {
            Some(waiter) => !waiter.is_first(),
            None => {
                let queues = &self.context.registry.queues;
                queues.has_waiters(&self.request.key)
            }
        };
        self.request.tick.is_some() && is_behind()
    }

    /// Reads whether the tick is done, or cannot be compared with the done one, and returns the error of that. `None`
    /// if neither is so, or if the read fails.
    pub(super) fn read_tick(&self) -> impl Future<Output = Option<Error>> + use<> {
        let (tick, key) = (self.request.tick, self.request.key.clone());
        let store = self.context.registry.store.clone();
        async move {
            let (tick, of) = (tick?, key.clone());
            let read = async move { store.inspect(&of).await };
            let state = runtime::call("inspect", LONGEST_PAUSE, read).await;
            rules::done_before(&state.ok()??.done?, tick, &key)
        }
    }
}
