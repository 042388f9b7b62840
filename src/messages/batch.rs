//! Several requests in one call, and their answers.

use std::sync::Arc;

use crate::{
    messages::{AcquireAnswer, AcquireRequest, ReleaseAnswer, ReleaseRequest},
    model::{Error, Key},
};

/// One request of a [`Store::batch`](crate::Store::batch).
#[derive(Clone, Debug)]
pub enum BatchRequest {
    /// A request of [`Store::acquire`](crate::Store::acquire).
    Acquire(Arc<AcquireRequest>),
    /// A request of [`Store::release`](crate::Store::release).
    Release(ReleaseRequest),
}

impl BatchRequest {
    /// The key of the request.
    pub fn key(&self) -> &Key {
        match self {
            Self::Acquire(request) => &request.key,
            Self::Release(request) => &request.key,
        }
    }
}

/// One answer of a [`Store::batch`](crate::Store::batch). It is of the same kind as its request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BatchAnswer {
    /// The answer to an acquire.
    Acquire(AcquireAnswer),
    /// The answer to a release.
    Release(ReleaseAnswer),
}

/// The answers of a [`Store::batch`](crate::Store::batch), in the order of the requests.
pub type BatchAnswers = Vec<Result<BatchAnswer, Error>>;

/// The most requests in one [`batch`](crate::Store::batch).
pub const MAX_BATCH: usize = 1_000;
