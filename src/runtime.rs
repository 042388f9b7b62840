//! Calls to a store, which run to their end although the futures that wait for them are dropped; and the close of a
//! client, which waits for its operations.

mod call;
pub(crate) mod in_flight;
pub(crate) mod inline_task;
mod inline_tasks;
pub(crate) mod lifecycle;

pub(crate) use self::call::{call, caught, ended, no_outcome, panicked, spawn};
