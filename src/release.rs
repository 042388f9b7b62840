//! Releases of leases: for a caller that waits for the outcome, in the background, and of all leases when the client
//! closes.
//!
//! A guard may be dropped outside of a runtime, where nothing can be spawned. So the drop passes the release to the
//! renewal task (`renewal/task.rs`), which spawns it. The other releases are started by their caller
//! (`key/guards.rs`), by the settlement of a claim (`key/requests.rs`), or by a close (`batch.rs`).
//! `releaser.rs` tries a release again, and `renewal/release.rs` takes over one whose runtime ends.

mod batch;
mod job;
mod pending;
mod releaser;

pub(crate) use self::{
    batch::release_all,
    job::ReleaseJob,
    pending::PendingRelease,
    releaser::{ReleaseReply, Released, Releaser},
};
