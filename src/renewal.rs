//! Renewals of the leases that are kept alive: the schedule, which says when each lease is renewed, and the task that
//! sends the renewals.

mod handle;
mod host;
mod overload;
mod release;
mod requests;
mod schedule;
mod state;
mod task;

pub(crate) use self::handle::RenewalHandle;
