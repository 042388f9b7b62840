//! Sends acquires and releases to the store, each alone or several in one batch.
//!
//! While few requests are under way, each request is sent at once and alone. Beyond that number a request waits until
//! another one has ended. If enough requests wait by then, they are sent in a batch.
//!
//! If six or more come at once, they may instead wait for each other: what comes while a request or a batch is under way
//! goes in the next batch, as in the group commit of a database. Where the server or this process is busy, answers come
//! sooner then, and where the server is distant, later. `choice.rs` finds out which it is. A lone request never waits.
//!
//! Each request or batch that is under way has a slot. A request is sent when a slot is free and not before, so that a
//! slow store does not get more and more requests. (A store may take any number of requests at once. It has no slots.)
//! A request that still waits can be withdrawn. It is then never sent.
//! If nothing could be sent for a while, one more request or batch is sent than there are slots. Its answer shows
//! whether the others hang or the store is slow. If many are without an answer, each further one takes longer.
//!
//! A batch costs less than its requests only if it is large (`cycle` in `docs/measurements.md`). So while a batch is
//! under way, requests gather for the next batch until they are a quarter of the requests that there were at once
//! lately. At most three batches are under way: with only one, the server would be idle between two batches. The
//! requests of a set (`acquire_all`) go in one batch, however few they are. A request that must not go in a batch waits
//! for a slot, and for no batch.
//!
//! The requests of a batch are answered together, so a transaction that holds one document delays the answers to all of
//! them. The operation of a request whose batch is not answered in time therefore sends another request, alone:
//! [`Queued`] tells how the first one was sent.
//!
//! - `submit.rs` has what operations call.
//! - `queue.rs` has the requests that wait, `policy.rs` decides how many of them are sent now, and `choice.rs` whether a
//!   crowd waits for each other. All three are pure.
//! - `request.rs` has what is sent, and how.
//!
//! A coalescer is not a [`Store`], because it returns a call instead of an answer. An operation needs the call for two
//! reasons: to withdraw a request that was not sent yet and learn whether that succeeded, because the store may grant
//! what was sent; and to release what a late answer grants. The operation polls its call itself, which saves a task for
//! each request.

mod choice;
mod policy;
mod queue;
mod request;
#[cfg(test)]
mod slow_store_tests;
mod submit;

use std::sync::{Arc, OnceLock};

use futures::{
    FutureExt,
    future::{self, BoxFuture},
};
use parking_lot::Mutex;
use tokio::{
    sync::{oneshot, watch},
    task::yield_now,
    time::{Instant, timeout},
};

pub(crate) use self::request::{HowSent, PlannedRelease, TimedAnswer};
use self::{
    policy::{HANGS, LEAST_BATCH, Limits, Next},
    queue::{Class, RECENT, SendQueue, Sends},
    request::QueuedRequest,
};
use crate::{
    messages::BatchAnswer,
    model::{Error, Key},
    runtime::{self, lifecycle::Lifecycle},
    store::Store,
};

/// How often the end of a batch gives way to other tasks. With fewer times, those on another thread of the runtime come too
/// late for the next batch.
const YIELDS: usize = 8;

pub(crate) struct Coalescer {
    pub(crate) store: Arc<dyn Store>,
    max_concurrent: usize,
    /// Whether renewals are late. While they are, fewer acquires and releases are sent.
    late: watch::Receiver<bool>,
    queue: Mutex<SendQueue<Unsent>>,
    /// Each set that submits its requests at this moment has a clone. Until it is dropped, requests wait, so that those of
    /// a set are sent together.
    sets: Arc<()>,
    lifecycle: Arc<Lifecycle>,
}

/// A request that was submitted. It begins when its answer is first polled.
pub(crate) struct Call<T> {
    pub(crate) answer: BoxFuture<'static, TimedAnswer<T>>,
    /// `None` if the request is sent at once, and alone.
    pub(crate) queued: Option<Queued>,
}

/// A request that waits until it is sent, or has waited.
pub(crate) struct Queued {
    coalescer: Arc<Coalescer>,
    number: u64,
    sent: Arc<OnceLock<HowSent>>,
}

