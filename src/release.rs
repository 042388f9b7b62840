//! How leases are released: with a caller that waits for the outcome, in the background, or all when the client closes.
//!
//! A lease that is dropped goes to the renewal task (`renewal/task.rs`), which spawns its release, because a drop cannot
//! spawn by itself where there is no runtime. All other releases are started by their caller (`lease/registry.rs`), by
//! the clean-up after an acquire (`acquire/cleanup.rs`), and by a close (`batch.rs`).

mod batch;
mod job;
mod pending;
mod worker;

pub(crate) use self::{
    batch::release_all,
    job::ReleaseJob,
    pending::PendingRelease,
    worker::{ReleaseReply, Released, Releaser},
};
