//! The requests that a coalescer sends, and how they were sent.

use std::sync::Arc;

use tokio::time::Instant;

use crate::{
    messages::{AcquireRequest, BatchRequest, ReleaseRequest},
    model::Error,
};

/// An answer, and the instant before its request was sent.
pub(crate) type TimedAnswer<T> = (Instant, Result<T, Error>);

/// How a request was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HowSent {
    /// It still waits, or was withdrawn.
    NotYet,
    /// Alone, without a wait before.
    AtOnce,
    /// Alone, at this instant.
    Alone(Instant),
    /// In a batch, at this instant.
    InBatch(Instant),
}

/// A request to send.
pub(super) enum QueuedRequest {
    Acquire(Arc<AcquireRequest>),
    Release(PlannedRelease),
}

/// A release to send, some time after it was planned.
#[derive(Clone)]
pub(crate) struct PlannedRelease {
    /// The request, as if no failover might undo it.
    pub(crate) request: ReleaseRequest,
    /// Until when a failover may undo the release; `None` if it never may.
    pub(crate) undoable_until: Option<Instant>,
    /// Whether the request must not go in a batch: an earlier request for the same release failed, or the release writes
    /// a done tick, which no batch can do.
    pub(crate) is_single: bool,
}

impl PlannedRelease {
    /// The request, as it is sent at this instant.
    pub(crate) fn at(&self, now: Instant) -> ReleaseRequest {
        let request = self.request.clone();
        if self.is_undoable(now) {
            request.undoable()
        } else {
            request
        }
    }

    /// Whether a failover may undo the release at this instant.
    pub(super) fn is_undoable(&self, now: Instant) -> bool {
        self.undoable_until.is_some_and(|until| now < until)
    }
}

impl QueuedRequest {
    /// The request, as it is sent at this instant.
    pub(super) fn at(self, now: Instant) -> BatchRequest {
        match self {
            Self::Acquire(request) => BatchRequest::Acquire(request),
            Self::Release(release) => BatchRequest::Release(release.at(now)),
        }
    }
}
