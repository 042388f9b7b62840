//! How an operation submits its requests: each by itself, or those of a set together.

use std::{future::poll_fn, pin::pin, sync::Arc};

use tokio::{sync::Notify, time::Instant};

use super::{
    Coalescer, Dispatch, PlannedRelease, Repeats, Route, SlotWait, mismatched,
    overdue::{Repeat, in_time},
    request::QueuedRequest,
    send_alone,
};
use crate::{
    messages::{AcquireAnswer, AcquireRequest, BatchAnswer, Earlier, ReleaseAnswer},
    model::Error,
    runtime::{self, in_flight::Call},
};

/// Marks the time in which a set submits its requests.
struct Gathering<'a>(&'a Coalescer);

impl<'a> Gathering<'a> {
    fn begin(coalescer: &'a Coalescer) -> Self {
        coalescer.queue.lock().begin_to_gather();
        Self(coalescer)
    }
}

impl Drop for Gathering<'_> {
    fn drop(&mut self) {
        self.0.queue.lock().end_gathering();
    }
}

impl Coalescer {
    /// Submits a request for a lease. A request whose lease an earlier one [may have been granted](Earlier::Unclear) is
    /// sent alone.
    pub(crate) fn acquire(
        self: &Arc<Self>,
        request: Arc<AcquireRequest>,
        repeats: Repeats,
    ) -> Call<AcquireAnswer> {
        let route = self.route(|| QueuedRequest::Acquire(request.clone()));
        let repeat = route.may_be_repeated(repeats).then(|| {
            let mut again = request.clone();
            let coalescer = self.clone();
            let asked = (self.store.clone(), "acquire");
            Repeat::new(asked, &request.key, request.lease, move || {
                // The store may have granted the request that is in the batch.
                Arc::make_mut(&mut again).earlier = Earlier::Unclear;
                coalescer.acquire(again, Repeats::Never)
            })
        });
        let store = self.store.clone();
        let alone = async move { store.acquire(&request).await };
        self.send(route, alone, repeat, |answer| match answer {
            BatchAnswer::Acquire(answer) => Some(answer),
            BatchAnswer::Release(_) => None,
        })
    }

    /// Submits the release of a lease.
    pub(crate) fn release(
        self: &Arc<Self>,
        release: PlannedRelease,
        repeats: Repeats,
    ) -> Call<ReleaseAnswer> {
        let route = self.route(|| QueuedRequest::Release(release.clone()));
        let repeat = route.may_be_repeated(repeats).then(|| {
            let (key, lease) = (&release.request.key, release.request.lease);
            let again = PlannedRelease {
                is_repeated: true,
                ..release.clone()
            };
            let coalescer = self.clone();
            let asked = (self.store.clone(), "release");
            Repeat::new(asked, key, lease, move || {
                coalescer.release(again, Repeats::Never)
            })
        });
        let store = self.store.clone();
        let alone = async move { store.release(&release.at(Instant::now())).await };
        self.send(route, alone, repeat, |answer| match answer {
            BatchAnswer::Release(answer) => Some(answer),
            BatchAnswer::Acquire(_) => None,
        })
    }

    /// Polls `work` to its end. The requests that it submits in the first poll are a set: they are sent in one batch,
    /// however few they are.
    pub(crate) async fn send_together<T>(self: &Arc<Self>, work: impl Future<Output = T>) -> T {
        let mut work = pin!(work);
        let mut has_begun = false;
        poll_fn(|cx| {
            if std::mem::replace(&mut has_begun, true) {
                return work.as_mut().poll(cx);
            }
            let gathering = Gathering::begin(self);
            let polled = work.as_mut().poll(cx);
            drop(gathering);
            while self.dispatch_together(2) {}
            self.dispatch();
            polled
        })
        .await
    }

    fn send<A: Send + 'static>(
        self: &Arc<Self>,
        route: Route,
        alone: impl Future<Output = Result<A, Error>> + Send + 'static,
        repeat: Option<Repeat<A>>,
        read: fn(BatchAnswer) -> Option<A>,
    ) -> Call<A> {
        let coalescer = self.clone();
        match route {
            Route::Now(permit) => {
                let sent = async move { (send_alone(alone, permit).await, None) };
                Call::new(sent, None)
            }
            Route::Later(SlotWait {
                number,
                dispatch,
                went,
            }) => {
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
                let coalescer = self.clone();
                let stop = Arc::new(Notify::new());
                let stopped = stop.clone();
                let withdraw = move || {
                    stopped.notify_one();
                    coalescer.queue.lock().withdraw(number)
                };
                Call::new(
                    in_time(answer, went, repeat, stop),
                    Some(Box::new(withdraw)),
                )
            }
        }
    }
}
