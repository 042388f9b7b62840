//! The guards that an application holds: of one lease, of a set, and as a ticket; and the registry of the leases
//! of a handle, with its close.

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
