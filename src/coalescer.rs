//! Sends acquires and releases to the store: alone, or several in one batch. While few are under way each goes at once
//! and alone. A request that comes beyond that waits until another has ended, and goes in a batch if that is large
//! enough.
//!
//! A batch costs less than its parts only if it is large (`cycle` in `docs/performance.md`). So while a batch is under
//! way, requests gather for the next one until they are a quarter of all. Three batches are under way at the most: with
//! one alone the server would be idle between two batches. The requests of a set go in one batch, however few they are.
//!
//! A request is sent when there is a place for it, and not before, so that a slow store is not sent more and more. A
//! request that waits can be withdrawn, and then is never sent. If nothing could be sent for a while, one more request
//! or batch goes than there are places: its answer tells whether the others hang, or the store is slow.
//!
//! A request in a batch is answered only with all others of the batch: a transaction that holds one document holds up
//! all of them. So a request whose batch is not answered in time is sent again, alone (`overdue.rs`). The first of the
//! two answers counts, and the operation follows the other call to its end.
//!
//! A coalescer is no [`Store`] itself: it gives a call instead of an answer. An operation takes back a call that was not
//! sent yet, and has to know whether it could, because what was sent may be granted; and it releases what each late
//! answer grants. A call is polled by its operation, which saves a task for each request (`cpu` there).

mod overdue;
mod policy;
mod queue;
mod request;

use std::{fmt, future::poll_fn, pin::pin, sync::Arc};

use parking_lot::Mutex;
use tokio::{
    runtime::Handle,
    sync::{oneshot, watch},
    time::{Instant, timeout},
};

pub(crate) use self::request::PlannedRelease;
use self::{
    overdue::{Repeat, in_time},
    policy::{LEAST, Limits, Next},
    queue::{HANGS, Queue, YOUNG},
    request::Request,
};
use crate::{
    messages::{
        AcquireAnswer, AcquireRequest, BatchAnswer, BatchAnswers, BatchRequest, ReleaseAnswer,
    },
    model::{Cause, Error},
    runtime::{
        self,
        in_flight::{Answer, Call, Progress},
    },
    store::Store,
};

pub(crate) struct Coalescer {
    store: Arc<dyn Store>,
    max_concurrent: usize,
    /// Whether renewals are late: then fewer acquires and releases are sent.
    late: watch::Receiver<bool>,
    queue: Mutex<Queue<Unsent>>,
}

/// A request that waits for a place.
struct Unsent {
    request: Request,
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
    Later(Waiting),
}

/// The other side of a request that waits for a place.
struct Waiting {
    number: u64,
    dispatch: oneshot::Receiver<Dispatch>,
    /// Ends when the request is sent in a batch. Its error says that the request is sent alone.
    went: oneshot::Receiver<()>,
}

impl Route {
    fn waits(&self) -> bool {
        matches!(self, Self::Later(_))
    }
}

