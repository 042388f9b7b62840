//! The requests that a coalescer sends, and what their operations have of them.

use std::sync::{Arc, OnceLock};

use futures::future::BoxFuture;
use tokio::time::Instant;

use super::queue::Class;
use crate::{
    messages::{AcquireRequest, BatchRequest, Earlier, ReleaseRequest},
    model::{Error, Key},
};

/// An answer, and the instant before its request was sent.
pub(crate) type TimedAnswer<T> = (Instant, Result<T, Error>);

/// A request that was submitted. It begins when its answer is first polled.
pub(crate) struct Call<T> {
    pub(crate) answer: BoxFuture<'static, TimedAnswer<T>>,
    /// `None` if the request is sent at once, and alone.
    pub(crate) queued: Option<Queued>,
}

/// A request that waits until it is sent, or has waited.
pub(crate) struct Queued {
    withdraw: Box<dyn Fn() -> bool + Send + Sync>,
    sent: Arc<OnceLock<HowSent>>,
}

/// How a request was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HowSent {
    /// It still waits, or was withdrawn.
    NotYet,
    Alone,
    /// In a batch, at this instant.
    InBatch(Instant),
}

impl Queued {
    pub(super) fn new(
        withdraw: impl Fn() -> bool + Send + Sync + 'static,
        sent: Arc<OnceLock<HowSent>>,
    ) -> Self {
        Self {
            withdraw: Box::new(withdraw),
            sent,
        }
    }

    /// Withdraws the request, if it was not sent yet. Returns whether it was withdrawn: its answer is then an error that
    /// says nothing.
    #[must_use]
    pub(crate) fn withdraw(&self) -> bool {
        (self.withdraw)()
    }

    pub(crate) fn how_sent(&self) -> HowSent {
        self.sent.get().copied().unwrap_or(HowSent::NotYet)
    }
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

    fn is_undoable(&self, now: Instant) -> bool {
        self.undoable_until.is_some_and(|until| now < until)
    }
}

impl QueuedRequest {
    pub(super) fn key(&self) -> &Key {
        match self {
            Self::Acquire(request) => &request.key,
            Self::Release(release) => &release.request.key,
        }
    }

    /// Whether the request must not go in a batch.
    pub(super) fn is_single(&self) -> bool {
        match self {
            Self::Acquire(request) => request.earlier == Earlier::Unclear,
            Self::Release(release) => release.is_single,
        }
    }

    /// The durability that the request asks for. `undoable_are_cheap` says whether the store gains from separate
    /// batches of undoable releases.
    pub(super) fn class(&self, now: Instant, undoable_are_cheap: bool) -> Class {
        match self {
            Self::Release(release) if undoable_are_cheap && release.is_undoable(now) => {
                Class::Undoable
            }
            Self::Release(_) | Self::Acquire(_) => Class::Durable,
        }
    }

    /// The request, as it is sent at this instant.
    pub(super) fn at(self, now: Instant) -> BatchRequest {
        match self {
            Self::Acquire(request) => BatchRequest::Acquire(request),
            Self::Release(release) => BatchRequest::Release(release.at(now)),
        }
    }
}
