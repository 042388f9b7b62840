//! How leases work, a page for each topic.

pub mod errors;
pub mod fencing;
pub mod holding;
pub mod modes;
pub mod observability;
pub mod stores;
