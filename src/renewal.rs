//! Renewals of the leases that are kept alive: the schedule, which says when each lease is renewed, and the task that
//! sends the renewals.
//!
//! - `schedule.rs` says when each lease is renewed, and which leases together.
//! - `handle.rs` is what the client calls. It puts work into `inbox.rs`, from which `task.rs` takes it.
//! - `requests.rs` sends the renewals of a batch.
//! - `overload.rs` warns if there are more leases than the store can renew in time.

mod handle;
mod inbox;
mod overload;
mod requests;
mod schedule;
mod task;

pub(crate) use self::handle::RenewalHandle;
