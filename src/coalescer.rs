//! Sends acquires and releases to the store: alone, or several in one batch. While few are under way each goes at once
//! and alone. A request that comes beyond that waits until another has ended, and goes in a batch if that is large
//! enough.
//!
//! A batch costs less than its parts only if it is large (`cycle` in `docs/performance.md`). So while a batch is under
//! way, requests gather for the next one until they are a quarter of all. Three batches are under way at the most: with
//! one alone the server would be idle between two batches.
//!
//! A request is sent when there is a place for it, and not before, so that a slow store is not sent more and more. A
//! request that waits can be withdrawn, and then is never sent. If nothing could be sent for a while, one more request
//! or batch goes than there are places: its answer tells whether the others hang, or the store is slow.
//!
//! A request in a batch is answered only with all others of the batch: a transaction that holds one document holds up
//! all of them. So a request whose batch is not answered after [`OVERDUE`] is sent again, alone. The first of the two
//! answers counts, and the operation follows the other call to its end.
//!
//! A coalescer is no [`Store`] itself. An operation takes back what was not sent yet, and has to know whether it could:
//! what was sent may be granted. It also submits the requests of a set before the first of them is sent.

mod policy;
mod queue;

use std::{fmt, future::pending, pin::pin, sync::Arc, time::Duration};

use futures::future::{Either, select};
use parking_lot::Mutex;
use tokio::{
    runtime::Handle,
    sync::{oneshot, watch},
    time::{Instant, sleep, timeout},
};

use self::{
    policy::{LEAST, Limits, Next},
    queue::{Class, HANGS, Queue, YOUNG},
};
use crate::{
    messages::{
        AcquireAnswer, AcquireRequest, BatchAnswer, BatchAnswers, BatchRequest, ReleaseAnswer,
        ReleaseRequest,
    },
    model::{Cause, Error, Key, LeaseId},
    runtime::{
        self,
        in_flight::{Answer, Call, Progress},
    },
    store::Store,
    telemetry,
};

/// How long to wait for the answer to a request that was sent in a batch, until it is sent again.
const OVERDUE: Duration = Duration::from_secs(1);

/// Which requests a request may share a batch with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Batching {
    /// With any others that wait for a place at the same time.
    Any,
    /// With none: the request is a retry after an error.
    Never,
    /// With any, but not before all requests of its set are submitted and [sent](Coalescer::send_set).
    Set,
}

pub(crate) struct Coalescer {
    store: Arc<dyn Store>,
    max_concurrent: usize,
    /// Whether renewals are late: then fewer acquires and releases are sent.
    late: watch::Receiver<bool>,
    queue: Mutex<Queue<Unsent>>,
}

/// A request that waits for a place.
struct Unsent {
    request: BatchRequest,
    reply: Reply,
    /// Told when the request is sent in a batch.
    went: oneshot::Sender<()>,
    /// The runtime of the operation that waits for the answer.
    runtime: Handle,
}

type Reply = oneshot::Sender<Dispatch>;

/// The end of the wait of a request.
enum Dispatch {
    /// The request may be sent alone now.
    Go(InFlightPermit),
    /// The request was sent in a batch, at this time, and this is its answer.
    Answer(Instant, Result<BatchAnswer, Error>),
}

/// When a request is sent to the store.
enum Route {
    /// At once. It is counted as under way if it has a permit.
    Now(Option<InFlightPermit>),
    /// When there is a place for it.
    Later(u64, oneshot::Receiver<Dispatch>, oneshot::Receiver<()>),
}

impl Coalescer {
    pub(crate) fn new(store: Arc<dyn Store>, late: watch::Receiver<bool>) -> Arc<Self> {
        Arc::new(Self {
            max_concurrent: store.max_concurrent().max(1),
            late,
            store,
            queue: Mutex::new(Queue::new()),
        })
    }

    /// Submits a request for a lease.
    pub(crate) fn acquire(
        self: &Arc<Self>,
        request: Arc<AcquireRequest>,
        batching: Batching,
    ) -> Call<AcquireAnswer> {
        let route = self.route(batching, || BatchRequest::Acquire(request.clone()));
        let again = match (batching, &route) {
            // If a set asked again and that was answered, its batch might still be granted the keys, and the set, which
            // then asks for one key after the other, would wait for its own leases.
            (Batching::Set, _) | (_, Route::Now(_)) => None,
            (Batching::Any | Batching::Never, Route::Later(..)) => {
                let mut request = request.clone();
                let again = self.again("acquire", request.key.clone(), request.lease, move |it| {
                    // The request in the batch may have been granted.
                    Arc::make_mut(&mut request).fresh = false;
                    it.acquire(request, Batching::Never)
                });
                Some(again)
            }
        };
        let store = self.store.clone();
        let alone = async move { store.acquire(&request).await };
        self.send(route, alone, again, |answer| match answer {
            BatchAnswer::Acquire(answer) => Some(answer),
            BatchAnswer::Release(_) => None,
        })
    }

