//! An acquire that waits, and whose owner may have the key already.
//!
//! In the queue of this process it would wait behind waiters that wait for a release by the same owner, and the owner
//! waits for this acquire: a deadlock. So it enters the queue only as the first, or when its owner does not have the key.
//! Until then it sends its requests beside the queue.

use std::sync::Arc;

use tokio::time::{Instant, sleep_until};

use super::AcquireOperation;
use crate::{
    acquire::attempt::Attempt,
    model::{Error, Held},
    retry::{TRIES, pause_until_free},
    waiters::Waiter,
};

impl AcquireOperation {
    /// Sends requests beside the queue of the key, and returns how the wait ends. `None` if the acquire can wait in the
    /// queue.
    pub(super) async fn ask_beside_the_queue(
        &mut self,
        wait_ends: Option<Instant>,
    ) -> Option<Result<Attempt, Error>> {
        let (mut pauses, mut failures, mut answered) = (0, 0, self.since);
        let mut attempt = self.attempt().await;
        loop {
            let now = Instant::now();
            let mut expires_in = None;
            match &attempt {
                Ok(Attempt::Held(held)) if !self.has_own_holder(held) => {
                    return self.end_of_wait(attempt, wait_ends);
                }
                Ok(Attempt::Held(held)) => {
                    (failures, answered) = (0, now);
                    expires_in = Some(held.expires_in());
                }
                // Nobody knows whether the owner has the key.
                Err(_) => {
                    failures += 1;
                    let silence = now.saturating_duration_since(answered);
                    let is_silent = silence >= self.context.registry.call_timeout;
                    if wait_ends.is_none() && is_silent && failures >= TRIES {
                        return Some(attempt);
                    }
                }
                Ok(Attempt::Acquired(_)) => {}
            }
            if let Some(end) = self.end_of_wait(attempt, wait_ends) {
                return Some(end);
            }
            if self.enter_queue_as_first() {
                return None;
            }
            let pause = pause_until_free(pauses, expires_in, fastrand::f64());
            pauses = pauses.saturating_add(1);
            let next = wait_ends.map_or(now + pause, |end| end.min(now + pause));
            attempt = match self.calls.select_response(sleep_until(next)).await {
                Some(()) => self.attempt().await,
                // An earlier request was answered meanwhile.
                None => self.answer().await,
            };
        }
    }

    fn has_own_holder(&self, held: &Held) -> bool {
        let owner = &self.request.owner;
        held.holders().iter().any(|holder| holder.owner == *owner)
    }

    /// Enters the queue of the key, unless other tasks wait in it.
    fn enter_queue_as_first(&mut self) -> bool {
        let queues = &self.context.registry.queues;
        let (key, kind) = (&self.request.key, self.waiter_kind());
        let first = Waiter::enter_as_first(queues, key, kind, self.work.clone());
        self.waiter = first.map(Arc::new);
        self.waiter.is_some()
    }
}