/// The time in which a set submits its requests.
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
    pub(crate) fn new(store: Arc<dyn Store>, late: watch::Receiver<bool>) -> Arc<Self> {
        Arc::new(Self {
            max_concurrent: store.max_concurrent().max(1),
            late,
            store,
            queue: Mutex::new(Queue::new()),
        })
    }

    /// Submits a request for a lease. One that is not [fresh](AcquireRequest::fresh) goes alone.
    pub(crate) fn acquire(self: &Arc<Self>, request: Arc<AcquireRequest>) -> Call<AcquireAnswer> {
        let route = self.route(|| Request::Acquire(request.clone()));
        let repeat = route.waits().then(|| {
            let mut again = request.clone();
            let coalescer = self.clone();
            Repeat::new("acquire", &request.key, request.lease, move || {
                // The request in the batch may have been granted.
                Arc::make_mut(&mut again).fresh = false;
                coalescer.acquire(again)
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
    pub(crate) fn release(self: &Arc<Self>, release: PlannedRelease) -> Call<ReleaseAnswer> {
        let route = self.route(|| Request::Release(release.clone()));
        let repeat = route.waits().then(|| {
            let (key, lease) = (&release.request.key, release.request.lease);
            let again = PlannedRelease {
                is_repeated: true,
                ..release.clone()
            };
            let coalescer = self.clone();
            Repeat::new("release", key, lease, move || coalescer.release(again))
        });
        let store = self.store.clone();
        let alone = async move { store.release(&release.at(Instant::now())).await };
        self.send(route, alone, repeat, |answer| match answer {
            BatchAnswer::Release(answer) => Some(answer),
            BatchAnswer::Acquire(_) => None,
        })
    }

    /// Does this work. The requests that it submits when it is first polled are a set: they go in one batch, however
    /// few they are.
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
                let sent = async move { Progress::Answered(send_alone(alone, permit).await) };
                Call::new(sent, None)
            }
            Route::Later(Waiting {
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
                let withdraw = move || coalescer.queue.lock().withdraw(number);
                Call::new(in_time(answer, went, repeat), Some(Box::new(withdraw)))
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
    fn route(self: &Arc<Self>, request: impl FnOnce() -> Request) -> Route {
        let (false, Ok(runtime)) = (self.max_concurrent == usize::MAX, Handle::try_current())
        else {
            return Route::Now(None);
        };
        let now = Instant::now();
        let mut queue = self.queue.lock();
        let load = queue.load(now);
        let is_quiet = load.waiting == 0 && load.young == 0 && !queue.is_gathering();
        if is_quiet && load.singles < self.limits().max_concurrent {
            return Route::Now(Some(self.permit(&mut queue, now, 1)));
        }
        let (reply, dispatch) = oneshot::channel();
        let (went, told) = oneshot::channel();
        let request = request();
        let key = request.key().clone();
        let class = request.class(now, self.store.has_cheap_undoable_releases());
        let (is_single, id) = (request.is_single(), runtime.id());
        let unsent = Unsent {
            request,
            reply,
            went,
            runtime,
        };
        let number = queue.push(key, is_single, class, id, unsent);
        let is_gathering = queue.is_gathering();
        drop(queue);
        if !is_gathering {
            self.dispatch();
        }
        Route::Later(Waiting {
            number,
            dispatch,
            went: told,
        })
    }

    fn permit(
        self: &Arc<Self>,
        queue: &mut Queue<Unsent>,
        now: Instant,
        requests: usize,
    ) -> InFlightPermit {
        InFlightPermit::new(self.clone(), queue.sent(requests, now))
    }

    fn limits(&self) -> Limits {
        if *self.late.borrow() {
            Limits::LEAST
        } else {
            Limits::of(self.max_concurrent)
        }
    }

    /// Sends the requests that wait, as far as there are places.
    fn dispatch(self: &Arc<Self>) {
        self.dispatch_together(LEAST);
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
                runtime.spawn(self.clone().send_batch(batch, permit));
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

    async fn send_batch(self: Arc<Self>, batch: Vec<Unsent>, permit: InFlightPermit) {
        let sent = Instant::now();
        let (mut requests, mut replies) = (Vec::new(), Vec::new());
        for unsent in batch {
            // This fails if the operation was dropped meanwhile, and so does the send of the answer below.
            let _ = unsent.went.send(());
            requests.push(unsent.request.at(sent));
            replies.push(unsent.reply);
        }
        let answers = self.ask(&requests).await;
        permit.end(answers.iter().any(Result::is_ok));
        for (reply, answer) in replies.into_iter().zip(answers) {
            let _ = reply.send(Dispatch::Answer(sent, answer));
        }
    }

    async fn ask(&self, requests: &[BatchRequest]) -> BatchAnswers {
        match runtime::caught(self.store.batch(requests)).await {
            Ok(answers) if answers.len() == requests.len() => answers,
            Ok(_) => vec![Err(mismatched()); requests.len()],
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

/// The place of a request or a batch that was sent. Its drop frees the place.
struct InFlightPermit {
    coalescer: Arc<Coalescer>,
    number: u64,
    /// Whether it was answered; `None` if it has not ended.
    end: Option<bool>,
}

impl InFlightPermit {
    /// The place of what was sent under this number.
    fn new(coalescer: Arc<Coalescer>, number: u64) -> Self {
        Self {
            coalescer,
            number,
            end: None,
        }
    }

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

fn mismatched() -> Error {
    Error::Interrupted {
        store: "the store",
        source: Cause::text("its answers to a batch do not match the requests"),
    }
}
