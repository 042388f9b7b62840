//! An acquire that waits, and whose owner may have the key already.
//!
//! It stands in the queue of this process behind waiters that may wait for a release by the same owner, and the owner
//! waits for this acquire: a deadlock, if only the first waiter sent requests. So until an answer says that its owner
//! does not have the key, this acquire also sends requests when it is not the first. It stands in the queue all the
//! same: when it is the first, its place in the document keeps other processes from coming before it again and again.

use tokio::time::{Instant, timeout_at};

use super::AcquireOperation;
use crate::{
    acquire::attempt::Attempt,
    model::{Error, Held},
    random,
    retry::{TRIES, pause_until_free},
};

impl AcquireOperation {
    /// Sends requests after this answer, and returns how the wait ends. `None` if the acquire is to wait as others do.
    pub(super) async fn ask_as_owner(
        &mut self,
        mut attempt: Result<Attempt, Error>,
        wait_ends: Option<Instant>,
    ) -> Option<Result<Attempt, Error>> {
        let (mut pauses, mut failures, mut answered) = (0, 0, Instant::now());
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
                // After an error it is not known whether the owner has the key.
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
            let waiter = match self.waiter.clone() {
                Some(waiter) => waiter,
                None => self.enter_queue(),
            };
            if waiter.is_first() {
                // The pause may be that of a waiter that was behind other processes, and has left.
                waiter.end_pause();
                return None;
            }
            let pause = pause_until_free(pauses, expires_in, random::fraction());
            pauses = pauses.saturating_add(1);
            let next = wait_ends.map_or(now + pause, |end| end.min(now + pause));
            let is_its_turn = timeout_at(next, waiter.until_next_step(None, None));
            attempt = match self.calls.select_response(is_its_turn).await {
                Some(Ok(_)) => return None,
                Some(Err(_)) => self.attempt().await,
                // An earlier request was answered meanwhile.
                None => self.answer().await,
            };
        }
    }

    /// Whether the owner of this acquire has the key, by this answer.
    pub(super) fn has_own_holder(&self, held: &Held) -> bool {
        let owner = &self.request.owner;
        held.holders().iter().any(|holder| holder.owner == *owner)
    }
}
