//! What the tests on real engines share.

pub mod engine;
pub mod model;
pub mod proxy;