impl Queued {
    /// Withdraws the request, if it was not sent yet. Returns whether it was withdrawn: its answer is then an error that
    /// says nothing.
    #[must_use]
    pub(crate) fn withdraw(&self) -> bool {
        self.coalescer.queue.lock().withdraw(self.number)
    }

    pub(crate) fn how_sent(&self) -> HowSent {
        self.sent.get().copied().unwrap_or(HowSent::NotYet)
    }
}

/// A request that waits for a slot.
struct Unsent {
    request: QueuedRequest,
    reply: oneshot::Sender<Dispatch>,
    sent: Arc<OnceLock<HowSent>>,
}

/// How the wait of a request ends.
enum Dispatch {
    /// The request may be sent alone now.
    Go(InFlightPermit),
    /// The request was sent in a batch, at this instant, and this is its answer.
    Answer(Instant, Result<BatchAnswer, Error>),
}

/// When a request is sent to the store.
enum Route {
    /// At once. The permit counts the request as under way; `None` if requests are not counted.
    Now(Option<InFlightPermit>),
    /// When a slot is free. The receiver is told then.
    Later(Queued, oneshot::Receiver<Dispatch>),
}

impl Coalescer {
    pub(crate) fn new(
        store: Arc<dyn Store>,
        late: watch::Receiver<bool>,
        lifecycle: Arc<Lifecycle>,
    ) -> Arc<Self> {
        Arc::new(Self {
            max_concurrent: store.max_concurrent().max(1),
            late,
            store,
            queue: Mutex::new(SendQueue::new()),
            sets: Arc::default(),
            lifecycle,
        })
    }

    /// Waits until a request is dispatched. `None` if it was withdrawn, or its batch was dropped with the runtime of the
    /// client.
    ///
    /// Each waiting request also dispatches from time to time, because no event tells that a request under way hangs
    /// and has lost its slot.
    async fn dispatched(
        self: &Arc<Self>,
        mut reply: oneshot::Receiver<Dispatch>,
    ) -> Option<Dispatch> {
        let mut longest = RECENT;
        loop {
            if let Ok(dispatched) = timeout(longest, &mut reply).await {
                return dispatched.ok();
            }
            self.dispatch();
            longest = HANGS;
        }
    }

    /// Takes a slot for a request, or puts the request last in the queue. `class` is that of a request which waits from
    /// this instant on.
    fn route(
        self: &Arc<Self>,
        key: &Key,
        class: impl FnOnce(Instant) -> Class,
        request: impl FnOnce() -> QueuedRequest,
    ) -> Route {
        if self.max_concurrent == usize::MAX {
            return Route::Now(None);
        }
        let now = Instant::now();
        let mut queue = self.queue.lock();
        let load = queue.update_load(now);
        let is_gathering = Arc::strong_count(&self.sets) > 1;
        let class = class(now);
        if load.waiting == 0 && !is_gathering && load.has_room(self.limits()) {
            return Route::Now(Some(self.permit(queue.send_at_once(class, now))));
        }
        let (reply, dispatch) = oneshot::channel();
        let sent = Arc::<OnceLock<HowSent>>::default();
        let unsent = Unsent {
            request: request(),
            reply,
            sent: sent.clone(),
        };
        let number = queue.push(key.clone(), class, now, unsent);
        drop(queue);
        if !is_gathering {
            self.dispatch();
        }
        let queued = Queued {
            coalescer: self.clone(),
            number,
            sent,
        };
        Route::Later(queued, dispatch)
    }

    /// The slot of the request or batch with this number.
    fn permit(self: &Arc<Self>, number: u64) -> InFlightPermit {
        InFlightPermit {
            coalescer: self.clone(),
            number,
        }
    }

    fn limits(&self) -> Limits {
        if *self.late.borrow() {
            Limits::WHILE_RENEWALS_LATE
        } else {
            Limits::of(self.max_concurrent)
        }
    }

