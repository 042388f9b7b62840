//! The way of acquires and releases to the store. While few are under way each goes at once and alone;
//! what comes beyond that waits until one of them has ended, and goes together if that is worth it.
//!
//! A batch costs less than its parts only if it is large (`cycle` in `docs/performance.md`). So while one is
//! under way, what comes gathers for the next, until that is a quarter of all; and three are under way at the
//! most, for one would leave the server idle between them.
//!
//! A request that goes together has to put up with its companions: a transaction that holds one
//! document holds up them all. So who waits for the answer should [not do so for long](HURRY) before
//! the same request is sent again, alone.

mod load;

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

use self::load::{LEAST, Limits, Load, Next};
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
const SLOT: Duration = Duration::from_millis(200);

/// How long a batch keeps others from going alone: one that takes longer may hang, and they need not wait for
/// the rest of its [`SLOT`].
const PATIENCE: Duration = Duration::from_millis(50);

/// How many go in one batch: more would hold up those who wait for an answer.
const LARGEST: usize = 100;

/// How many of those who wait are looked at for a batch.
const LOOK: usize = 4 * LARGEST;

/// How long to wait for the answer to a request that goes together with others.
pub(crate) const HURRY: Duration = Duration::from_secs(1);

/// A request that is to be sent.
pub(crate) struct Sending<F> {
    /// Whether it goes together with others.
    pub(crate) together: bool,
    /// Sends it. Has to run to its end.
    pub(crate) answer: F,
}

pub(crate) struct Wire {
    store: Arc<dyn Store>,
    at_once: usize,
    /// Whether renewals are late: then they go first.
    late: watch::Receiver<bool>,
    line: Mutex<Line>,
}

#[derive(Default)]
struct Line {
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

type Reply = oneshot::Sender<Word>;

/// What one who waits is told.
enum Word {
    /// To go alone.
    Go(Slot),
    /// It has gone, together with others.
    Answer(Result<BatchAnswer, Error>),
}

/// How a request gets to the store.
enum Passage {
    /// Alone, and counted as under way if that is of interest.
    Alone(Option<Slot>),
    /// With the others that wait, or alone if there is no answer.
    Together(u64, oneshot::Receiver<Word>),
}

impl Wire {
    pub(crate) fn new(store: Arc<dyn Store>, late: watch::Receiver<bool>) -> Arc<Self> {
        Arc::new(Self {
            at_once: store.at_once().max(1),
            late,
            store,
            line: Mutex::default(),
        })
    }

    /// Asks for a lease, together with others unless it is to go alone.
    pub(crate) fn acquire(
        self: &Arc<Self>,
        request: Arc<AcquireRequest>,
        alone: bool,
    ) -> Sending<impl Future<Output = Result<AcquireAnswer, Error>> + Send + use<>> {
        let passage = self.passage(alone, || BatchRequest::Acquire(request.clone()));
        let store = self.store.clone();
        let alone = async move { store.acquire(&request).await };
        self.clone().send(passage, alone, |answer| match answer {
            BatchAnswer::Acquire(answer) => Some(answer),
            BatchAnswer::Release(_) => None,
        })
    }

    /// Releases a lease, together with others unless it is to go alone.
    pub(crate) fn release(
        self: &Arc<Self>,
        request: ReleaseRequest,
        alone: bool,
    ) -> Sending<impl Future<Output = Result<ReleaseAnswer, Error>> + Send + use<>> {
        let passage = self.passage(alone, || BatchRequest::Release(request.clone()));
        let store = self.store.clone();
        let alone = async move { store.release(&request).await };
        self.clone().send(passage, alone, |answer| match answer {
            BatchAnswer::Release(answer) => Some(answer),
            BatchAnswer::Acquire(_) => None,
        })
    }

    fn send<A>(
        self: Arc<Self>,
        passage: Passage,
        alone: impl Future<Output = Result<A, Error>> + Send,
        read: fn(BatchAnswer) -> Option<A>,
    ) -> Sending<impl Future<Output = Result<A, Error>> + Send> {
        Sending {
            together: matches!(passage, Passage::Together(..)),
            answer: async move {
                let slot = match passage {
                    Passage::Alone(slot) => slot,
                    Passage::Together(number, mut reply) => {
                        let mut waited = timeout(PATIENCE, &mut reply).await;
                        if waited.is_err() {
                            self.carry();
                            waited = timeout(SLOT - PATIENCE, &mut reply).await;
                        }
                        let word = match waited {
                            Err(_) if self.withdraw(number) => {
                                self.carry();
                                None
                            }
                            Err(_) => Some(reply.await),
                            Ok(word) => Some(word),
                        };
                        let word = word.transpose().map_err(|_| runtime::ended())?;
                        match word {
                            Some(Word::Answer(answer)) => {
                                return read(answer?).ok_or_else(another_kind);
                            }
                            Some(Word::Go(slot)) => Some(slot),
                            None => None,
                        }
                    }
                };
                let answer = alone.await;
                if let Some(slot) = slot {
                    slot.answered();
                }
                answer
            },
        }
    }

