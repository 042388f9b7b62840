//! The callers that wait for permits of a limiter in this process: their order, and how long each waits.
//! `queue/outcomes.rs` has what the answers to requests change. Pure: times come in as arguments.
//!
//! Invariants:
//!
//! - Callers are granted permits in the order of their places.
//! - A request is for the first caller and for the callers behind it, and one request is under way at a time. The first
//!   caller sends it. If nobody polls the future of the first caller, another caller sends it a little later
//!   ([`SUBSTITUTE_AFTER`]). If nobody polls those of several callers, this may begin only when the request before it
//!   would have been given up.
//! - A request that is sent again keeps its id, so that the store grants it only once in a window.
//! - While it is certain that there are not enough permits for the first caller, no request is sent, except one after
//!   each [`RECHECK`].

mod outcomes;
#[cfg(test)]
mod tests;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use tokio::{
    sync::{Notify, oneshot},
    time::Instant,
};

use super::permit::{Permit, PermitAttempt};
use crate::{
    messages::PermitRequest,
    model::{Error, Key, PermitId, Quota},
    store::Store,
};

/// The answer that a caller gets.
pub(super) type PermitOutcome = Result<PermitAttempt, Error>;

/// The shortest pause before the next request for a full window.
const MIN_PAUSE: Duration = Duration::from_millis(1);
/// The next request for a full window is sent after this time at the latest, because the document may have been
/// removed, or the server's clock may have been wrong.
const RECHECK: Duration = Duration::from_secs(10 * 60);
/// How long after the moment at which a request is due the second caller sends it, because the first one has not. Each
/// caller behind the second one waits [`SUBSTITUTE_STEP`] longer, so that they do not all look at once.
const SUBSTITUTE_AFTER: Duration = Duration::from_millis(200);
const SUBSTITUTE_STEP: Duration = Duration::from_millis(10);
/// No wait is longer than this, so that a sum of times does not overflow. A window is always shorter.
const MAX_WAIT: Duration = Duration::from_secs(2 * 366 * 24 * 60 * 60);

/// How long a caller waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Until {
    /// Until the store has answered once.
    Answered,
    /// Until there are permits, or until this time.
    Time(Instant),
    /// Until there are permits.
    Granted,
}

/// The next step of a caller.
#[derive(Debug)]
pub(super) enum Action {
    /// The caller waits until it is woken, or until this time.
    Wait(Option<Instant>),
    /// The caller sends this request, which may be for the permits of the next callers too.
    Ask(Arc<PermitRequest>),
}

/// The configuration of a queue, which all of its requests share.
pub(super) struct LimiterConfig {
    /// For its name.
    pub(super) store: Arc<dyn Store>,
    pub(super) key: Key,
    pub(super) quota: Quota,
    /// How long an answer may take before the request is sent again.
    pub(super) response_timeout: Duration,
    /// How long all answers may be errors before a caller whose wait has no bound gets the error.
    pub(super) call_timeout: Duration,
}

/// The time of an operation on the queue, and a random number from 0 to 1.
#[derive(Clone, Copy, Debug)]
pub(super) struct Moment {
    pub(super) now: Instant,
    pub(super) chance: f64,
}

pub(super) struct PermitQueue {
    config: LimiterConfig,
    /// The callers, by the numbers of their places.
    callers: BTreeMap<u64, PermitCaller>,
    /// The number of the next place.
    next: u64,
    full: Option<Exhausted>,
    pending: Option<PendingRequest>,
    failure: Option<FailedAttempts>,
    /// When the next request is due, or was when a caller last looked.
    due_since: Option<Instant>,
}

struct PermitCaller {
    permits: u32,
    until: Until,
    since: Instant,
    reply: oneshot::Sender<PermitOutcome>,
    /// Wakes the caller when it becomes the first or the second one, and then whenever it may have to do something.
    wake: Arc<Notify>,
}

