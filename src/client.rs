//! The handle that an application begins with, and its options.

mod builder;
mod call;
mod leases;

pub use self::{builder::LeasesBuilder, leases::Leases};
