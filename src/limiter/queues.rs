//! The queues of a client's limiters. The first caller of a queue also sends the requests for the callers behind it.
//!
//! Invariants:
//!
//! - Each caller waits in its own future, and depends on no future or runtime of another caller.
//! - A request that was sent runs to its end. Its caller polls it. As soon as another caller depends on the request, or
//!   the caller's future is dropped, a task polls it instead.
//! - A caller whose future is dropped leaves the queue. The permits that it was granted shortly before go to the next
//!   callers.

use std::{
    collections::HashMap,
    pin::pin,
    sync::{Arc, Weak},
    time::Duration,
};

use futures::future::{BoxFuture, OptionFuture};
use parking_lot::Mutex;
use tokio::{
    runtime::Handle,
    sync::{Notify, oneshot},
    time::{Instant, sleep_until, timeout},
};
use tracing::Instrument;

use super::{
    permit::{Permit, PermitAttempt},
    queue::{self, Action, LimiterConfig, Moment, PermitQueue, Until},
};
use crate::{
    messages::{PermitAnswer, PermitRequest},
    model::{Error, Key, Quota, WaitPolicy},
    random, retry,
    runtime::{self, inline_task::InlineTask, lifecycle::Lifecycle},
    store::Store,
    telemetry::{self, PermitSpan},
};

/// A request is sent again if it is not answered within the length of a window, or within this time if the window is
/// shorter, but at the latest after the call timeout. A longer wait would waste more windows after a lost answer. A
/// shorter wait has a cost too: if the server is only slow, a request that is repeated in a later window also takes
/// permits of that window.
const MIN_RESPONSE_TIMEOUT: Duration = Duration::from_secs(5);

/// The queues of a client's limiters that are in use. Limiters of the same key and quota share one.
type LimiterQueues = Mutex<HashMap<(Key, Quota), Weak<LimiterQueue>>>;

/// The parts of a client that its limiters use.
pub(crate) struct LimiterContext {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) call_timeout: Duration,
    pub(crate) lifecycle: Arc<Lifecycle>,
    queues: LimiterQueues,
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

/// The queue for one limiter. Each request is an [`InlineTask`] of the caller that sends it.
pub(crate) struct LimiterQueue {
    context: Arc<LimiterContext>,
    name: (Key, Quota),
    /// How long an answer may take before the request is sent again.
    response_timeout: Duration,
    queue: Mutex<PermitQueue>,
    /// The last request, while its caller waits for it.
    request: Mutex<Weak<InlineTask>>,
}

