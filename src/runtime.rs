//! Calls to a store that run to their end, whatever becomes of those who wait for them.

mod call;
pub(crate) mod in_flight;
pub(crate) mod inline_task;
pub(crate) mod lifecycle;

pub(crate) use self::call::{call, caught, ended, spawn};
