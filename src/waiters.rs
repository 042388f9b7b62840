//! The waiters for a key in this process: first in, first out. Only the first waiter sends requests.

mod handoff;
mod notifications;
mod queue;
mod queues;
mod waiter;

pub(crate) use self::{
    handoff::{HandoffOffer, HandoffOutcome},
    notifications::ensure_listener,
    queues::WaitQueues,
    waiter::{WaitOutcome, Waiter},
};
