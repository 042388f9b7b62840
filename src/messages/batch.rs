//! Several questions of one call, and their answers.

use std::sync::Arc;

use crate::{
    messages::{AcquireAnswer, AcquireRequest, ReleaseAnswer, ReleaseRequest},
    model::{Error, Key},
};

/// One of the questions of [`Store::batch`](crate::Store::batch).
#[derive(Clone, Debug)]
pub enum BatchRequest {
    /// What [`Store::acquire`](crate::Store::acquire) would be asked.
    Acquire(Arc<AcquireRequest>),
    /// What [`Store::release`](crate::Store::release) would be asked.
    Release(ReleaseRequest),
}

impl BatchRequest {
    /// The key that it is about.
    pub fn key(&self) -> &Key {
        match self {
            Self::Acquire(request) => &request.key,
            Self::Release(request) => &request.key,
        }
    }
}

/// One of the answers of [`Store::batch`](crate::Store::batch), of the kind of its question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BatchAnswer {
    /// The answer to an acquire.
    Acquire(AcquireAnswer),
    /// The answer to a release.
    Release(ReleaseAnswer),
}

/// The answers of [`Store::batch`](crate::Store::batch), in the order of the questions.
pub type BatchAnswers = Vec<Result<BatchAnswer, Error>>;

/// How many acquires and releases are asked for in one [`batch`](crate::Store::batch).
pub const MAX_BATCH: usize = 1_000;
