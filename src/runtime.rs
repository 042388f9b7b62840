//! Calls to a store that run to their end, whatever becomes of the futures that wait for them; and the end of a
//! handle, which waits for them all.

mod call;
pub(crate) mod in_flight;
pub(crate) mod inline_task;
mod inline_tasks;
pub(crate) mod lifecycle;

pub(crate) use self::call::{call, caught, ended, no_outcome, spawn};
