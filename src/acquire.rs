//! Acquires: the builders, the operation that sends the requests, and the clean-up of an acquire that is over.
//!
//! - `builder.rs`, `all.rs`, `once.rs`, `resume.rs`, `sticky_shared.rs` and `with.rs` have what an application awaits;
//!   `options.rs` has the options that they share, and `attempt.rs` an answer.
//! - `start.rs` starts an acquire: from memory (`local.rs`), or else by an operation (`operation.rs`), which
//!   `cleanup.rs` cleans up after. `late.rs` renews a lease that was granted late.
//! - `backpressure.rs` slows acquires down while renewals are late, and
//!   `recent_keys.rs` remembers keys for a while: those that were held, and those in a shared turn.
//! - `context.rs` has the parts of a handle that all of them use.

mod all;
mod attempt;
mod backpressure;
mod builder;
mod cleanup;
mod context;
mod done_tick;
mod late;
mod local;
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
