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

use futures::{
    FutureExt,
    future::{OptionFuture, join_all, select_all},
};
use parking_lot::Mutex;
use tokio::{
    sync::{mpsc, oneshot},
    time::{Instant, sleep_until},
};
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use super::{
    permit::{Permit, PermitAttempt},
    queue::{PermitCaller, PermitOutcome, PermitQueue, Step},
};
use crate::{
    model::{Error, Key, Quota},
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
    context: Arc<LimiterContext>,
    key: Key,
    quota: Quota,
    /// Sends callers to the task, which the first caller starts.
    callers: OnceLock<mpsc::UnboundedSender<PermitCaller>>,
}

impl LimiterQueue {
    pub(crate) fn of(context: &Arc<LimiterContext>, key: Key, quota: Quota) -> Arc<Self> {
        let mut queues = context.queues.lock();
        let name = (key.clone(), quota);
        if let Some(known) = queues.get(&name).and_then(Weak::upgrade) {
            return known;
        }
        if queues.len() == queues.capacity() {
            // Before the map grows, it forgets the limiters that nobody has.
            queues.retain(|_, queue| queue.strong_count() > 0);
        }
        let this = Arc::new(Self {
            context: context.clone(),
            key,
            quota,
            callers: OnceLock::new(),
        });
        queues.insert(name, Arc::downgrade(&this));
        this
    }

    /// The queue of the smooth limiter with the same limit and window.
    pub(crate) fn smooth(&self, burst: u32) -> Result<Arc<Self>, Error> {
        let quota = self.quota.smooth(burst)?;
        Ok(Self::of(&self.context, self.key.clone(), quota))
    }

    /// Waits for permits. The error is `LimitReached` if there are not enough in time.
    pub(crate) async fn wait(&self, permits: u32, wait: Option<Duration>) -> Result<Permit, Error> {
        let start = Instant::now();
        match self.take(permits, wait).await? {
            PermitAttempt::Granted(permit) => Ok(permit),
            PermitAttempt::Full { retry_in } => Err(Error::LimitReached {
                key: self.key.clone(),
                waited: start.elapsed(),
                retry_in,
            }),
        }
    }

    /// Waits for permits, and reports the outcome to telemetry.
    pub(crate) async fn take(&self, permits: u32, wait: Option<Duration>) -> PermitOutcome {
        let span = PermitSpan::begin(&self.key, permits);
        let asking = self.ask_for(permits, wait, span.since);
        let outcome = asking.instrument(span.span.clone()).await;
        match &outcome {
            Ok(PermitAttempt::Granted(_)) => span.granted(),
            Ok(PermitAttempt::Full { retry_in }) => span.full(*retry_in),
            Err(error) => span.failed(error),
        }
        outcome
    }

    async fn ask_for(&self, permits: u32, wait: Option<Duration>, since: Instant) -> PermitOutcome {
        let capacity = self.quota.most_at_once();
        if permits == 0 || permits > capacity {
            return Err(Error::InvalidPermits {
                permits: permits.into(),
                capacity: capacity.into(),
            });
        }
        let lifecycle = &self.context.lifecycle;
        lifecycle.enter()?;
        let end = wait.map(|wait| retry::wait_end(since, wait));
        let (reply, outcome) = oneshot::channel();
        let caller = PermitCaller {
            permits,
            since,
            end,
            reply,
        };
        // If the task has ended, this drops the caller, and with it the sender of its outcome.
        let _ = self.callers.get_or_init(|| self.start()).send(caller);
        outcome.await.unwrap_or_else(|_| {
            lifecycle.check()?;
            Err(Error::RuntimeEnded)
        })
    }

    /// Starts the task.
    fn start(&self) -> mpsc::UnboundedSender<PermitCaller> {
        let context = &self.context;
        let (callers, come) = mpsc::unbounded_channel();
        let queue = PermitQueue::new(self.key.clone(), self.quota, context.call_timeout);
        let closing = context.lifecycle.closing.clone();
        let task = work(queue, come, context.store.clone(), closing);
        context.lifecycle.spawn(task);
        callers
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
    mut come: mpsc::UnboundedReceiver<PermitCaller>,
    store: Arc<dyn Store>,
    closing: CancellationToken,
) {
    // There are several calls only if one had no answer for long, so all are polled each time. A call is not dropped
    // when it is given up, because a late answer may count.
    let mut calls = Vec::new();
    let mut callers = Vec::new();
    loop {
        let now = Instant::now();
        let call = match queue.step(now) {
            Step::Send(request) => {
                let store = store.clone();
                calls.push(Box::pin(async move {
                    let outcome = runtime::caught(async { store.permit(&request).await }).await;
                    (request, now, outcome)
                }));
                continue;
            }
            Step::GiveUp(request, sent) => {
                let error = Error::TimedOut {
                    store: store.name(),
                    operation: "permit",
                    limit: now - sent,
                };
                (request, sent, Err(error))
            }
            Step::Wait(until) => {
                let answer = (!calls.is_empty()).then(|| select_all(&mut calls));
                let answer = answer.map(|answer| answer.map(|(call, index, _)| (call, index)));
                let first = queue.first().map(|first| first.reply.closed());
                tokio::select! {
                    biased;
                    Some((call, index)) = OptionFuture::from(answer) => {
                        drop(calls.swap_remove(index));
                        call
                    }
                    () = closing.cancelled() => break,
                    count = come.recv_many(&mut callers, AT_ONCE) => {
                        if count == 0 {
                            break;
                        }
                        callers.drain(..).for_each(|caller| queue.enter(caller, Instant::now()));
                        continue;
                    }
                    // When the first caller has left, the next request may be another one.
                    Some(()) = OptionFuture::from(first) => continue,
                    Some(()) = OptionFuture::from(until.map(sleep_until)) => continue,
                }
            }
        };
        if let Err(error) = &call.2 {
            telemetry::store_failed("permit", None, error);
        }
        queue.complete(call, Instant::now(), random::fraction());
    }
    drop((queue, come));
    join_all(calls).await;
}
