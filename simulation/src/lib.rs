//! One seed, one run: whole clients of `leasehold` on one simulated store, with all that can go wrong, and judges that
//! compare what the clients believe with each other and with the documents.
//!
//! A run has one thread and a paused clock. What happens in it follows from its seed alone. See
//! `scripts/simulate --help`.

#![forbid(unsafe_code)]

mod campaign;
mod connection;
mod course;
mod guard;
mod holding;
mod jobs;
mod judge;
mod ledger;
mod panics;
mod restart;
mod server;
mod shrink;
mod task;
mod world;

pub use crate::{
    campaign::{Report, campaign, new_seed},
    course::{Course, Fault},
    judge::{Judge, Violation},
    shrink::shrink,
    world::{Options, Outcome, Tally, run},
};
