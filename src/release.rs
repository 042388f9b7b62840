//! Releases of leases: for a caller that waits for the outcome, in the background, and of all leases when the client
//! closes.
//!
//! A release begins when a guard is given up or dropped (`key/guards.rs`), in the settlement of a claim
//! (`key/requests.rs`), or in a close (`batch.rs`). Without a caller it runs on the runtime of the client. `releaser.rs`
//! tries a release again.

mod batch;
mod in_flight;
mod job;
mod releaser;

pub(crate) use self::{
    batch::release_all,
    job::ReleaseJob,
    releaser::{PendingRelease, Released, Releaser},
};
