//! The way of acquires and releases to the store. While few are under way each goes at once and alone;
//! what comes beyond that waits until one of them has ended, and goes together if that is worth it.
//!
//! A batch costs less than its parts only if it is large (`cycle` in `docs/performance.md`). So while one is
//! under way, what comes gathers for the next, until that is a quarter of all; and three are under way at the
//! most, for one would leave the server idle between them.
//!
//! A request that goes together has to put up with its companions: a transaction that holds one
//! document holds up them all. So who waits for the answer should [not do so for long](BATCH_RESPONSE_TIMEOUT) before
//! the same request is sent again, alone.

mod policy;

use std::{
    collections::{HashSet, VecDeque},
    fmt,
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{
    runtime::Handle,
    sync::{oneshot, watch},
    time::{Instant, timeout},
};

use self::policy::{LEAST, Limits, LoadSnapshot, Next};
use crate::{
    messages::{
        AcquireAnswer, AcquireRequest, BatchAnswer, BatchAnswers, BatchRequest, ReleaseAnswer,
        ReleaseRequest,
    },
    model::{Cause, Error},
    runtime,
    store::Store,
};

/// How long a request counts as under way, and for how long one waits for others to end at the most: one
/// that hangs holds up nobody for longer.
const LONGEST_WAIT: Duration = Duration::from_millis(200);

/// How long a batch keeps others from going alone: one that takes longer may hang, and they need not wait for
/// the rest of its [`LONGEST_WAIT`].
const YOUNG: Duration = Duration::from_millis(50);

/// How many go in one batch: more would hold up those who wait for an answer.
const LARGEST: usize = 100;

/// How many of those who wait are looked at for a batch.
const LOOK: usize = 4 * LARGEST;

/// How long to wait for the answer to a request that goes together with others.
pub(crate) const BATCH_RESPONSE_TIMEOUT: Duration = Duration::from_secs(1);

/// A request that is to be sent.
pub(crate) struct Submission<F> {
    /// Whether it goes together with others.
    pub(crate) together: bool,
    /// Sends it. Has to run to its end.
    pub(crate) answer: F,
}

pub(crate) struct Coalescer {
    store: Arc<dyn Store>,
    at_once: usize,
    /// Whether renewals are late: then they go first.
    late: watch::Receiver<bool>,
    queue: Mutex<Queue>,
}

#[derive(Default)]
struct Queue {
    /// What was sent and not answered.
    under_way: Vec<UnderWay>,
    waiting: VecDeque<Waiting>,
    next: u64,
    /// How many requests there were at once of late: under way and waiting.
    crowd: usize,
}

struct UnderWay {
    number: u64,
    since: Instant,
    requests: usize,
}

struct Waiting {
    number: u64,
    request: BatchRequest,
    reply: Reply,
    /// Where who waits for it is at work.
    runtime: Handle,
}

type Reply = oneshot::Sender<Dispatch>;

/// What one who waits is told.
enum Dispatch {
    /// To go alone.
    Go(InFlightPermit),
    /// It has gone, together with others.
    Answer(Result<BatchAnswer, Error>),
}

/// How a request gets to the store.
enum Route {
    /// Alone, and counted as under way if that is of interest.
    Alone(Option<InFlightPermit>),
    /// With the others that wait, or alone if there is no answer.
    Together(u64, oneshot::Receiver<Dispatch>),
}

impl Coalescer {
    pub(crate) fn new(store: Arc<dyn Store>, late: watch::Receiver<bool>) -> Arc<Self> {
        Arc::new(Self {
            at_once: store.at_once().max(1),
            late,
            store,
            queue: Mutex::default(),
        })
    }

    /// Asks for a lease, together with others unless it is to go alone.
    pub(crate) fn acquire(
        self: &Arc<Self>,
        request: Arc<AcquireRequest>,
        alone: bool,
    ) -> Submission<impl Future<Output = Result<AcquireAnswer, Error>> + Send + use<>> {
        let route = self.route(alone, || BatchRequest::Acquire(request.clone()));
        let store = self.store.clone();
        let alone = async move { store.acquire(&request).await };
        self.clone().send(route, alone, |answer| match answer {
            BatchAnswer::Acquire(answer) => Some(answer),
            BatchAnswer::Release(_) => None,
        })
    }

    /// Releases a lease, together with others unless it is to go alone.
    pub(crate) fn release(
        self: &Arc<Self>,
        request: ReleaseRequest,
        alone: bool,
    ) -> Submission<impl Future<Output = Result<ReleaseAnswer, Error>> + Send + use<>> {
        let route = self.route(alone, || BatchRequest::Release(request.clone()));
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
    ) -> Submission<impl Future<Output = Result<A, Error>> + Send> {
        Submission {
            together: matches!(route, Route::Together(..)),
            answer: async move {
                let permit = match route {
                    Route::Alone(permit) => permit,
                    Route::Together(number, mut reply) => {
                        let mut waited = timeout(YOUNG, &mut reply).await;
                        if waited.is_err() {
                            self.dispatch();
                            waited = timeout(LONGEST_WAIT - YOUNG, &mut reply).await;
                        }
                        let dispatched = match waited {
                            Err(_) if self.withdraw(number) => {
                                self.dispatch();
                                None
                            }
                            Err(_) => Some(reply.await),
                            Ok(dispatched) => Some(dispatched),
                        };
                        let dispatched = dispatched.transpose().map_err(|_| runtime::ended())?;
                        match dispatched {
                            Some(Dispatch::Answer(answer)) => {
                                return read(answer?).ok_or_else(another_kind);
                            }
                            Some(Dispatch::Go(permit)) => Some(permit),
                            None => None,
                        }
                    }
                };
                let answer = alone.await;
                if let Some(permit) = permit {
                    permit.answered();
                }
                answer
            },
        }
    }

    /// How the next request goes.
    fn route(self: &Arc<Self>, alone: bool, request: impl FnOnce() -> BatchRequest) -> Route {
        let (false, Ok(runtime)) = (alone || self.at_once == usize::MAX, Handle::try_current())
        else {
            return Route::Alone(None);
        };
        let now = Instant::now();
        let mut queue = self.queue.lock();
        queue.forget_the_late(now);
        let LoadSnapshot { young, alone, .. } = queue.load(now);
        if queue.waiting.is_empty() && young == 0 && alone < self.limits().at_once {
            return Route::Alone(Some(self.permit(&mut queue, now, 1)));
        }
        let (reply, answer) = oneshot::channel();
        let number = queue.number();
        let request = request();
        queue.waiting.push_back(Waiting {
            number,
            request,
            reply,
            runtime,
        });
        drop(queue);
        self.dispatch();
        Route::Together(number, answer)
    }

    fn permit(
        self: &Arc<Self>,
        queue: &mut Queue,
        now: Instant,
        requests: usize,
    ) -> InFlightPermit {
        let number = queue.number();
        queue.under_way.push(UnderWay {
            number,
            since: now,
            requests,
        });
        InFlightPermit {
            coalescer: self.clone(),
            number,
            answered: false,
        }
    }

    fn limits(&self) -> Limits {
        match *self.late.borrow() {
            true => Limits::LEAST,
            false => Limits::of(self.at_once),
        }
    }

    /// Sends what waits, if it may go.
    fn dispatch(self: &Arc<Self>) {
        let now = Instant::now();
        let mut queue = self.queue.lock();
        queue.forget_the_late(now);
        let limits = self.limits();
        if queue.load(now).next(limits) == Next::Stay {
            return;
        }
        // Who was lost with his runtime would not take what he is granted.
        queue.waiting.retain(|waiting| !waiting.reply.is_closed());
        let load = queue.load(now);
        let mut next = load.next(limits);
        if next == Next::Together {
            if let Some((runtime, batch)) = queue.batch() {
                let permit = self.permit(&mut queue, now, batch.len());
                drop(queue);
                runtime.spawn(self.clone().send_together(batch, permit));
                return;
            }
            next = load.each_alone(limits);
        }
        let Next::Alone(number) = next else {
            return;
        };
        let going: Vec<_> = queue.waiting.drain(..number).collect();
        let slots = going.iter().map(|_| self.permit(&mut queue, now, 1));
        let slots: Vec<_> = slots.collect();
        drop(queue);
        for (waiting, permit) in going.into_iter().zip(slots) {
            // Who has gone in this moment leaves his place to others.
            if let Err(Dispatch::Go(permit)) = waiting.reply.send(Dispatch::Go(permit)) {
                permit.answered();
            }
        }
    }

    async fn send_together(
        self: Arc<Self>,
        batch: Vec<(BatchRequest, Reply)>,
        permit: InFlightPermit,
    ) {
        let (requests, replies): (Vec<_>, Vec<_>) = batch.into_iter().unzip();
        let answers = self.ask(&requests).await;
        permit.answered();
        for (reply, answer) in replies.into_iter().zip(answers) {
            // Who has gone meanwhile does not want to know.
            let _ = reply.send(Dispatch::Answer(answer));
        }
    }

    async fn ask(&self, requests: &[BatchRequest]) -> BatchAnswers {
        match runtime::caught(self.store.batch(requests)).await {
            Ok(answers) if answers.len() == requests.len() => answers,
            Ok(_) => vec![Err(another_kind()); requests.len()],
            Err(error) => vec![Err(error); requests.len()],
        }
    }

    /// Takes back a request that has not been sent yet.
    fn withdraw(&self, number: u64) -> bool {
        let mut queue = self.queue.lock();
        let before = queue.waiting.len();
        queue.waiting.retain(|waiting| waiting.number != number);
        queue.waiting.len() < before
    }
}

impl Queue {
    fn load(&mut self, now: Instant) -> LoadSnapshot {
        let mut load = LoadSnapshot {
            waiting: self.waiting.len(),
            batches: 0,
            young: 0,
            alone: 0,
            crowd: self.waiting.len(),
        };
        for it in &self.under_way {
            load.crowd += it.requests;
            match it.requests {
                1 => load.alone += 1,
                _ => {
                    load.batches += 1;
                    load.young += usize::from(now - it.since < YOUNG);
                }
            }
        }
        self.crowd = self.crowd.max(load.crowd);
        load.crowd = self.crowd;
        load
    }

    fn forget_the_late(&mut self, now: Instant) {
        self.under_way.retain(|it| now - it.since < LONGEST_WAIT);
    }

    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// Takes out what goes together: the first that wait, of one runtime, because another one may stand
    /// still; but for a second request for one key. `None`, and nothing is taken out, if those are too few.
    fn batch(&mut self) -> Option<(Handle, Vec<(BatchRequest, Reply)>)> {
        let runtime = self.waiting.front()?.runtime.clone();
        let looked_at = self.waiting.len().min(LOOK);
        let (mut batch, mut left) = (Vec::new(), Vec::new());
        let mut keys = HashSet::new();
        for waiting in self.waiting.drain(..looked_at) {
            let goes = batch.len() < LARGEST
                && waiting.runtime.id() == runtime.id()
                && keys.insert(waiting.request.key().clone());
            match goes {
                true => batch.push(waiting),
                false => left.push(waiting),
            }
        }
        let few = batch.len() < LEAST;
        if few {
            left.append(&mut batch);
            left.sort_by_key(|waiting| waiting.number);
        }
        left.into_iter()
            .rev()
            .for_each(|waiting| self.waiting.push_front(waiting));
        if few {
            return None;
        }
        // It is forgotten by and by.
        self.crowd -= self.crowd / 8;
        let batch = batch.into_iter().map(|it| (it.request, it.reply));
        Some((runtime, batch.collect()))
    }
}

/// Something that is under way.
struct InFlightPermit {
    coalescer: Arc<Coalescer>,
    number: u64,
    answered: bool,
}

impl InFlightPermit {
    /// It is over, and something else may go.
    fn answered(mut self) {
        self.answered = true;
    }
}

impl Drop for InFlightPermit {
    fn drop(&mut self) {
        let mut queue = self.coalescer.queue.lock();
        queue.under_way.retain(|it| it.number != self.number);
        drop(queue);
        // Otherwise its runtime has ended. Who waits goes with the next, or alone after a while.
        if self.answered {
            self.coalescer.dispatch();
        }
    }
}

impl fmt::Debug for Coalescer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let queue = self.queue.lock();
        f.debug_struct("Coalescer")
            .field("store", &self.store)
            .field("under_way", &queue.under_way.len())
            .field("waiting", &queue.waiting.len())
            .finish_non_exhaustive()
    }
}

fn another_kind() -> Error {
    Error::Interrupted {
        store: "the store",
        source: Cause::text("its answers to a batch are not those to the questions"),
    }
}
