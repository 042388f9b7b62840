//! Leases that are kept alive: which is renewed when, and the task that does it.

mod handle;
mod host;
mod overload;
mod requests;
mod schedule;
mod state;
mod task;

pub(crate) use self::handle::RenewalHandle;
