//! Acquires: the builders, the operation that sends the requests, and the clean-up of an acquire that is over.

mod all;
mod attempt;
mod backpressure;
mod builder;
mod cleanup;
mod context;
mod here;
mod once;
mod operation;
mod options;
mod recent_keys;
mod resume;
mod start;
mod sticky_shared;
mod with;

pub use self::{
    all::AcquireAll,
    attempt::Attempt,
    builder::{Acquire, TryAcquire},
    once::{Once, OnceAttempt, OnceError, OnceLease, RunOnce},
    resume::{Resume, Resumed},
    sticky_shared::AcquireShared,
    with::WithError,
};
pub(crate) use self::{context::AcquireContext, recent_keys::RecentKeys};
