//! The limiters of a client, and the task that works for the callers of one: it sends the requests that the queue asks
//! for, and applies their answers.
//!
//! Invariants:
//!
//! - A limiter with callers has a task on the runtime of the client. So no caller depends on another one's future. The
//!   task ends when the queue is empty and no request is under way.
//! - A request that was sent runs to its end, unless the runtime ends.
//! - A caller whose future is dropped leaves the queue. The permits that it was granted shortly before go to the next
//!   callers.

use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, Weak},
    time::Duration,
};

use futures::{
    FutureExt,
    future::{BoxFuture, OptionFuture, select_all},
};
use parking_lot::Mutex;
use tokio::{
    sync::{Notify, oneshot},
    time::{Instant, sleep_until},
};
use tracing::Instrument;

use super::{
    permit::{Permit, PermitAttempt},
    queue::{Call, Moment, PermitCaller, PermitOutcome, PermitQueue, Step, Until},
};
use crate::{
    messages::PermitRequest,
    model::{Error, Key, Quota, WaitPolicy},
    random, retry,
    runtime::{self, lifecycle::Lifecycle},
    store::Store,
    telemetry::{self, PermitSpan},
};

/// The parts of a client that its limiters use.
pub(crate) struct LimiterContext {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) call_timeout: Duration,
    pub(crate) lifecycle: Arc<Lifecycle>,
    /// The limiters that are in use. Those of the same key and quota share one queue.
    queues: Mutex<HashMap<(Key, Quota), Weak<LimiterQueue>>>,
}

impl LimiterContext {
    pub(crate) fn new(
        store: Arc<dyn Store>,
        call_timeout: Duration,
        lifecycle: Arc<Lifecycle>,
    ) -> Self {
        Self {
            store,
            call_timeout,
            lifecycle,
            queues: Mutex::default(),
        }
    }
}

/// The queue for one limiter, and the tasks that work for it.
pub(crate) struct LimiterQueue {
    context: Arc<LimiterContext>,
    key: Key,
    quota: Quota,
    state: Mutex<State>,
    /// Wakes the task.
    changed: Notify,
}

struct State {
    queue: PermitQueue,
    has_task: bool,
}

impl LimiterQueue {
    pub(crate) fn of(context: &Arc<LimiterContext>, key: Key, quota: Quota) -> Arc<Self> {
        let mut queues = context.queues.lock();
        let known = queues.entry((key.clone(), quota)).or_default();
        known.upgrade().unwrap_or_else(|| {
            let limit = context.call_timeout;
            let state = State {
                queue: PermitQueue::new(key.clone(), quota, limit, Instant::now()),
                has_task: false,
            };
            let this = Arc::new(Self {
                context: context.clone(),
                key,
                quota,
                state: Mutex::new(state),
                changed: Notify::new(),
            });
            *known = Arc::downgrade(&this);
            this
        })
    }

    /// The queue of the smooth limiter with the same limit and window.
    pub(crate) fn smooth(&self, burst: u32) -> Result<Arc<Self>, Error> {
        let quota = self.quota.smooth(burst)?;
        Ok(Self::of(&self.context, self.key.clone(), quota))
    }

    /// Waits for permits. The error is `LimitReached` if there are not enough in time.
    pub(crate) async fn wait(
        self: &Arc<Self>,
        permits: u32,
        policy: WaitPolicy,
    ) -> Result<Permit, Error> {
        let start = Instant::now();
        match self.take(permits, policy).await? {
            PermitAttempt::Granted(permit) => Ok(permit),
            PermitAttempt::Full { retry_in } => Err(Error::LimitReached {
                key: self.key.clone(),
                waited: start.elapsed(),
                retry_in,
            }),
        }
    }

    /// Waits for permits, and reports the outcome to telemetry.
    pub(crate) async fn take(self: &Arc<Self>, permits: u32, policy: WaitPolicy) -> PermitOutcome {
        let span = PermitSpan::begin(&self.key, permits);
        let asking = self.ask_for(permits, policy, span.since());
        let outcome = asking.instrument(span.span()).await;
        match &outcome {
            Ok(PermitAttempt::Granted(_)) => span.granted(),
            Ok(PermitAttempt::Full { retry_in }) => span.full(*retry_in),
            Err(error) => span.failed(error),
        }
        outcome
    }

    async fn ask_for(
        self: &Arc<Self>,
        permits: u32,
        policy: WaitPolicy,
        since: Instant,
    ) -> PermitOutcome {
        let capacity = self.quota.most_at_once();
        if permits == 0 || permits > capacity {
            return Err(Error::InvalidPermits {
                permits: permits.into(),
                capacity: capacity.into(),
            });
        }
        self.context.lifecycle.enter()?;
        let until = match policy {
            WaitPolicy::None | WaitPolicy::For(Duration::ZERO) => Until::Answered,
            WaitPolicy::For(wait) => Until::Time(retry::wait_end(since, wait)),
            WaitPolicy::Endless => Until::Granted,
        };
        let (reply, outcome) = oneshot::channel();
        let caller = PermitCaller {
            permits,
            until,
            since,
            reply: Some(reply),
        };
        let mut waiter = match self.enter(caller) {
            Ok(place) => PermitWaiter {
                limiter: self.clone(),
                place,
                outcome,
            },
            Err(known) => return Ok(known),
        };
        if let Until::Time(end) = until {
            tokio::select! {
                biased;
                outcome = &mut waiter.outcome => return outcome.map_err(|_| runtime::ended())?,
                () = sleep_until(end) => {
                    let (place, now) = (waiter.place, Instant::now());
                    let silence = || self.no_answer(since.elapsed());
                    let outcome = self.state.lock().queue.give_up(place, now, silence);
                    if let Some(outcome) = outcome {
                        return outcome;
                    }
                }
            }
        }
        // The queue tells each caller before it drops the sender, so the error cannot occur.
        (&mut waiter.outcome).await.map_err(|_| runtime::ended())?
    }

