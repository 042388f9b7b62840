//! How leases are released: with a caller that waits for the outcome, in the background, or all when the client closes.

mod batch;
mod job;
mod pending;
mod worker;

pub(crate) use self::{
    batch::release_all,
    job::ReleaseJob,
    pending::PendingRelease,
    worker::{Released, Releaser},
};
