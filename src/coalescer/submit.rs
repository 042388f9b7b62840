//! How an operation submits its requests: each by itself, or those of a set together.

use std::{future::poll_fn, pin::pin, sync::Arc};

use futures::FutureExt;
use tokio::time::Instant;

use super::{
    Call, Coalescer, Dispatch, PlannedRelease, Route, mismatched, queue::Class,
    request::QueuedRequest, send_alone,
};
use crate::{
    messages::{AcquireAnswer, AcquireRequest, BatchAnswer, Earlier, ReleaseAnswer},
    model::Error,
    runtime,
};

impl Coalescer {
    /// Submits a request for a lease. A request whose lease an earlier one
    /// [may have been granted](crate::messages::Earlier::Unclear) is sent alone.
    pub(crate) fn acquire(self: &Arc<Self>, request: Arc<AcquireRequest>) -> Call<AcquireAnswer> {
        let class = |_| match request.earlier {
            Earlier::Unclear => Class::Alone,
            Earlier::None | Earlier::Refused => Class::Durable,
        };
        let queued = || QueuedRequest::Acquire(request.clone());
        let route = self.route(&request.key, class, queued);
        let store = self.store.clone();
        let alone = async move { store.acquire(&request).await };
        self.send(route, alone, |answer| match answer {
            BatchAnswer::Acquire(answer) => Some(answer),
            BatchAnswer::Release(_) => None,
        })
    }

    /// Submits the release of a lease.
    pub(crate) fn release(self: &Arc<Self>, release: PlannedRelease) -> Call<ReleaseAnswer> {
        let are_cheap = || self.store.has_cheap_undoable_releases();
        let class = |now| match release.is_single {
            true => Class::Alone,
            false if release.is_undoable(now) && are_cheap() => Class::Undoable,
            false => Class::Durable,
        };
        let queued = || QueuedRequest::Release(release.clone());
        let route = self.route(&release.request.key, class, queued);
        let store = self.store.clone();
        let alone = async move { store.release(&release.at(Instant::now())).await };
        self.send(route, alone, |answer| match answer {
            BatchAnswer::Release(answer) => Some(answer),
            BatchAnswer::Acquire(_) => None,
        })
    }

    /// Polls `work` to its end. The requests that it submits in the first poll are a set: they are sent in one batch,
    /// however few they are.
    pub(crate) async fn send_together<T>(self: &Arc<Self>, work: impl Future<Output = T>) -> T {
        let mut work = pin!(work);
        let mut is_first = true;
        poll_fn(|cx| {
            let set = std::mem::take(&mut is_first).then(|| self.sets.clone());
            let polled = work.as_mut().poll(cx);
            if let Some(set) = set {
                drop(set);
                while self.dispatch_together(2) {}
                self.dispatch();
            }
            polled
        })
        .await
    }

    fn send<A: Send + 'static>(
        self: &Arc<Self>,
        route: Route,
        alone: impl Future<Output = Result<A, Error>> + Send + 'static,
        read: fn(BatchAnswer) -> Option<A>,
    ) -> Call<A> {
        let (answer, queued) = match route {
            Route::Now(permit) => (send_alone(alone, permit).boxed(), None),
            Route::Later(queued, dispatch) => {
                let coalescer = self.clone();
                let answer = async move {
                    match coalescer.dispatched(dispatch).await {
                        Some(Dispatch::Go(permit)) => send_alone(alone, Some(permit)).await,
                        Some(Dispatch::Answer(sent, answer)) => {
                            let read = |answer| read(answer).ok_or_else(mismatched);
                            (sent, answer.and_then(read))
                        }
                        None => (Instant::now(), Err(runtime::ended())),
                    }
                };
                (answer.boxed(), Some(queued))
            }
        };
        Call { answer, queued }
    }
}