    /// Sends the waiting requests for which there are slots.
    fn dispatch(self: &Arc<Self>) {
        self.dispatch_together(LEAST_BATCH);
    }

    /// As [`dispatch`](Self::dispatch), but `least` requests are enough for a batch. Returns whether a batch was sent.
    fn dispatch_together(self: &Arc<Self>, least: usize) -> bool {
        let now = Instant::now();
        let mut queue = self.queue.lock();
        let limits = self.limits();
        let load = queue.update_load(now);
        if load.next_unbatchable(limits) == 0 && load.next(limits, least) == Next::Wait {
            return false;
        }
        // Drops the requests whose operation was dropped with its runtime, because nobody would take their leases.
        queue.retain(|unsent| !unsent.reply.is_closed());
        let Sends { alone, batch } = queue.send_next(limits, least, now);
        drop(queue);
        for (number, unsent) in alone {
            let _ = unsent.sent.set(HowSent::Alone(now));
            let permit = self.permit(number);
            // This fails if the operation was dropped meanwhile. The slot is then free for others.
            if let Err(Dispatch::Go(permit)) = unsent.reply.send(Dispatch::Go(permit)) {
                permit.end();
            }
        }
        let Some((number, batch)) = batch else {
            return false;
        };
        let permit = self.permit(number);
        if let Some(home) = self.lifecycle.home() {
            home.spawn(self.clone().send_batch(batch, permit));
        }
        true
    }

    async fn send_batch(self: Arc<Self>, batch: Vec<Unsent>, permit: InFlightPermit) {
        let sent = Instant::now();
        let (mut requests, mut replies) = (Vec::new(), Vec::new());
        for unsent in batch {
            let _ = unsent.sent.set(HowSent::InBatch(sent));
            requests.push(unsent.request.at(sent));
            replies.push(unsent.reply);
        }
        let answers = match runtime::caught(self.store.batch(&requests)).await {
            Ok(answers) if answers.len() == requests.len() => answers,
            Ok(_) => vec![Err(mismatched()); requests.len()],
            Err(error) => vec![Err(error); requests.len()],
        };
        if answers.iter().any(Result::is_ok) {
            permit.answered();
        }
        for (reply, answer) in replies.into_iter().zip(answers) {
            let _ = reply.send(Dispatch::Answer(sent, answer));
        }
        // Lets the tasks run whose requests were answered. Most of them have another request, as the holder of a short lease
        // has its release. Those go in the next batch, which is sent when this one has ended.
        for _ in 0..YIELDS {
            yield_now().await;
        }
        permit.end();
    }
}

/// Sends one request, outside of a batch, when the future is first polled. (It is no `async fn`, as
/// [`runtime::caught`] is none.)
fn send_alone<A>(
    request: impl Future<Output = Result<A, Error>>,
    permit: Option<InFlightPermit>,
) -> impl Future<Output = TimedAnswer<A>> {
    let request = runtime::caught(request);
    future::lazy(|_| Instant::now()).then(move |sent| {
        request.map(move |answer| {
            if let Some(permit) = permit {
                if answer.is_ok() {
                    permit.answered();
                }
                permit.end();
            }
            (sent, answer)
        })
    })
}

/// The slot of a request or a batch that was sent. Dropping it frees the slot.
struct InFlightPermit {
    coalescer: Arc<Coalescer>,
    number: u64,
}

impl InFlightPermit {
    fn answered(&self) {
        let mut queue = self.coalescer.queue.lock();
        queue.answered(self.number, Instant::now());
    }

    /// Frees the slot of a request that has ended, with an answer or an error, and sends the requests that wait for a
    /// slot.
    fn end(self) {
        self.coalescer.queue.lock().ended(self.number);
        self.coalescer.dispatch();
    }
}

impl Drop for InFlightPermit {
    fn drop(&mut self) {
        // A request that has not ended was dropped with its runtime. Nothing can be sent from that runtime: the waiting
        // requests look for a slot themselves.
        self.coalescer.queue.lock().ended(self.number);
    }
}

fn mismatched() -> Error {
    runtime::interrupted("its answers to a batch do not match the requests")
}
