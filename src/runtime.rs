//! How the client runs store calls to their end, also when their callers have gone, because the MongoDB driver
//! documents that its futures are not cancel safe; and which operations the close of a client waits for
//! (`lifecycle.rs`).
//!
//! A call that is seldom made has a task of its own ([`call`]). Acquires, releases and permits are made so often that a
//! task for each would cost more than all else that the client does. So each of them is polled by its caller, until it
//! has to go on without the caller (`inline_task.rs`).

mod call;
pub(crate) mod in_flight;
pub(crate) mod inline_task;
mod inline_tasks;
pub(crate) mod lifecycle;

#[cfg(feature = "sqlite")]
pub(crate) use self::call::no_outcome;
pub(crate) use self::call::{call, caught, ended, panicked, spawn};
