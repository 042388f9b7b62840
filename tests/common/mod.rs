//! What the tests on real engines share.
//!
//! Each test binary uses a part of it.
#![allow(dead_code)]

pub mod cancel;
pub mod crowd;
pub mod engine;
pub mod every;
pub mod evicted;
pub mod faketime;
pub mod fuzz;
pub mod liar;
pub mod many;
pub mod model;
pub mod permits;
pub mod processes;
pub mod protocol;
pub mod proxy;
pub mod soak;
pub mod text;