    /// Submits the release of a lease.
    pub(crate) fn release(
        self: &Arc<Self>,
        request: ReleaseRequest,
        batching: Batching,
    ) -> Call<ReleaseAnswer> {
        let route = self.route(batching, || BatchRequest::Release(request.clone()));
        let again = match &route {
            Route::Now(_) => None,
            Route::Later(..) => {
                let request = request.clone();
                let again = self.again("release", request.key.clone(), request.lease, move |it| {
                    it.release(request, Batching::Never)
                });
                Some(again)
            }
        };
        let store = self.store.clone();
        let alone = async move { store.release(&request).await };
        self.send(route, alone, again, |answer| match answer {
            BatchAnswer::Release(answer) => Some(answer),
            BatchAnswer::Acquire(_) => None,
        })
    }

    /// Makes a call whose batch is not answered in time once more.
    fn again<A: 'static>(
        self: &Arc<Self>,
        operation: &'static str,
        key: Key,
        lease: LeaseId,
        call: impl FnOnce(&Arc<Self>) -> Call<A> + Send + 'static,
    ) -> Box<dyn FnOnce() -> Call<A> + Send> {
        let coalescer = self.clone();
        Box::new(move || {
            let limit = OVERDUE;
            let late = Error::TimedOut { operation, limit };
            telemetry::store_failed(operation, Some((&key, lease)), &late);
            call(&coalescer)
        })
    }

    fn send<A: Send + 'static>(
        self: &Arc<Self>,
        route: Route,
        alone: impl Future<Output = Result<A, Error>> + Send + 'static,
        again: Option<Box<dyn FnOnce() -> Call<A> + Send>>,
        read: fn(BatchAnswer) -> Option<A>,
    ) -> Call<A> {
        let coalescer = self.clone();
        match route {
            Route::Now(permit) => {
                let sent = async move { Progress::Answered(send_alone(alone, permit).await) };
                Call::new(sent, None)
            }
            Route::Later(number, reply, went) => {
                let answer = async move {
                    match coalescer.dispatched(reply).await {
                        Some(Dispatch::Go(permit)) => send_alone(alone, Some(permit)).await,
                        Some(Dispatch::Answer(sent, answer)) => {
                            let read = |answer| read(answer).ok_or_else(another_kind);
                            (sent, answer.and_then(read))
                        }
                        None => (Instant::now(), Err(runtime::ended())),
                    }
                };
                let coalescer = self.clone();
                let withdraw = move || coalescer.queue.lock().withdraw(number);
                Call::new(in_time(answer, went, again), Some(Box::new(withdraw)))
            }
        }
    }

    /// Waits until a request is dispatched; `None` if its batch was dropped with the runtime that sent it. Each request
    /// that waits dispatches from time to time: one under way that hangs loses its place without an event.
    async fn dispatched(
        self: &Arc<Self>,
        mut reply: oneshot::Receiver<Dispatch>,
    ) -> Option<Dispatch> {
        let mut longest = YOUNG;
        loop {
            match timeout(longest, &mut reply).await {
                Ok(dispatched) => return dispatched.ok(),
                Err(_) => self.dispatch(),
            }
            longest = HANGS;
        }
    }

    /// Takes a place for a request, or a place in the queue.
    fn route(
        self: &Arc<Self>,
        batching: Batching,
        request: impl FnOnce() -> BatchRequest,
    ) -> Route {
        let (false, Ok(runtime)) = (self.max_concurrent == usize::MAX, Handle::try_current())
        else {
            return Route::Now(None);
        };
        let now = Instant::now();
        let mut queue = self.queue.lock();
        let load = queue.load(now);
        let is_quiet = load.waiting == 0 && load.young == 0;
        if is_quiet && batching != Batching::Set && load.alone < self.limits().max_concurrent {
            return Route::Now(Some(self.permit(&mut queue, now, 1)));
        }
        let (reply, answer) = oneshot::channel();
        let (went, together) = oneshot::channel();
        let (request, id) = (request(), runtime.id());
        let key = request.key().clone();
        let apart = self.store.has_cheap_undoable_releases();
        let class = match &request {
            BatchRequest::Release(release) if release.undoable && apart => Class::Undoable,
            BatchRequest::Release(_) | BatchRequest::Acquire(_) => Class::Durable,
        };
        let unsent = Unsent {
            request,
            reply,
            went,
            runtime,
        };
        let number = queue.push(key, batching == Batching::Never, class, id, unsent);
        drop(queue);
        if batching != Batching::Set {
            self.dispatch();
        }
        Route::Later(number, answer, together)
    }

    fn permit(
        self: &Arc<Self>,
        queue: &mut Queue<Unsent>,
        now: Instant,
        requests: usize,
    ) -> InFlightPermit {
        InFlightPermit {
            coalescer: self.clone(),
            number: queue.sent(requests, now),
            end: None,
        }
    }

    fn limits(&self) -> Limits {
        if *self.late.borrow() {
            Limits::LEAST
        } else {
            Limits::of(self.max_concurrent)
        }
    }

    /// Sends the requests of a [set](Batching::Set) that were submitted, in a batch if there is a place for one.
    pub(crate) fn send_set(self: &Arc<Self>) {
        while self.dispatch_together(2) {}
    }

    /// Sends the requests that wait, as far as there are places.
    fn dispatch(self: &Arc<Self>) {
        let _ = self.dispatch_together(LEAST);
    }

    /// The same, where `least` requests are enough for a batch. Says whether a batch was sent.
    fn dispatch_together(self: &Arc<Self>, least: usize) -> bool {
        let now = Instant::now();
        let mut queue = self.queue.lock();
        let limits = self.limits();
        if queue.load(now).next(limits, least) == Next::Stay {
            return false;
        }
        // The operation of such a request was dropped with its runtime: nobody would take the lease that it is granted.
        queue.retain(|unsent| !unsent.reply.is_closed());
        let load = queue.load(now);
        let mut next = load.next(limits, least);
        if next == Next::Together {
            if let Some(batch) = queue.take_batch(least)
                && let Some(runtime) = batch.first().map(|unsent| unsent.runtime.clone())
            {
                let permit = self.permit(&mut queue, now, batch.len());
                drop(queue);
                runtime.spawn(self.clone().send_together(batch, permit));
                return true;
            }
            next = load.each_alone(limits);
        }
        let Next::Alone(number) = next else {
            return false;
        };
        let going = queue.take_first(number);
        let permits = going.iter().map(|_| self.permit(&mut queue, now, 1));
        let permits: Vec<_> = permits.collect();
        drop(queue);
        for (unsent, permit) in going.into_iter().zip(permits) {
            // This fails if the operation was dropped meanwhile: then its place goes to others.
            if let Err(Dispatch::Go(permit)) = unsent.reply.send(Dispatch::Go(permit)) {
                permit.end(false);
            }
        }
        false
    }

    async fn send_together(self: Arc<Self>, batch: Vec<Unsent>, permit: InFlightPermit) {
        let (mut requests, mut replies) = (Vec::new(), Vec::new());
        for unsent in batch {
            // This fails if the operation was dropped meanwhile, and so does the send of the answer below.
            let _ = unsent.went.send(());
            requests.push(unsent.request);
            replies.push(unsent.reply);
        }
        let sent = Instant::now();
        let answers = self.ask(&requests).await;
        permit.end(answers.iter().any(Result::is_ok));
        for (reply, answer) in replies.into_iter().zip(answers) {
            let _ = reply.send(Dispatch::Answer(sent, answer));
        }
    }

    async fn ask(&self, requests: &[BatchRequest]) -> BatchAnswers {
        match runtime::caught(self.store.batch(requests)).await {
            Ok(answers) if answers.len() == requests.len() => answers,
            Ok(_) => vec![Err(another_kind()); requests.len()],
            Err(error) => vec![Err(error); requests.len()],
        }
    }
}

