//! An acquire for a tick that waits behind other tasks of its process. It reads whether the tick is done: before its
//! wait, and when its time is over.

use std::time::Duration;

use super::AcquireOperation;
use crate::{
    acquire::done_tick,
    model::{Done, Error},
    rules,
};

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

    /// The error of an acquire that the store refused because of this done tick.
    pub(super) fn not_due(&self, done: Done) -> Error {
        let request = &self.request;
        let tick = request.tick;
        let error = tick.and_then(|tick| rules::not_due(&done, tick, &request.key));
        // A store that keeps the rules refuses no other request for this reason.
        error.unwrap_or(Error::Done(done))
    }

    /// The error that the tick must not run, as [`done_tick::read`] reads it within this limit.
    pub(super) fn read_tick(&self, limit: Duration) -> impl Future<Output = Option<Error>> + use<> {
        let (registry, request) = (&self.context.registry, &self.request);
        done_tick::read(registry, &request.key, request.tick, limit)
    }
}
