//! The waiters for a key in this process: first in, first out. Only the first waiter sends requests.
//!
//! `queue.rs` decides when it does, with the pauses of `retry.rs`, or of `pace.rs` where other processes wait too;
//! `place.rs` is the place of this process among them. `handoff.rs` is how a key goes from a holder of this
//! process to a waiter; `notifications.rs` listens for keys that other processes free. `followers.rs` tells of them
//! those who do not wait for the key.

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
    handoff::{HandoffOffer, HandoffOutcome},
    kind::WaiterKind,
    notifications::ensure_listener,
    queues::WaitQueues,
    waiter::{WaitOutcome, Waiter},
};
