//! The guard of one lease, the guard of a set of leases, and the ticket of a lease that goes to another process.
//!
//! `guard.rs`, `set.rs` and `shared.rs` have the guards, `convert.rs`, `complete.rs`, `give_up.rs` and `transaction.rs`
//! calls of the first one, and `ticket.rs` the ticket. `requests.rs` sends the renewals and conversions of a guard.

mod complete;
mod convert;
mod give_up;
mod guard;
mod requests;
mod set;
mod ticket;
#[cfg(feature = "mongodb")]
mod transaction;

pub use self::{convert::Upgrade, guard::Lease, set::LeaseSet, ticket::Ticket};