    /// Adds a caller to the end of the queue, and starts the task if it does not run. Returns the caller's place, or as
    /// the error its answer, if that is known without a request.
    fn enter(self: &Arc<Self>, caller: PermitCaller) -> Result<u64, PermitAttempt> {
        let mut state = self.state.lock();
        let place = state.queue.enter(caller, Instant::now())?;
        if std::mem::replace(&mut state.has_task, true) {
            self.wake(&mut state);
        } else {
            // A runtime that has ended drops the task at once, which takes the lock.
            drop(state);
            let (limiter, is_over) = (self.clone(), false);
            let task = LimiterTask { limiter, is_over };
            self.context.lifecycle.spawn(task.run());
        }
        Ok(place)
    }

    /// Wakes the task if the queue has changed what it does next.
    fn wake(&self, state: &mut State) {
        if state.queue.has_new_plan() {
            self.changed.notify_one();
        }
    }

    fn no_answer(&self, limit: Duration) -> Error {
        Error::TimedOut {
            store: self.context.store.name(),
            operation: "permit",
            limit,
        }
    }
}

impl Drop for LimiterQueue {
    fn drop(&mut self) {
        let mut queues = self.context.queues.lock();
        let name = (self.key.clone(), self.quota);
        if queues
            .get(&name)
            .is_some_and(|queue| queue.strong_count() == 0)
        {
            queues.remove(&name);
        }
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

/// A caller in the queue. Dropping it removes it from the queue.
struct PermitWaiter {
    limiter: Arc<LimiterQueue>,
    place: u64,
    outcome: oneshot::Receiver<PermitOutcome>,
}

impl Drop for PermitWaiter {
    fn drop(&mut self) {
        let mut state = self.limiter.state.lock();
        let unused = self.outcome.try_recv().ok();
        state.queue.leave(self.place, unused, Instant::now());
        self.limiter.wake(&mut state);
    }
}

/// The task that works for a queue.
struct LimiterTask {
    limiter: Arc<LimiterQueue>,
    /// Whether it has ended, so that the next caller starts another one.
    is_over: bool,
}

impl LimiterTask {
    async fn run(mut self) {
        let limiter = self.limiter.clone();
        let closing = limiter.context.lifecycle.closing();
        // There are several calls only if one had no answer for long, so all are polled each time.
        let mut calls: Vec<BoxFuture<'static, Call>> = Vec::new();
        while let Some(step) = self.next_step(calls.is_empty()) {
            let until = match step {
                Step::Wait(until) => until,
                Step::Send(request, sent) => {
                    calls.push(limiter.call(request, sent));
                    continue;
                }
                Step::GiveUp(request, sent) => {
                    let limit = limiter.state.lock().queue.response_timeout;
                    limiter.complete((request, sent, Err(limiter.no_answer(limit))));
                    continue;
                }
            };
            let next = (!calls.is_empty()).then(|| select_all(&mut calls));
            let next = next.map(|next| next.map(|(call, index, _)| (call, index)));
            tokio::select! {
                biased;
                Some((call, index)) = OptionFuture::from(next) => {
                    drop(calls.swap_remove(index));
                    limiter.complete(call);
                }
                () = closing.cancelled(), if until.is_some() => {
                    limiter.state.lock().queue.end(&limiter.context.lifecycle.why_closed());
                }
                () = limiter.changed.notified() => {}
                Some(()) = OptionFuture::from(until.map(sleep_until)) => {}
            }
        }
    }

    /// The next step. `None` if the queue is empty, and `is_idle` says that no request is under way.
    fn next_step(&mut self, is_idle: bool) -> Option<Step> {
        let mut state = self.limiter.state.lock();
        let step = state.queue.step(Instant::now());
        if is_idle && matches!(step, Step::Wait(None)) {
            state.has_task = false;
            self.is_over = true;
            return None;
        }
        Some(step)
    }
}

impl LimiterQueue {
    /// Sends a request. It is not dropped when it is given up, because a late answer may [count](PermitQueue::complete).
    fn call(&self, request: PermitRequest, sent: Instant) -> BoxFuture<'static, Call> {
        let store = self.context.store.clone();
        Box::pin(async move {
            let outcome = runtime::caught(store.permit(&request)).await;
            (request, sent, outcome)
        })
    }

    fn complete(&self, call: Call) {
        if let Err(error) = &call.2 {
            telemetry::store_failed("permit", None, error);
        }
        let moment = Moment {
            now: Instant::now(),
            chance: random::fraction(),
        };
        self.state.lock().queue.complete(call, moment);
    }
}

impl Drop for LimiterTask {
    fn drop(&mut self) {
        if !self.is_over {
            // The runtime has ended, and leaves the callers without a task.
            let mut state = self.limiter.state.lock();
            state.has_task = false;
            state.queue.end(&Error::RuntimeEnded);
        }
    }
}
