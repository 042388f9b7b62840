//! The shared turn of a process: for a moment after a reader was granted the key in its turn, other readers of the same
//! process come before the processes that wait.
//!
//! Otherwise a writer that wants the key again and again would leave each reader one lease between two of its own. Each
//! grant to a reader in a queue begins a shared turn, and a grant within a shared turn does not prolong it. So a process
//! that waits for an exclusive lease waits for at most [`LONGEST`] more.

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;

use super::AcquireOperation;
use crate::{
    acquire::attempt::Attempt,
    messages::Turn,
    model::{Access, Error, Key},
};

/// How long a shared turn lasts. The longest wait of a writer grows by it (`fairness-writer` in `docs/performance.md`).
const LONGEST: Duration = Duration::from_millis(30);

impl AcquireOperation {
    /// Whether this acquire comes before the processes that wait, because the shared turn of its process lasts. Tasks of
    /// the same process that wait for the key come before it in any case.
    pub(super) fn is_in_shared_turn(&self) -> bool {
        let (request, now) = (&self.request, Instant::now());
        let waits_in_turn = request.turn != Turn::Barging;
        waits_in_turn
            && request.access == Access::Shared
            && self.context.shared_turns.contains(&request.key, now)
            && !self.context.registry.queues.has_waiters(&request.key)
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

    /// Records that a reader was granted the key in its turn.
    pub(super) fn begin_shared_turn(&self, key: &Key, now: Instant) {
        if let Some(until) = now.checked_add(LONGEST) {
            self.context.shared_turns.insert(key, until, now);
        }
    }
}
