//! The queue for a limiter in this process, whose first caller asks for all.

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
    queue::{self, Action, LimiterConfig, Queue, Tick, Until},
};
use crate::{
    messages::{PermitAnswer, PermitRequest},
    model::{Error, Key, Quota, WaitPolicy},
    runtime::{self, inline_task::InlineTask, lifecycle::Lifecycle},
    store::Store,
    telemetry::{self, PermitSpan},
};

/// How long an answer is waited for before the request is sent again: as long as the window, and this
/// long at least. A lost answer is not to cost more windows than it must; but a request that is repeated
/// because the server is slow takes permits of another window.
const LEAST_LIMIT: Duration = Duration::from_secs(5);

/// The queues of a handle's limiters that are in use. Limiters of the same terms share one.
type LimiterQueues = Mutex<HashMap<(Key, Quota), Weak<LimiterQueue>>>;

/// The parts of a handle that its limiters use.
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

/// The queue for one limiter.
///
/// A caller does its waiting itself, so that it depends on no runtime but its own. A request is [`InlineTask`] of
/// the one who asks, and runs to its end.
pub(crate) struct LimiterQueue {
    context: Arc<LimiterContext>,
    name: (Key, Quota),
    /// How long an answer is waited for.
    limit: Duration,
    queue: Mutex<Queue>,
    /// The last request.
    request: Mutex<Weak<InlineTask>>,
}

impl LimiterQueue {
    pub(crate) fn of(context: &Arc<LimiterContext>, key: Key, quota: Quota) -> Arc<Self> {
        let name = (key.clone(), quota);
        let mut queues = context.queues.lock();
        let known = queues.entry(name.clone()).or_default();
        known.upgrade().unwrap_or_else(|| {
            let call_timeout = context.call_timeout;
            let limit = call_timeout.min(quota.window().max(LEAST_LIMIT));
            let terms = LimiterConfig {
                key,
                quota,
                limit,
                call_timeout,
            };
            let this = Arc::new(Self {
                context: context.clone(),
                name,
                limit,
                queue: Mutex::new(Queue::new(terms)),
                request: Mutex::default(),
            });
            *known = Arc::downgrade(&this);
            this
        })
    }

    /// Waits for permits. That there will be none in time is an error.
    pub(crate) async fn wait(
        self: &Arc<Self>,
        permits: u32,
        patience: WaitPolicy,
    ) -> Result<Permit, Error> {
        let start = Instant::now();
        match self.take(permits, patience).await? {
            PermitAttempt::Granted(permit) => Ok(permit),
            PermitAttempt::Full { retry_in } => Err(Error::LimitReached {
                key: self.name.0.clone(),
                waited: start.elapsed(),
                retry_in,
            }),
        }
    }

    /// Waits for permits for as long as the patience lasts.
    pub(crate) async fn take(
        self: &Arc<Self>,
        permits: u32,
        patience: WaitPolicy,
    ) -> Result<PermitAttempt, Error> {
        let span = PermitSpan::begin(&self.name.0, permits);
        let asking = self.ask_for(permits, patience, span.since());
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
        patience: WaitPolicy,
        since: Instant,
    ) -> Result<PermitAttempt, Error> {
        let capacity = self.name.1.most_at_once();
        if permits == 0 || permits > capacity {
            return Err(Error::InvalidPermits { permits, capacity });
        }
        let closing = self.context.lifecycle.closing();
        if closing.is_cancelled() {
            return Err(Error::Closed);
        }
        let end = match patience {
            // A patience beyond the end of time is no bound.
            WaitPolicy::For(wait) => since.checked_add(wait).filter(|_| !wait.is_zero()),
            WaitPolicy::None | WaitPolicy::Endless => None,
        };
        let until = match (patience, end) {
            (_, Some(end)) => Until::Time(end),
            (WaitPolicy::None | WaitPolicy::For(Duration::ZERO), None) => Until::Answered,
            (WaitPolicy::For(_) | WaitPolicy::Endless, None) => Until::Granted,
        };
        // All that follows needs a runtime for its timers.
        Handle::try_current().map_err(|_| Error::NoRuntime)?;
        let mut place = match self.enter(permits, until, since) {
            Ok(place) => place,
            Err(known) => return Ok(known),
        };
        loop {
            let wake = self.step(&mut place)?;
            let now = Instant::now();
            let over = end.is_some_and(|end| end <= now);
            if over && !self.queue.lock().is_asked_for(place.number) {
                // A grant that came in this very moment is not lost.
                let last = place.outcome.try_recv();
                return last.unwrap_or_else(|_| self.too_late(since));
            }
            let end = end.filter(|_| !over);
            let wake = wake.into_iter().chain(end).min().map(sleep_until);
            tokio::select! {
                biased;
                _ = OptionFuture::from(place.asking.as_mut()), if place.asking.is_some() => {
                    place.asking = None;
                }
                // A caller is answered before it leaves the queue, so the sender is not dropped without a word.
                outcome = &mut place.outcome => return outcome.map_err(|_| runtime::no_outcome())?,
                () = closing.cancelled() => return Err(Error::Closed),
                () = place.called.notified() => {}
                Some(()) = OptionFuture::from(wake) => {}
            }
        }
    }