impl PermitCaller {
    fn end(&self) -> Option<Instant> {
        match self.until {
            Until::Time(end) => Some(end),
            Until::Answered | Until::Granted => None,
        }
    }
}

/// What the last answer says about a limiter that is full.
struct Exhausted {
    /// The number of permits that was refused. The limiter has fewer.
    permits: u32,
    /// Until when the limiter is certain to be full. This is counted from the instant before the request was sent,
    /// because the store may have carried it out at any time between that instant and the answer.
    certain: Instant,
    /// When the next request is sent.
    next_request: Instant,
}

impl Exhausted {
    /// Moves the next request to a time before `end`, at which a caller gives up, if permits may be available by then.
    fn recheck_before(&mut self, end: Instant) {
        if (self.certain..self.next_request).contains(&end) {
            self.next_request = self.certain + (end - self.certain) / 2;
        }
    }

    fn retry_in(&self, now: Instant) -> Duration {
        self.certain.saturating_duration_since(now).max(MIN_PAUSE)
    }
}

/// A request that was sent and not answered yet.
struct PendingRequest {
    id: PermitId,
    /// When the request was sent.
    sent: Instant,
    /// When the request is given up, unless it is answered before.
    end: Instant,
    /// Callers with a smaller number were in the queue when the request was sent.
    next: u64,
}

/// The errors since the last answer.
struct FailedAttempts {
    /// The last error.
    error: Error,
    times: u32,
    since: Instant,
    /// The id of the request that failed, and of its retry.
    id: PermitId,
    /// When the request that failed was sent.
    sent: Instant,
    /// When the retry is sent.
    retry_at: Instant,
}

impl PermitQueue {
    pub(super) fn new(config: LimiterConfig) -> Self {
        Self {
            config,
            callers: BTreeMap::new(),
            next: 0,
            full: None,
            pending: None,
            failure: None,
            due_since: None,
        }
    }

    /// The answer to a new caller, if it is known without a request. `None` if the caller has to enter the queue.
    pub(super) fn known_answer(
        &self,
        permits: u32,
        until: Until,
        now: Instant,
    ) -> Option<PermitAttempt> {
        let full = self.full.as_ref()?;
        let certain = permits >= full.permits && now < full.certain;
        let certain = certain && now < full.next_request;
        let answered = match until {
            Until::Answered => certain || self.asleep_until(now).is_some(),
            Until::Time(end) => certain && end < full.certain,
            Until::Granted => false,
        };
        let retry_in = full.retry_in(now);
        answered.then_some(PermitAttempt::Full { retry_in })
    }

    /// When the next request is sent, if the first caller waits because the window is full.
    fn asleep_until(&self, now: Instant) -> Option<Instant> {
        let (full, first) = (self.full.as_ref()?, self.callers.values().next()?);
        // A first caller that does not wait needs an answer now.
        let waits = first.until != Until::Answered && first.permits >= full.permits;
        (waits && now < full.next_request).then_some(full.next_request)
    }

    /// Adds a caller to the end of the queue. Returns the number of its place, and what wakes it.
    pub(super) fn enter(
        &mut self,
        permits: u32,
        until: Until,
        since: Instant,
        reply: oneshot::Sender<PermitOutcome>,
    ) -> (u64, Arc<Notify>) {
        if self.callers.is_empty() {
            // The errors belong to callers that have left, perhaps long ago.
            self.failure = None;
        }
        if let (Some(full), Until::Time(end)) = (&mut self.full, until) {
            full.recheck_before(end);
        }
        let number = self.next;
        self.next += 1;
        let wake = Arc::new(Notify::new());
        let caller = PermitCaller {
            permits,
            until,
            since,
            reply,
            wake: wake.clone(),
        };
        self.callers.insert(number, caller);
        // The new caller may need an answer sooner than the first one.
        self.call_first();
        (number, wake)
    }

