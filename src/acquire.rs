//! From the builder of an acquire to the guard of its lease.

mod all;
mod attempt;
mod builder;
mod cleanup;
mod context;
mod operation;
mod options;
mod refused;
mod resume;
mod with;

pub use self::{
    all::AcquireAll,
    attempt::Attempt,
    builder::{Acquire, TryAcquire},
    resume::{Resume, Resumed},
    with::WithError,
};
pub(crate) use self::{context::AcquireContext, refused::RefusedKeys};
