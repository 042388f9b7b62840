//! The guards of leases, and what goes on for a lease in this process.

mod guard;
mod registry;
mod requests;
mod set;
mod ticket;
#[cfg(feature = "mongodb")]
mod transaction;

pub(crate) use self::registry::LeaseRegistry;
pub use self::{
    guard::{Lease, Upgrade},
    set::LeaseSet,
    ticket::Ticket,
};
