//! The limiters of a client, and the task of one: it owns the queue of the callers, sends the requests that the queue
//! asks for, and applies their answers.
//!
//! Invariants:
//!
//! - A limiter that was used has one task, on the runtime of the client. So no caller depends on another one's future.
//!   The task ends when nobody has the limiter any more, when the client closes, and with its runtime. A caller that
//!   waits has the limiter. If the task ends all the same, that drops the sender of the caller's outcome.
//! - A request that was sent runs to its end, unless the runtime ends.
//! - A caller whose future is dropped has left the queue.

use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, OnceLock, Weak},
    time::Duration,
};

use futures::{StreamExt, channel::mpsc, future::OptionFuture, stream::FuturesUnordered};
use parking_lot::Mutex;
use tokio::{sync::oneshot, time::Instant};
use tracing::Instrument;

use super::queue::{Granted, PermitCaller, PermitOutcome, PermitQueue, Step};
use crate::{
    messages::GiveBackRequest,
    model::{Error, Key, Permits, PermitsLeft, Quota},
    random, retry,
    runtime::{self, lifecycle::Lifecycle},
    store::Store,
    telemetry::{self, PermitSpan},
};

/// The task takes so many callers at once into the queue, so that one request is for all of them.
const AT_ONCE: usize = 1_000;

/// The parts of a client that its limiters use.
pub(crate) struct LimiterContext {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) call_timeout: Duration,
    pub(crate) lifecycle: Arc<Lifecycle>,
    /// The limiters that are in use, and some that were. Those of the same key and quota share one queue.
    pub(crate) queues: Mutex<HashMap<(Key, Quota), Weak<LimiterQueue>>>,
}

/// The way to the task of one limiter.
pub(crate) struct LimiterQueue {
    pub(super) context: Arc<LimiterContext>,
    pub(super) key: Key,
    pub(super) quota: Quota,
    /// The way to the task, which the first caller starts.
    task: OnceLock<mpsc::UnboundedSender<ToTask>>,
}

/// What the task of a limiter is told.
enum ToTask {
    /// A caller wants permits.
    Caller(PermitCaller),
    /// Permits were given back.
    GivenBack,
}

impl LimiterQueue {
    pub(crate) fn of(context: &Arc<LimiterContext>, key: Key, quota: Quota) -> Arc<Self> {
        let mut queues = context.queues.lock();
        if queues.len() == queues.capacity() {
            // Before the map grows, it forgets the limiters that nobody has.
            queues.retain(|_, queue| queue.strong_count() > 0);
        }
        let known = queues.entry((key.clone(), quota)).or_default();
        known.upgrade().unwrap_or_else(|| {
            let this = Arc::new(Self {
                context: context.clone(),
                key,
                quota,
                task: OnceLock::new(),
            });
            *known = Arc::downgrade(&this);
            this
        })
    }

    /// Fails if there are never so many permits at once.
    pub(super) fn check(&self, permits: u32) -> Result<(), Error> {
        Permits::new(permits.into(), self.quota.most_at_once().into()).map(drop)
    }

    /// Waits for permits, which this limit [can have](Self::check), and reports the outcome to telemetry.
    pub(super) async fn take(&self, permits: u32, wait: Option<Duration>) -> PermitOutcome {
        let span = PermitSpan::begin(&self.key, permits);
        let asking = self.ask_for(permits, wait, span.since);
        let outcome = asking.instrument(span.span.clone()).await;
        span.end(outcome.as_ref().err());
        outcome
    }

    async fn ask_for(&self, permits: u32, wait: Option<Duration>, since: Instant) -> PermitOutcome {
        let lifecycle = &self.context.lifecycle;
        lifecycle.enter()?;
        let (reply, outcome) = oneshot::channel();
        let caller = PermitCaller {
            permits,
            since,
            end: wait.map(|wait| retry::wait_end(since, wait)),
            reply,
        };
        // If the task has ended, this drops the caller, and with it the sender of its outcome.
        let task = self.task.get_or_init(|| self.start());
        let _ = task.unbounded_send(ToTask::Caller(caller));
        let ended = |_| lifecycle.check().and(Err(Error::RuntimeEnded));
        outcome.await.unwrap_or_else(ended)
    }