    /// How the next request goes.
    fn passage(self: &Arc<Self>, alone: bool, request: impl FnOnce() -> BatchRequest) -> Passage {
        let (false, Ok(runtime)) = (alone || self.at_once == usize::MAX, Handle::try_current())
        else {
            return Passage::Alone(None);
        };
        let now = Instant::now();
        let mut line = self.line.lock();
        line.forget_the_late(now);
        let Load { young, alone, .. } = line.load(now);
        if line.waiting.is_empty() && young == 0 && alone < self.limits().at_once {
            return Passage::Alone(Some(self.slot(&mut line, now, 1)));
        }
        let (reply, answer) = oneshot::channel();
        let number = line.number();
        let request = request();
        line.waiting.push_back(Waiting {
            number,
            request,
            reply,
            runtime,
        });
        drop(line);
        self.carry();
        Passage::Together(number, answer)
    }

    fn slot(self: &Arc<Self>, line: &mut Line, now: Instant, requests: usize) -> Slot {
        let number = line.number();
        line.under_way.push(UnderWay {
            number,
            since: now,
            requests,
        });
        Slot {
            wire: self.clone(),
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
    fn carry(self: &Arc<Self>) {
        let now = Instant::now();
        let mut line = self.line.lock();
        line.forget_the_late(now);
        let limits = self.limits();
        if line.load(now).next(limits) == Next::Stay {
            return;
        }
        // Who was lost with his runtime would not take what he is granted.
        line.waiting.retain(|waiting| !waiting.reply.is_closed());
        let load = line.load(now);
        let mut next = load.next(limits);
        if next == Next::Together {
            if let Some((runtime, batch)) = line.batch() {
                let slot = self.slot(&mut line, now, batch.len());
                drop(line);
                runtime.spawn(self.clone().send_together(batch, slot));
                return;
            }
            next = load.each_alone(limits);
        }
        let Next::Alone(number) = next else {
            return;
        };
        let going: Vec<_> = line.waiting.drain(..number).collect();
        let slots = going.iter().map(|_| self.slot(&mut line, now, 1));
        let slots: Vec<_> = slots.collect();
        drop(line);
        for (waiting, slot) in going.into_iter().zip(slots) {
            // Who has gone in this moment leaves his place to others.
            if let Err(Word::Go(slot)) = waiting.reply.send(Word::Go(slot)) {
                slot.answered();
            }
        }
    }

    async fn send_together(self: Arc<Self>, batch: Vec<(BatchRequest, Reply)>, slot: Slot) {
        let (requests, replies): (Vec<_>, Vec<_>) = batch.into_iter().unzip();
        let answers = self.ask(&requests).await;
        slot.answered();
        for (reply, answer) in replies.into_iter().zip(answers) {
            // Who has gone meanwhile does not want to know.
            let _ = reply.send(Word::Answer(answer));
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
        let mut line = self.line.lock();
        let before = line.waiting.len();
        line.waiting.retain(|waiting| waiting.number != number);
        line.waiting.len() < before
    }
}

impl Line {
    fn load(&mut self, now: Instant) -> Load {
        let mut load = Load {
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
                    load.young += usize::from(now - it.since < PATIENCE);
                }
            }
        }
        self.crowd = self.crowd.max(load.crowd);
        load.crowd = self.crowd;
        load
    }

    fn forget_the_late(&mut self, now: Instant) {
        self.under_way.retain(|it| now - it.since < SLOT);
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
struct Slot {
    wire: Arc<Wire>,
    number: u64,
    answered: bool,
}

impl Slot {
    /// It is over, and something else may go.
    fn answered(mut self) {
        self.answered = true;
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut line = self.wire.line.lock();
        line.under_way.retain(|it| it.number != self.number);
        drop(line);
        // Otherwise its runtime has ended. Who waits goes with the next, or alone after a while.
        if self.answered {
            self.wire.carry();
        }
    }
}

impl fmt::Debug for Wire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let line = self.line.lock();
        f.debug_struct("Wire")
            .field("store", &self.store)
            .field("under_way", &line.under_way.len())
            .field("waiting", &line.waiting.len())
            .finish_non_exhaustive()
    }
}

fn another_kind() -> Error {
    Error::Interrupted {
        store: "the store",
        source: Cause::text("its answers to a batch are not those to the questions"),
    }
}
