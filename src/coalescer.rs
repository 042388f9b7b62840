//! The way of acquires and releases to the store. While few are under way each goes at once and alone;
//! what comes beyond that waits until one of them has ended, and goes together if that is worth it.
//!
//! A batch costs less than its parts only if it is large (`cycle` in `docs/performance.md`). So while one is
//! under way, what comes gathers for the next, until that is a quarter of all; and three are under way at the
//! most, for one would leave the server idle between them.
//!
//! A request is sent when there is a place for it, and not before, so that a store that is slow is not sent more
//! and more. One that waits can be withdrawn, and is never sent then. If nothing could be sent for a while, one
//! more goes than there are places: its answer tells whether the others hang, or the store is slow.
//!
//! A request that goes together has to put up with its companions: a transaction that holds one document holds up
//! them all. So after [`OVERDUE`] it should be sent again, alone.

mod policy;
mod queue;

use std::{fmt, future::pending, sync::Arc, time::Duration};

use futures::future::{Either, OptionFuture};
use parking_lot::Mutex;
use tokio::{
    runtime::Handle,
    sync::{oneshot, watch},
    time::{Instant, sleep, timeout},
};

use self::{
    policy::{LEAST, Limits, Next},
    queue::{HANGS, Queue, YOUNG},
};
use crate::{
    messages::{
        AcquireAnswer, AcquireRequest, BatchAnswer, BatchAnswers, BatchRequest, ReleaseAnswer,
        ReleaseRequest,
    },
    model::{Cause, Error},
    runtime::{
        self,
        in_flight::{Answer, Withdraw},
    },
    store::Store,
};

/// How long to wait for the answer to a request that has gone together with others.
const OVERDUE: Duration = Duration::from_secs(1);

/// Which requests a request may share a batch with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Batching {
    /// With any that wait for a place at the same time.
    Any,
    /// With none: it is sent again, because its batch was not answered.
    Never,
    /// With those of its set, which are all submitted before [any is sent](Coalescer::send_set).
    Set,
}

/// A request that is to be sent.
pub(crate) struct Submission<F> {
    /// Sends it as soon as it may go. Gives the instant before it was sent, and the answer. Has to run to its end,
    /// unless it is withdrawn.
    pub(crate) answer: F,
    /// Takes it back; `None` if it goes at once.
    pub(crate) withdraw: Option<Withdraw>,
    /// When it should be sent again, alone.
    pub(crate) overdue: Overdue,
}

/// Tells when the answer to a request that has gone together with others is late; never for one that goes alone.
pub(crate) struct Overdue(Option<oneshot::Receiver<()>>);

impl Overdue {
    /// Waits until then, or until this much has passed. Gives which time that was.
    pub(crate) async fn or_after(self, limit: Duration) -> Duration {
        let overdue = async {
            let went = OptionFuture::from(self.0).await;
            match went {
                Some(Ok(())) => sleep(OVERDUE).await,
                // The request goes alone, or went.
                _ => pending().await,
            }
        };
        match timeout(limit, overdue).await {
            Ok(()) => OVERDUE,
            Err(_) => limit,
        }
    }
}

pub(crate) struct Coalescer {
    store: Arc<dyn Store>,
    max_concurrent: usize,
    /// Whether renewals are late: then they go first.
    late: watch::Receiver<bool>,
    queue: Mutex<Queue<Unsent>>,
}

/// A request that waits for a place.
struct Unsent {
    request: BatchRequest,
    reply: Reply,
    /// Told when it goes together with others.
    went: oneshot::Sender<()>,
    /// The runtime of the operation that waits for it.
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

/// How a request gets to the store.
enum Route {
    /// At once, and counted as under way if it has a permit.
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

    /// Asks for a lease.
    pub(crate) fn acquire(
        self: &Arc<Self>,
        request: Arc<AcquireRequest>,
        batching: Batching,
    ) -> Submission<impl Future<Output = Answer<AcquireAnswer>> + Send + use<>> {
        let route = self.route(batching, || BatchRequest::Acquire(request.clone()));
        let store = self.store.clone();
        let alone = async move { store.acquire(&request).await };
        let mut submission = self.clone().send(route, alone, |answer| match answer {
            BatchAnswer::Acquire(answer) => Some(answer),
            BatchAnswer::Release(_) => None,
        });
        if batching == Batching::Set {
            // A set that was given up before its answer would wait for its own leases.
            submission.overdue = Overdue(None);
        }
        submission
    }

