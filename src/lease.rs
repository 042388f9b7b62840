//! The guard of one lease, the guard of a set of leases, and the ticket of a lease that goes to another process. The
//! registry has all leases of a client; a close releases them.
//!
//! - `guard.rs`, `set.rs` and `shared.rs` have the guards, `convert.rs`, `complete.rs`, `give_up.rs` and
//!   `transaction.rs` calls of the first one, and `ticket.rs` the ticket. `requests.rs` sends the renewals and
//!   conversions of a guard.
//! - `registry.rs` registers each lease from its grant until it is given up.
//! - `local.rs` has what differs for a guard that was granted from memory. `stay_task.rs` looks after the leases that
//!   stay, `recalls.rs` finds out which of them others wait for, and `send_back.rs` gives them back to the store.

mod complete;
mod convert;
mod give_up;
mod guard;
mod local;
mod recalls;
mod registry;
mod requests;
mod send_back;
mod set;
mod shared;
mod stay_task;
mod ticket;
#[cfg(feature = "mongodb")]
mod transaction;

pub(crate) use self::registry::LeaseRegistry;
pub use self::{
    convert::Upgrade, guard::Lease, set::LeaseSet, shared::SharedLease, ticket::Ticket,
};