    /// Reads what is left. This goes past the queue: it takes nothing, so it need not wait for anybody.
    pub(super) async fn peek(&self) -> Result<PermitsLeft, Error> {
        let (store, key, quota) = (self.context.store.clone(), self.key.clone(), self.quota);
        let work = async move { store.peek(&key, &quota).await };
        self.call("peek", work).await
    }

    /// Gives permits back. This goes past the queue too. The request is sent once.
    pub(super) async fn give_back(&self, granted: Granted) -> Result<(), Error> {
        let (store, key, quota) = (self.context.store.clone(), self.key.clone(), self.quota);
        let request = GiveBackRequest::new(key, quota, granted.permits, granted.granted_at);
        let work = async move { store.give_back(&request).await };
        self.call("give_back", work).await?;
        if let Some(task) = self.task.get() {
            // If the task has ended, no caller waits.
            let _ = task.unbounded_send(ToTask::GivenBack);
        }
        Ok(())
    }

    /// Sends one request, and reports its outcome to telemetry.
    async fn call<T: Send + 'static>(
        &self,
        operation: &'static str,
        work: impl Future<Output = Result<T, Error>> + Send + 'static,
    ) -> Result<T, Error> {
        let span = telemetry::call(operation, Some(&self.key));
        let (store, limit) = (self.context.store.clone(), self.context.call_timeout);
        let call = runtime::call(operation, limit, move || store.name(), work);
        let end = call.instrument(span.clone()).await;
        telemetry::called(&span, operation, Some(&self.key), &end);
        end
    }

    /// Starts the task.
    fn start(&self) -> mpsc::UnboundedSender<ToTask> {
        let context = &self.context;
        let (task, told) = mpsc::unbounded();
        let queue = PermitQueue::new(self.key.clone(), self.quota, context.call_timeout);
        context.lifecycle.spawn(work(queue, told, context.clone()));
        task
    }
}

impl fmt::Debug for LimiterQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LimiterQueue")
            .field("key", &self.key)
            .field("quota", &self.quota)
            .finish_non_exhaustive()
    }
}

/// The task of a limiter, until the client closes or nobody has the limiter any more. Then it waits for the last calls.
async fn work(
    mut queue: PermitQueue,
    told: mpsc::UnboundedReceiver<ToTask>,
    context: Arc<LimiterContext>,
) {
    let (store, closing) = (&context.store, &context.lifecycle.closing);
    // A call is not dropped when it is given up, because a late answer may count.
    let mut calls = FuturesUnordered::new();
    let mut told = told.ready_chunks(AT_ONCE);
    loop {
        let now = Instant::now();
        let (request, sent, outcome) = match queue.step(now) {
            Step::Send(request) => {
                calls.push(async move {
                    let outcome = runtime::caught(async { store.permit(&request).await }).await;
                    (request, now, outcome)
                });
                continue;
            }
            Step::GiveUp(request, sent) => {
                let error = runtime::timed_out(store.name(), "permit", now - sent);
                (request, sent, Err(error))
            }
            Step::Wait(until) => {
                let first = queue.first().map(|first| first.reply.closed());
                tokio::select! {
                    biased;
                    Some(call) = calls.next() => call,
                    () = closing.cancelled() => break,
                    told = told.next() => {
                        let Some(told) = told else { break };
                        for it in told {
                            match it {
                                ToTask::Caller(caller) => queue.enter(caller, Instant::now()),
                                ToTask::GivenBack => queue.given_back(),
                            }
                        }
                        continue;
                    }
                    // When the first caller has left, the next request may be another one.
                    Some(()) = OptionFuture::from(first) => continue,
                    Some(()) = OptionFuture::from(until.map(tokio::time::sleep_until)) => continue,
                }
            }
        };
        let outcome = runtime::report("permit", None, outcome).await;
        queue.complete((request, sent, outcome), Instant::now(), random::fraction());
    }
    drop((queue, told));
    calls.collect::<Vec<_>>().await;
}
