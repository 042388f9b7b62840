//! The queues of the waiters in this process, one for each key: first in, first out. Only the first waiter of a queue
//! sends requests.
//!
//! - `queue.rs` decides when the first waiter sends a request.
//! - `place.rs` has the place of this process among the processes that wait for a key, and decides how long the first
//!   waiter pauses between two requests: by `retry.rs`, or by `pace.rs` if other processes wait too.
//! - `handoff.rs` passes a key from a holder of this process to a waiter, by one request to the store instead of two.
//!   (Leases that stay with a process are passed on without a request: `src/sticky.rs`.)
//! - `notifications.rs` listens to the store for keys that other processes free.
//! - `followers.rs` notifies tasks that watch a key without waiting for it.

mod followers;
mod handoff;
mod kind;
mod notifications;
mod pace;
mod place;
mod queue;
mod queues;
mod waiter;

pub(crate) use self::{
    followers::Follower,
    handoff::{HandoffOffer, HandoffOutcome, HandoffStreak},
    kind::{Standing, WaiterKind},
    notifications::ensure_listener,
    queues::WaitQueues,
    waiter::{WaitOutcome, Waiter},
};
