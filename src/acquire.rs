//! Acquires: the builders, and how a task gets its guard.
//!
//! - `builder.rs`, `all.rs`, `once.rs`, `resume.rs` and `with.rs` have what an application awaits;
//!   `options.rs` has the options that they share, and `attempt.rs` an answer.
//! - `start.rs` waits for the guard of one key (`src/key.rs`). `late.rs` renews a lease that was granted late.
//! - `backpressure.rs` slows acquires down while renewals are late.
//! - `context.rs` has the parts of a handle that all of them use.

mod all;
mod attempt;
mod backpressure;
mod builder;
mod context;
mod done_tick;
mod late;
mod once;
mod options;
mod resume;
mod start;
mod with;

pub(crate) use self::context::AcquireContext;
pub use self::{
    all::AcquireAll,
    attempt::Attempt,
    builder::{Acquire, TryAcquire},
    once::{Once, OnceAttempt, OnceError, OnceLease, RunOnce},
    resume::{Resume, Resumed},
    with::WithError,
};
