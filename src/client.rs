//! `Leases`, the handle that an application makes first, and its builder.

mod builder;
mod call;
mod jobs;
mod leader;
mod leases;

pub use self::{
    builder::LeasesBuilder,
    leader::{Leader, Leading, Term},
    leases::Leases,
};
