//! From the builder of an acquire to the guard of its lease.

mod all;
mod attempt;
mod builder;
mod cleanup;
mod context;
mod operation;
mod options;
mod resume;
mod with;

pub(crate) use self::context::AcquireContext;
pub use self::{
    all::AcquireAll,
    attempt::Attempt,
    builder::{Acquire, TryAcquire},
    resume::{Resume, Resumed},
    with::WithError,
};
