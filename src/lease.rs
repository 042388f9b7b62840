//! The guard of one lease, the guard of a set of leases, and the ticket of a lease that goes to another process. The
//! registry has all leases of a client; a close releases them.

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