    /// Takes the last place, unless the answer is known.
    fn enter(
        self: &Arc<Self>,
        permits: u32,
        until: Until,
        since: Instant,
    ) -> Result<Place, PermitAttempt> {
        let mut queue = self.queue.lock();
        if let Some(known) = queue.known(permits, until, since) {
            return Err(known);
        }
        let (reply, outcome) = oneshot::channel();
        let (number, called) = queue.enter(permits, until, since, reply);
        drop(queue);
        // The new caller depends on the request that another caller does: a task goes on with it.
        let request = self.request.lock().upgrade();
        if let Some(request) = request {
            request.detach();
        }
        Ok(Place {
            limiter: self.clone(),
            number,
            outcome,
            called,
            asking: None,
        })
    }

    /// Does what is to be done in a place, and says until when there is nothing more to do.
    fn step(self: &Arc<Self>, place: &mut Place) -> Result<Option<Instant>, Error> {
        loop {
            let look = look();
            let mut queue = self.queue.lock();
            match queue.step(place.number, look) {
                Action::Wait(until) => return Ok(until),
                Action::Ask(request) => {
                    let work = InlineTask::new()?;
                    // Under the lock, so that every later caller sees that it is under way.
                    *self.request.lock() = Arc::downgrade(&work);
                    if !queue.is_alone() {
                        work.detach();
                    }
                    drop(queue);
                    place.asking = Some(self.ask(work, request, look.now));
                }
            }
        }
    }

    /// Asks once, and runs that to its end. A close does not wait for it: nothing has to be released.
    fn ask(
        self: &Arc<Self>,
        work: Arc<InlineTask>,
        request: Arc<PermitRequest>,
        sent: Instant,
    ) -> BoxFuture<'static, Option<()>> {
        let (done, over) = oneshot::channel();
        let this = self.clone();
        let rest = async move {
            let outcome = this.call(&request).await;
            this.queue.lock().told(&request, sent, outcome, look());
            // This fails if no caller waits any more.
            let _ = done.send(());
        };
        let context = self.context.clone();
        let asked = async move {
            let rest = Box::pin(rest);
            context.lifecycle.wait_for(work, sent, rest, over).await
        };
        Box::pin(asked)
    }

    /// Asks the store. An answer that comes late counts too, unless it was asked again.
    async fn call(&self, request: &PermitRequest) -> Result<PermitAnswer, Error> {
        let failed = |error: &Error| telemetry::store_failed("permit", None, error);
        let mut call = pin!(runtime::caught(self.context.store.permit(request)));
        let limit = self.limit;
        let outcome = match timeout(limit, call.as_mut()).await {
            Ok(outcome) => outcome,
            Err(_) => {
                let operation = "permit";
                failed(&Error::TimedOut { operation, limit });
                call.await
            }
        };
        outcome.inspect_err(failed)
    }

    fn too_late(&self, since: Instant) -> Result<PermitAttempt, Error> {
        let why = self.queue.lock().why(Instant::now());
        why.unwrap_or_else(|| {
            Err(Error::TimedOut {
                operation: "permit",
                limit: since.elapsed(),
            })
        })
    }
}

fn look() -> Tick {
    Tick {
        now: Instant::now(),
        chance: fastrand::f64(),
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

/// A place in the queue. Dropping it leaves the queue.
struct Place {
    limiter: Arc<LimiterQueue>,
    number: u64,
    outcome: oneshot::Receiver<queue::Outcome>,
    called: Arc<Notify>,
    /// The request that this caller has sent for all.
    asking: Option<BoxFuture<'static, Option<()>>>,
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut queue = self.limiter.queue.lock();
        let granted = match self.outcome.try_recv() {
            Ok(Ok(PermitAttempt::Granted(permit))) => Some(permit),
            _ => None,
        };
        queue.leave(self.number, granted);
    }
}
