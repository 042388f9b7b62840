//! What an application begins with: the handle, and its options.

mod builder;
mod call;
mod leases;

pub use self::{builder::LeasesBuilder, leases::Leases};
