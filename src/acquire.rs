//! Acquires: the builders, and how a task gets its guard.
//!
//! - `builder.rs`, `all.rs`, `once.rs` and `resume.rs` have what an application awaits; `options.rs` has the options that
//!   they share, and the parts of a handle that all of them use.
//! - `start.rs` waits for the guard of one key (`src/key.rs`), also while renewals are late, and renews a lease that was
//!   granted late.
//! - `take_over.rs` looks up the leases that an acquire takes over.
//! - `with.rs` runs work under a lease.

mod all;
mod builder;
mod once;
mod options;
mod resume;
mod start;
mod take_over;
mod with;

pub(crate) use self::options::{AcquireContext, LeaseOptions};
pub use self::{
    all::AcquireAll,
    builder::{Acquire, TryAcquire},
    once::{Once, OnceAttempt, OnceError, OnceLease, RunOnce},
    resume::{Resume, Resumed},
    start::Attempt,
    with::WithError,
};