impl LimiterQueue {
    pub(crate) fn of(context: &Arc<LimiterContext>, key: Key, quota: Quota) -> Arc<Self> {
        let name = (key.clone(), quota);
        let mut queues = context.queues.lock();
        let known = queues.entry(name.clone()).or_default();
        known.upgrade().unwrap_or_else(|| {
            let call_timeout = context.call_timeout;
            let response_timeout = call_timeout.min(quota.window().max(MIN_RESPONSE_TIMEOUT));
            let config = LimiterConfig {
                store: context.store.clone(),
                key,
                quota,
                response_timeout,
                call_timeout,
            };
            let this = Arc::new(Self {
                context: context.clone(),
                name,
                response_timeout,
                queue: Mutex::new(PermitQueue::new(config)),
                request: Mutex::default(),
            });
            *known = Arc::downgrade(&this);
            this
        })
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
                key: self.name.0.clone(),
                waited: start.elapsed(),
                retry_in,
            }),
        }
    }

    /// Waits for permits, and reports the outcome to telemetry.
    pub(crate) async fn take(
        self: &Arc<Self>,
        permits: u32,
        policy: WaitPolicy,
    ) -> Result<PermitAttempt, Error> {
        let span = PermitSpan::begin(&self.name.0, permits);
        let asking = self.ask_for(permits, policy, span.since());
        let end = asking.instrument(span.span()).await;
        match &end {
            Ok(PermitAttempt::Granted(_)) => span.granted(),
            Ok(PermitAttempt::Full { retry_in }) => span.full(*retry_in),
            Err(error) => span.failed(error),
        }
        end
    }

    async fn ask_for(
        self: &Arc<Self>,
        permits: u32,
        policy: WaitPolicy,
        since: Instant,
    ) -> Result<PermitAttempt, Error> {
        let capacity = self.name.1.most_at_once();
        if permits == 0 || permits > capacity {
            return Err(Error::InvalidPermits {
                permits: permits.into(),
                capacity: capacity.into(),
            });
        }
        let closing = self.context.lifecycle.closing();
        if closing.is_cancelled() {
            return Err(Error::Closed);
        }
        let end = match policy {
            WaitPolicy::For(wait) if !wait.is_zero() => Some(retry::wait_end(since, wait)),
            WaitPolicy::For(_) | WaitPolicy::None | WaitPolicy::Endless => None,
        };
        let until = match (policy, end) {
            (_, Some(end)) => Until::Time(end),
            (WaitPolicy::None | WaitPolicy::For(Duration::ZERO), None) => Until::Answered,
            (WaitPolicy::For(_) | WaitPolicy::Endless, None) => Until::Granted,
        };
        // The timers below panic without a runtime.
        Handle::try_current().map_err(|_| Error::NoRuntime)?;
        let mut waiter = match self.enter(permits, until, since) {
            Ok(waiter) => waiter,
            Err(known) => return Ok(known),
        };
        loop {
            let next = match self.step(&mut waiter) {
                Ok(next) => next,
                // A grant that has come must not be lost.
                Err(error) => return waiter.outcome.try_recv().unwrap_or(Err(error)),
            };
            let now = Instant::now();
            let over = end.is_some_and(|end| end <= now);
            if over && !self.queue.lock().awaits_answer(waiter.number) {
                // The answer may have come since the `select!` below, and a grant in it must not be lost.
                let last = waiter.outcome.try_recv();
                return last.unwrap_or_else(|_| self.too_late(since));
            }
            let end = end.filter(|_| !over);
            let timer = next.into_iter().chain(end).min().map(sleep_until);
            tokio::select! {
                biased;
                _ = OptionFuture::from(waiter.request.as_mut()), if waiter.request.is_some() => {
                    waiter.request = None;
                }
                // The queue sends an answer before it drops the sender, so the error cannot occur.
                outcome = &mut waiter.outcome => return outcome.map_err(|_| runtime::ended())?,
                () = closing.cancelled() => return Err(Error::Closed),
                () = waiter.wake.notified() => {}
                Some(()) = OptionFuture::from(timer) => {}
            }
        }
    }

    /// Adds a caller to the end of the queue. If the answer to the caller is known without a request, it is returned as
    /// the error.
    fn enter(
        self: &Arc<Self>,
        permits: u32,
        until: Until,
        since: Instant,
    ) -> Result<PermitWaiter, PermitAttempt> {
        let mut queue = self.queue.lock();
        if let Some(known) = queue.known_answer(permits, until, since) {
            return Err(known);
        }
        let (reply, outcome) = oneshot::channel();
        let (number, wake) = queue.enter(permits, until, since, reply);
        drop(queue);
        // The new caller depends on a request that another caller polls, and it is possible that nothing polls that
        // caller's future any more. So a task takes over the request.
        let request = self.request.lock().upgrade();
        if let Some(request) = request {
            request.detach();
        }
        Ok(PermitWaiter {
            limiter: self.clone(),
            number,
            outcome,
            wake,
            request: None,
        })
    }

    /// Carries out the next step of a caller. Returns the latest time of its next step. `None` if it has nothing to do
    /// until the queue wakes it.
    ///
    /// Fails outside of a runtime, before it changes anything: nothing would send the request that the queue then counts
    /// as under way.
    fn step(self: &Arc<Self>, waiter: &mut PermitWaiter) -> Result<Option<Instant>, Error> {
        let runtime = Handle::try_current().map_err(|_| Error::NoRuntime)?;
        loop {
            let tick = tick();
            let mut queue = self.queue.lock();
            match queue.step(waiter.number, tick) {
                Action::Wait(until) => return Ok(until),
                Action::Ask(request) => {
                    let work = InlineTask::on(runtime.clone());
                    // This is set under the lock of the queue, so that every later caller finds the request.
                    *self.request.lock() = Arc::downgrade(&work);
                    if !queue.has_at_most_one_caller() {
                        work.detach();
                    }
                    drop(queue);
                    waiter.request = Some(self.ask(work, request, tick.now));
                }
            }
        }
    }

    /// Sends a request once, and drives it to its end. A close does not wait for it, because a permit is not released.
    fn ask(
        self: &Arc<Self>,
        work: Arc<InlineTask>,
        request: Arc<PermitRequest>,
        sent: Instant,
    ) -> BoxFuture<'static, Result<(), Error>> {
        let (done, over) = oneshot::channel();
        let this = self.clone();
        let rest = async move {
            let outcome = this.call(&request).await;
            this.queue.lock().complete(&request, sent, outcome, tick());
            // This fails if the caller does not wait any more.
            let _ = done.send(());
        };
        let context = self.context.clone();
        let asked = async move {
            let rest = Box::pin(rest);
            context.lifecycle.wait_for(work, sent, rest, over).await
        };
        Box::pin(asked)
    }

    /// Sends the request to the store. Waits for the answer even after the time-out, because a late answer may [still
    /// count](PermitQueue::complete).
    async fn call(&self, request: &PermitRequest) -> Result<PermitAnswer, Error> {
        let failed = |error: &Error| telemetry::store_failed("permit", None, error);
        let mut call = pin!(runtime::caught(self.context.store.permit(request)));
        let limit = self.response_timeout;
        let outcome = match timeout(limit, call.as_mut()).await {
            Ok(outcome) => outcome,
            Err(_) => {
                failed(&self.no_answer(limit));
                call.await
            }
        };
        outcome.inspect_err(failed)
    }

    /// The outcome for a caller whose time is over before an answer came.
    fn too_late(&self, since: Instant) -> Result<PermitAttempt, Error> {
        let outcome = self.queue.lock().timeout_outcome(Instant::now());
        outcome.unwrap_or_else(|| Err(self.no_answer(since.elapsed())))
    }

    fn no_answer(&self, limit: Duration) -> Error {
        Error::TimedOut {
            store: self.context.store.name(),
            operation: "permit",
            limit,
        }
    }
}

fn tick() -> Moment {
    Moment {
        now: Instant::now(),
        chance: random::fraction(),
    }
}

impl Drop for LimiterQueue {
    fn drop(&mut self) {
        let mut queues = self.context.queues.lock();
        if queues
            .get(&self.name)
            .is_some_and(|queue| queue.strong_count() == 0)
        {
            queues.remove(&self.name);
        }
    }
}

/// A caller in the queue. Dropping it removes it from the queue.
struct PermitWaiter {
    limiter: Arc<LimiterQueue>,
    number: u64,
    outcome: oneshot::Receiver<queue::PermitOutcome>,
    wake: Arc<Notify>,
    /// The request that this caller has sent for the callers of the queue.
    request: Option<BoxFuture<'static, Result<(), Error>>>,
}

impl Drop for PermitWaiter {
    fn drop(&mut self) {
        let mut queue = self.limiter.queue.lock();
        let granted = match self.outcome.try_recv() {
            Ok(Ok(PermitAttempt::Granted(permit))) => Some(permit),
            _ => None,
        };
        queue.leave(self.number, granted, Instant::now());
    }
}
