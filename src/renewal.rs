//! Leases that are kept alive: when each is renewed, and the task that renews them.

mod handle;
mod host;
mod overload;
mod release;
mod requests;
mod schedule;
mod state;
mod task;

pub(crate) use self::handle::RenewalHandle;