    /// Removes a caller from the queue. `granted` is a permit that it was granted and did not take, which goes to the
    /// next callers unless it is too old.
    pub(super) fn leave(&mut self, number: u64, granted: Option<Permit>, now: Instant) {
        self.callers.remove(&number);
        if let Some(permit) = granted {
            self.hand_on(&permit, now);
        }
        self.call_first();
    }

    /// Whether a request that was sent while this caller was in the queue is not answered yet.
    pub(super) fn awaits_answer(&self, number: u64) -> bool {
        self.pending
            .as_ref()
            .is_some_and(|pending| number < pending.next)
    }

    /// Whether the queue has no more than one caller.
    pub(super) fn has_at_most_one_caller(&self) -> bool {
        self.callers.len() <= 1
    }

    fn call_first(&self) {
        // If the first caller is not polled, the second one is the next to look.
        for caller in self.callers.values().take(2) {
            caller.wake.notify_one();
        }
    }

    /// The next step of the caller in this place. The first caller sends the request, or waits until it is due. A
    /// caller behind it does the same, but later.
    pub(super) fn step(&mut self, number: u64, tick: Moment) -> Action {
        let now = tick.now;
        if self
            .pending
            .as_ref()
            .is_some_and(|pending| pending.end <= now)
        {
            let late = Error::TimedOut {
                store: self.config.store.name(),
                operation: "permit",
                limit: self.config.response_timeout,
            };
            self.failed(&late, tick);
        }
        let Some((first, caller)) = self.callers.first_key_value() else {
            return Action::Wait(None);
        };
        if !self.callers.contains_key(&number) {
            // It was answered meanwhile.
            return Action::Wait(None);
        }
        // Callers that have left leave gaps between the numbers.
        let behind = (number - first).min(self.callers.len() as u64 - 1);
        let behind = u32::try_from(behind).unwrap_or(u32::MAX);
        let later_by = match behind {
            0 => Duration::ZERO,
            _ => SUBSTITUTE_AFTER + SUBSTITUTE_STEP * (behind - 1),
        };
        let is_over = |caller: &PermitCaller| caller.end().is_some_and(|end| end <= now);
        if behind > 0 && self.pending.is_none() && self.callers.get(&number).is_some_and(is_over) {
            // The time of this caller is over. If it sent the request, it would have to wait for the answer.
            return Action::Wait(None);
        }
        let permits = caller.permits;
        let answered = self.pending.as_ref().map(|pending| pending.end);
        let again = self.failure.as_ref().map(|failure| failure.retry_at);
        let again = again.filter(|at| now < *at);
        if let Some(at) = answered.or(again).or_else(|| self.asleep_until(now)) {
            self.due_since = Some(at);
            return Action::Wait(Some(later(at, later_by)));
        }
        let due_since = self.due_since.filter(|at| *at <= now).unwrap_or(now);
        self.due_since = Some(due_since);
        let due = later(due_since, later_by);
        if now < due {
            return Action::Wait(Some(due));
        }
        self.due_since = None;
        let id = self.failure.as_ref().map(|failure| failure.id);
        let request = self.request(permits, id.unwrap_or_else(PermitId::random));
        self.pending = Some(PendingRequest {
            id: request.id,
            sent: now,
            end: now + self.config.response_timeout,
            next: self.next,
        });
        Action::Ask(Arc::new(request))
    }

    /// A request for the first caller and the callers directly behind it that want the same number of permits, for as
    /// many callers as can be granted permits at once.
    fn request(&self, permits: u32, id: PermitId) -> PermitRequest {
        let LimiterConfig { key, quota, .. } = &self.config;
        let callers = self.callers.values();
        let alike = callers
            .take_while(|caller| caller.permits == permits)
            .count();
        let most = (quota.most_at_once() / permits.max(1)).max(1);
        let times = u32::try_from(alike).unwrap_or(u32::MAX).min(most);
        PermitRequest::new(key.clone(), id, *quota, permits).up_to(times)
    }
}

fn later(from: Instant, by: Duration) -> Instant {
    from + by.min(MAX_WAIT)
}
