//! `Leases`, the handle through which an application uses all else, and its builder.

mod admin;
mod call;
#[cfg(test)]
mod forgotten_keys_tests;
mod leader;
mod leases;

pub use self::{
    leader::{Leader, Leading, Term},
    leases::{Leases, LeasesBuilder},
};
