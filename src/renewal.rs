//! Renewals of the leases that are kept alive: the schedule, which says when each lease is renewed, and the task that
//! sends the renewals.
//!
//! - `schedule.rs` says when each lease is renewed, and which leases together.
//! - `task.rs` has what the client calls, and the task that does what is due and sends the renewals of a batch.
//! - `overload.rs` warns if there are more leases than the store can renew in time.

mod overload;
mod schedule;
mod task;

pub(crate) use self::task::RenewalTask;
