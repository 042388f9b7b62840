//! How the client runs store calls to their end, also when their callers have gone: the driver of MongoDB documents that
//! its futures are not cancel safe. And the close of a client, which waits for its operations (`lifecycle.rs`).
//!
//! A call that is seldom made has a task of its own ([`call`]). Acquires, releases and permits are made so often that a
//! task for each would cost more than all else that the client does: their callers poll them, until they have to go on
//! without one (`inline_task.rs`, which has the figures).

mod call;
pub(crate) mod in_flight;
pub(crate) mod inline_task;
mod inline_tasks;
pub(crate) mod lifecycle;

#[cfg(feature = "sqlite")]
pub(crate) use self::call::no_outcome;
pub(crate) use self::call::{call, caught, ended, panicked, spawn};
