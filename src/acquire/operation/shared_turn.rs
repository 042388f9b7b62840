//! The shared turn of a process: for a moment after a reader was granted the key in its turn, other readers of the same
//! process come before the processes that wait.
//!
//! Otherwise a writer that wants the key again and again would leave each reader one lease between two of its own.
//!
//! Invariants:
//!
//! - A shared turn begins with a grant that no waiting process comes before. A grant within a shared turn does not
//!   prolong it. So a writer waits for the readers that come before [`MAX_TIME`] is over, and for no later ones.
//! - In a shared turn at most [`MAX_REQUESTS`] requests begin, so that many readers do not all send one at the same
//!   time. One of them may wait to be sent until the shared turn is over.

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;

use super::AcquireOperation;
use crate::{
    acquire::attempt::Attempt,
    messages::Turn,
    model::{Access, Error},
};

/// How long a shared turn lasts.
const MAX_TIME: Duration = Duration::from_millis(30);
/// The most requests in a shared turn.
const MAX_REQUESTS: u32 = 32;

impl AcquireOperation {
    /// Enters the shared turn of this process, if it lasts and has room, and no task of this process waits for the key.
    pub(super) fn enter_shared_turn(&self) -> bool {
        let request = &self.request;
        let waits_in_turn = request.turn != Turn::Barging;
        let enter = |left: &mut u32| {
            let has_room = *left > 0;
            *left = left.saturating_sub(1);
            has_room
        };
        waits_in_turn
            && request.access == Access::Shared
            // A lease that stays with this process would keep the key beyond the shared turn.
            && self.stays_for.is_none()
            && !self.context.registry.queues.has_waiters(&request.key)
            && self.context.shared_turns.with(&request.key, Instant::now(), enter) == Some(true)
    }

    /// Sends one request in the shared turn. A refusal ends the shared turn.
    pub(super) async fn ask_in_shared_turn(&mut self) -> Result<Attempt, Error> {
        let turn = self.request.turn;
        Arc::make_mut(&mut self.request).turn = Turn::Barging;
        let attempt = self.attempt().await;
        Arc::make_mut(&mut self.request).turn = turn;
        if matches!(attempt, Ok(Attempt::Held(_))) {
            self.context.shared_turns.remove(&self.request.key);
        }
        attempt
    }

    /// Begins a shared turn, because a reader was granted the key in its turn.
    pub(super) fn begin_shared_turn(&self, now: Instant) {
        if let Some(until) = now.checked_add(MAX_TIME) {
            let (key, turns) = (&self.request.key, &self.context.shared_turns);
            turns.insert(key, until, MAX_REQUESTS, now);
        }
    }
}