/// Sends a request by itself.
async fn send_alone<A>(
    request: impl Future<Output = Result<A, Error>>,
    permit: Option<InFlightPermit>,
) -> Answer<A> {
    let sent = Instant::now();
    let answer = runtime::caught(request).await;
    if let Some(permit) = permit {
        permit.end(answer.is_ok());
    }
    (sent, answer)
}

/// Waits for an answer, but no longer than [`OVERDUE`] after the request went in a batch, if it may be sent again.
async fn in_time<A: Send + 'static>(
    answer: impl Future<Output = Answer<A>> + Send + 'static,
    went: oneshot::Receiver<()>,
    again: Option<Box<dyn FnOnce() -> Call<A> + Send>>,
) -> Progress<A> {
    let Some(again) = again else {
        return Progress::Answered(answer.await);
    };
    let overdue = pin!(async {
        match went.await {
            Ok(()) => sleep(OVERDUE).await,
            // The request is sent alone.
            Err(_) => pending().await,
        }
    });
    match select(Box::pin(answer), overdue).await {
        Either::Left((answer, _)) => Progress::Answered(answer),
        Either::Right(((), rest)) => {
            let rest = async move { Progress::Answered(rest.await) };
            Progress::Overdue(Call::new(rest, None), again)
        }
    }
}

/// The place of a request or a batch that was sent. Its drop frees the place.
struct InFlightPermit {
    coalescer: Arc<Coalescer>,
    number: u64,
    /// Whether it was answered; `None` if it has not ended.
    end: Option<bool>,
}

impl InFlightPermit {
    /// Frees the place of a request that has ended, with an answer or an error, and sends what waits for it.
    fn end(mut self, answered: bool) {
        self.end = Some(answered);
    }
}

impl Drop for InFlightPermit {
    fn drop(&mut self) {
        let answered = self.end == Some(true);
        self.coalescer.queue.lock().ended(self.number, answered);
        // A request that has not ended was dropped with its runtime. That is no place to send others from: those that
        // wait look for a place by themselves.
        if self.end.is_some() {
            self.coalescer.dispatch();
        }
    }
}

impl fmt::Debug for Coalescer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Coalescer")
            .field("store", &self.store)
            .finish_non_exhaustive()
    }
}

fn another_kind() -> Error {
    Error::Interrupted {
        store: "the store",
        source: Cause::text("its answers to a batch are not those to the questions"),
    }
}