    /// Releases a lease.
    pub(crate) fn release(
        self: &Arc<Self>,
        request: ReleaseRequest,
        batching: Batching,
    ) -> Submission<impl Future<Output = Answer<ReleaseAnswer>> + Send + use<>> {
        let route = self.route(batching, || BatchRequest::Release(request.clone()));
        let store = self.store.clone();
        let alone = async move { store.release(&request).await };
        self.clone().send(route, alone, |answer| match answer {
            BatchAnswer::Release(answer) => Some(answer),
            BatchAnswer::Acquire(_) => None,
        })
    }

    fn send<A>(
        self: Arc<Self>,
        route: Route,
        alone: impl Future<Output = Result<A, Error>> + Send,
        read: fn(BatchAnswer) -> Option<A>,
    ) -> Submission<impl Future<Output = Answer<A>> + Send> {
        let (turn, withdraw, overdue) = match route {
            Route::Now(permit) => (Either::Left(permit), None, Overdue(None)),
            Route::Later(number, reply, went) => {
                let coalescer = self.clone();
                let withdraw: Withdraw = Box::new(move || coalescer.queue.lock().withdraw(number));
                (Either::Right(reply), Some(withdraw), Overdue(Some(went)))
            }
        };
        let answer = async move {
            let permit = match turn {
                Either::Left(permit) => permit,
                Either::Right(reply) => match self.dispatched(reply).await {
                    Some(Dispatch::Go(permit)) => Some(permit),
                    Some(Dispatch::Answer(sent, answer)) => {
                        let read = |answer| read(answer).ok_or_else(another_kind);
                        return (sent, answer.and_then(read));
                    }
                    None => return (Instant::now(), Err(runtime::ended())),
                },
            };
            let sent = Instant::now();
            let answer = runtime::caught(alone).await;
            if let Some(permit) = permit {
                permit.end(answer.is_ok());
            }
            (sent, answer)
        };
        Submission {
            answer,
            withdraw,
            overdue,
        }
    }

    /// Waits until a request is dispatched; `None` if that went down with its runtime. Each that waits looks
    /// from time to time whether any may go, because a request that hangs gives no sign of it.
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

    /// How the next request goes.
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
        let unsent = Unsent {
            request,
            reply,
            went,
            runtime,
        };
        let number = queue.push(key, batching == Batching::Never, id, unsent);
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

    /// Sends the requests of a [set](Batching::Set), in one batch if there is a place for one.
    pub(crate) fn send_set(self: &Arc<Self>) {
        while self.dispatch_together(2) {}
    }

    /// Sends what waits, if it may go.
    fn dispatch(self: &Arc<Self>) {
        let _ = self.dispatch_together(LEAST);
    }

    /// The same, where so many requests are enough for a batch. Says whether a batch was sent.
    fn dispatch_together(self: &Arc<Self>, least: usize) -> bool {
        let now = Instant::now();
        let mut queue = self.queue.lock();
        let limits = self.limits();
        if queue.load(now).next(limits, least) == Next::Stay {
            return false;
        }
        // An operation that went down with its runtime would not take what it is granted.
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
            // An operation that has ended in this moment leaves its place to others.
            if let Err(Dispatch::Go(permit)) = unsent.reply.send(Dispatch::Go(permit)) {
                permit.end(false);
            }
        }
        false
    }

    async fn send_together(self: Arc<Self>, batch: Vec<Unsent>, permit: InFlightPermit) {
        let (mut requests, mut replies) = (Vec::new(), Vec::new());
        for unsent in batch {
            // This send, and that of the answer, fail if the operation has ended meanwhile.
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

/// The place of a request or a batch that was sent.
struct InFlightPermit {
    coalescer: Arc<Coalescer>,
    number: u64,
    /// Whether it was answered; `None` if it has not ended.
    end: Option<bool>,
}

impl InFlightPermit {
    /// The request has ended, with an answer or an error, and another may go.
    fn end(mut self, answered: bool) {
        self.end = Some(answered);
    }
}

impl Drop for InFlightPermit {
    fn drop(&mut self) {
        let answered = self.end == Some(true);
        self.coalescer.queue.lock().ended(self.number, answered);
        // One that has not ended went down with its runtime: those that wait look for a place by themselves.
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
