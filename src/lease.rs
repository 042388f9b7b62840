//! The guard of one lease, the guard of a set of leases, and the ticket of a lease that goes to another process; and
//! the registry of the leases of a client, which the close releases.

mod complete;
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
