//! The handle of an application.

mod builder;
mod call;
mod leases;

pub use self::{builder::LeasesBuilder, leases::Leases};
