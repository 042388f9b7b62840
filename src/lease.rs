//! The guard of one lease, the guard of a set of leases, and the ticket of a lease that goes to another process.
//!
//! `guard.rs` and `set.rs` have the guards, `convert.rs`, `give_up.rs` and `transaction.rs` calls of the first one, and
//! `ticket.rs` the ticket.
//!
//! Renewals and conversions run to their end in tasks of their own, because their outcome changes the lease, whether or
//! not the holder still waits.

mod convert;
mod give_up;
mod guard;
mod set;
mod ticket;
#[cfg(all(feature = "mongodb", feature = "fencing"))]
mod transaction;

pub use self::{convert::Upgrade, guard::Lease, set::LeaseSet, ticket::Ticket};
