//! The callers that wait for permits of a limiter in this process, in which order, and until when: without I/O,
//! and with the time as an argument.
//!
//! Invariants: callers are granted permits in the order of their places. Only the first caller sends a request, for
//! itself and for the callers behind it. While the answer to one request is waited for, no other is sent. A request
//! that is sent once more keeps its id, so that the store grants it only once in a window. While it is certain that
//! there are not enough permits for the first caller, no request is sent, except one after each [`LOOK`].

#[cfg(test)]
mod tests;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use chrono::{DateTime, Utc};
use tokio::{
    sync::{Notify, oneshot},
    time::Instant,
};

use super::permit::{Permit, PermitAttempt};
use crate::{
    messages::{PermitAnswer, PermitRequest},
    model::{Error, Key, PermitId, Quota},
    retry::{self, TRIES},
};

/// The answer to a caller.
pub(super) type Outcome = Result<PermitAttempt, Error>;

/// The pause before a full window is asked again is at least this.
const SHORTEST: Duration = Duration::from_millis(1);
/// A full window is asked again at a random time after its turn, so that the processes do not all ask at once. That
/// time is at most this share of the window, and at most [`LATEST`].
const LATE: f64 = 0.05;
const LATEST: Duration = Duration::from_secs(1);
/// A full window is asked again after this long in any case: its document may have been removed, or the server's clock
/// may have been wrong.
const LOOK: Duration = Duration::from_secs(10 * 60);
/// No wait is longer than this, which is more than a window can be. It keeps the sum of times from an overflow.
const FAR: Duration = Duration::from_secs(2 * 366 * 24 * 60 * 60);

/// How long a caller waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Until {
    /// Until the store has answered once.
    Answered,
    /// Until there are permits, and at most until this time.
    Time(Instant),
    /// Until there are permits.
    Granted,
}

/// The next step of a caller.
#[derive(Debug)]
pub(super) enum Action {
    /// Wait until the caller is called, or until this time.
    Wait(Option<Instant>),
    /// Send this request, which is for other callers too.
    Ask(Arc<PermitRequest>),
}

/// The terms that all requests of a queue share.
pub(super) struct LimiterConfig {
    pub(super) key: Key,
    pub(super) quota: Quota,
    /// How long an answer is waited for before the request is sent again.
    pub(super) limit: Duration,
    /// How long all answers may be errors before a caller that waits without a limit gets the error.
    pub(super) call_timeout: Duration,
}

/// The time of a look at the queue, and a random number from 0 to 1.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tick {
    pub(super) now: Instant,
    pub(super) chance: f64,
}

pub(super) struct Queue {
    terms: LimiterConfig,
    /// The callers, by the numbers of their places.
    callers: BTreeMap<u64, Caller>,
    /// The number of the next place.
    next: u64,
    full: Option<Exhausted>,
    asking: Option<Asking>,
    failure: Option<Failure>,
}

struct Caller {
    permits: u32,
    until: Until,
    since: Instant,
    reply: oneshot::Sender<Outcome>,
    /// Wakes the caller when it comes to be the first, and as the first when there may be something to do.
    called: Arc<Notify>,
}

impl Caller {
    fn end(&self) -> Option<Instant> {
        match self.until {
            Until::Time(end) => Some(end),
            Until::Answered | Until::Granted => None,
        }
    }
}

/// What is known from the last answer by which the limiter is full.
struct Exhausted {
    /// How many permits were asked for in vain: there is no room for so many.
    permits: u32,
    /// Until here the limiter is certainly full: counted from the sending, because the request may have been carried
    /// out at any time between that and its answer.
    certain: Instant,
    /// When the store is asked again.
    turn: Instant,
}

impl Exhausted {
    /// Moves the next request before `end`, at which a caller gives up, if there may be room by then.
    fn look_before(&mut self, end: Instant) {
        if (self.certain..self.turn).contains(&end) {
            self.turn = self.certain + (end - self.certain) / 2;
        }
    }

    fn retry_in(&self, now: Instant) -> Duration {
        self.certain.saturating_duration_since(now).max(SHORTEST)
    }
}

/// A request under way.
struct Asking {
    id: PermitId,
    /// Until when the answer is waited for.
    end: Instant,
    /// Callers with a smaller number were in the queue when the request was sent.
    next: u64,
}

/// The errors since the last answer.
struct Failure {
    /// The last of them.
    error: Error,
    times: u32,
    since: Instant,
    /// The id of the request that failed. It is sent once more with the same id.
    id: PermitId,
    /// When it is sent once more.
    turn: Instant,
}

impl Queue {
    pub(super) fn new(terms: LimiterConfig) -> Self {
        Self {
            terms,
            callers: BTreeMap::new(),
            next: 0,
            full: None,
            asking: None,
            failure: None,
        }
    }

    /// The answer to a new caller that is known without a request; `None` if the caller has to take a place.
    pub(super) fn known(&self, permits: u32, until: Until, now: Instant) -> Option<PermitAttempt> {
        let full = self.full.as_ref()?;
        let certain = permits >= full.permits && now < full.certain;
        let certain = certain && now < full.turn;
        let answered = match until {
            Until::Answered => certain || self.asleep_until(now).is_some(),
            Until::Time(end) => certain && end < full.certain,
            Until::Granted => false,
        };
        let retry_in = full.retry_in(now);
        answered.then_some(PermitAttempt::Full { retry_in })
    }

    /// When the next request is sent, if the first caller has to wait for that because the window is full.
    fn asleep_until(&self, now: Instant) -> Option<Instant> {
        let (full, first) = (self.full.as_ref()?, self.callers.values().next()?);
        // A caller that does not wait has to have an answer now.
        let waits = first.until != Until::Answered && first.permits >= full.permits;
        (waits && now < full.turn).then_some(full.turn)
    }

    /// Takes the last place, and gives its number and what wakes the caller in it.
    pub(super) fn enter(
        &mut self,
        permits: u32,
        until: Until,
        since: Instant,
        reply: oneshot::Sender<Outcome>,
    ) -> (u64, Arc<Notify>) {
        if self.callers.is_empty() {
            // The errors are those of requests of callers that have left, perhaps long ago.
            self.failure = None;
        }
        if let (Some(full), Until::Time(end)) = (&mut self.full, until) {
            full.look_before(end);
        }
        let number = self.next;
        self.next += 1;
        let called = Arc::new(Notify::new());
        let caller = Caller {
            permits,
            until,
            since,
            reply,
            called: called.clone(),
        };
        self.callers.insert(number, caller);
        // The new caller may need an answer sooner than the first one.
        self.call_first();
        (number, called)
    }

    /// Gives up a place. Permits that were granted to its caller, which did not take them, go to the next callers.
    pub(super) fn leave(&mut self, number: u64, granted: Option<Permit>) {
        self.callers.remove(&number);
        if let Some(permit) = granted {
            self.hand_out(permit.permits(), permit.granted_at());
        }
        self.call_first();
    }

    /// Whether the caller in this place waits for an answer that is on its way.
    pub(super) fn is_asked_for(&self, number: u64) -> bool {
        self.asking
            .as_ref()
            .is_some_and(|asking| number < asking.next)
    }

    /// Whether there is one caller at the most.
    pub(super) fn is_alone(&self) -> bool {
        self.callers.len() <= 1
    }

    fn call_first(&self) {
        if let Some(first) = self.callers.values().next() {
            first.called.notify_one();
        }
    }

    /// The next step of the caller in this place: the first caller sends the request or waits for its time, all others
    /// wait.
    pub(super) fn step(&mut self, number: u64, look: Tick) -> Action {
        let now = look.now;
        if self.asking.as_ref().is_some_and(|asking| asking.end <= now) {
            let late = Error::TimedOut {
                operation: "permit",
                limit: self.terms.limit,
            };
            self.failed(&late, look);
        }
        let Some((first, caller)) = self.callers.first_key_value() else {
            return Action::Wait(None);
        };
        if *first != number {
            return Action::Wait(None);
        }
        let answered = self.asking.as_ref().map(|asking| asking.end);
        let again = self.failure.as_ref().map(|failure| failure.turn);
        let again = again.filter(|turn| now < *turn);
        if let Some(at) = answered.or(again).or_else(|| self.asleep_until(now)) {
            return Action::Wait(Some(at));
        }
        let id = self.failure.as_ref().map(|failure| failure.id);
        let request = self.request(caller.permits, id.unwrap_or_else(PermitId::random));
        self.asking = Some(Asking {
            id: request.id,
            end: now + self.terms.limit,
            next: self.next,
        });
        Action::Ask(Arc::new(request))
    }

    /// A request for the first caller and the callers right behind it that want as many permits, at most so many as
    /// can be granted at once.
    fn request(&self, permits: u32, id: PermitId) -> PermitRequest {
        let LimiterConfig { key, quota, .. } = &self.terms;
        let callers = self.callers.values();
        let alike = callers
            .take_while(|caller| caller.permits == permits)
            .count();
        let most = (quota.most_at_once() / permits.max(1)).max(1);
        let times = u32::try_from(alike).unwrap_or(u32::MAX).min(most);
        PermitRequest::new(key.clone(), id, *quota, permits).up_to(times)
    }

    /// Takes in the outcome of a request that was sent at this time. If a request was sent twice with one id, the
    /// first outcome counts, because both are for the same grant. An outcome under another id is left out: its callers
    /// have left.
    pub(super) fn told(
        &mut self,
        request: &PermitRequest,
        sent: Instant,
        outcome: Result<PermitAnswer, Error>,
        look: Tick,
    ) {
        let asking = self.asking.as_ref().map(|asking| asking.id);
        // After a failure the answer to the request that was given up may still come, and counts.
        let awaited = asking.or(self.failure.as_ref().map(|failure| failure.id));
        if awaited != Some(request.id) {
            return;
        }
        match outcome {
            Ok(answer) => self.answered(request, sent, answer, look),
            Err(error) => self.failed(&error, look),
        }
        self.call_first();
    }

    /// Hands out what was granted, in the order of the places, and answers the callers that will certainly get nothing
    /// in their time.
    fn answered(
        &mut self,
        request: &PermitRequest,
        sent: Instant,
        answer: PermitAnswer,
        look: Tick,
    ) {
        (self.asking, self.failure) = (None, None);
        let retry_in = match answer {
            PermitAnswer::Full { retry_in } => retry_in.max(SHORTEST),
            PermitAnswer::Granted {
                permits,
                granted_at,
                retry_in,
            } => {
                self.hand_out(permits, granted_at);
                retry_in
            }
        };
        let full = || {
            let retry_in = retry_in.max(SHORTEST);
            Ok(PermitAttempt::Full { retry_in })
        };
        let over = |caller: &Caller| caller.end().is_some_and(|end| end <= look.now);
        self.dismiss(over, full);
        self.full = None;
        if retry_in.is_zero() {
            return;
        }
        let late = request.quota.turn().mul_f64(LATE * look.chance).min(LATEST);
        let certain = later(sent, retry_in);
        // The turn is counted from the sending too, because the next request takes about as long to arrive as this one.
        let turn = later(certain, late).min(later(look.now, LOOK));
        let mut next = Exhausted {
            permits: request.permits,
            certain,
            turn: turn.max(look.now + SHORTEST),
        };
        let ends = self.callers.values().filter_map(|caller| caller.end());
        ends.for_each(|end| next.look_before(end));
        self.full = Some(next);
        let in_vain = |caller: &Caller| match caller.until {
            Until::Answered => true,
            Until::Time(end) => end < certain,
            Until::Granted => false,
        };
        let as_many = |caller: &Caller| caller.permits >= request.permits;
        self.dismiss(|caller| as_many(caller) && in_vain(caller), full);
        if self.asleep_until(look.now).is_some() {
            // The callers behind the first have to wait longer than it, so those that do not wait are refused.
            self.dismiss(|caller| caller.until == Until::Answered, full);
        }
    }

    /// Hands out permits in the order of the places. A permit that no caller takes is lost.
    fn hand_out(&mut self, permits: u32, granted_at: DateTime<Utc>) {
        let mut left = permits;
        while let Some(first) = self.callers.first_entry()
            && first.get().permits <= left
        {
            let caller = first.remove();
            let permit = Permit::new(caller.permits, granted_at);
            let granted = Ok(PermitAttempt::Granted(permit));
            if caller.reply.send(granted).is_ok() {
                left -= caller.permits;
            }
        }
    }

    /// Takes in that a request failed: answers the callers that have waited for long enough, and plans the next try.
    fn failed(&mut self, error: &Error, look: Tick) {
        // Without a request under way, this one was given up before, and its failure was counted then.
        let Some(asking) = self.asking.take() else {
            return;
        };
        let Tick { now, chance } = look;
        let before = self.failure.take();
        let since = before.as_ref().map_or(now, |failure| failure.since);
        let times = before.map_or(0, |failure| failure.times).saturating_add(1);
        let limit = self.terms.call_timeout;
        let told = |caller: &Caller| match caller.until {
            _ if !error.is_retryable() => true,
            Until::Time(end) => end <= now,
            _ if times < TRIES => false,
            Until::Answered => true,
            Until::Granted => now.saturating_duration_since(since.max(caller.since)) >= limit,
        };
        self.dismiss(told, || Err(error.clone()));
        self.failure = Some(Failure {
            error: error.clone(),
            times,
            since,
            id: asking.id,
            turn: now + retry::pause(times, retry::WAITING, chance),
        });
    }

    /// The outcome for a caller whose time is over; `None` if no answer and no error has come yet.
    pub(super) fn why(&self, now: Instant) -> Option<Outcome> {
        if let Some(failure) = &self.failure {
            return Some(Err(failure.error.clone()));
        }
        let full = self.full.as_ref()?;
        let retry_in = full.retry_in(now);
        Some(Ok(PermitAttempt::Full { retry_in }))
    }

    /// Takes these callers out of the queue, and sends them this outcome.
    fn dismiss(&mut self, which: impl Fn(&Caller) -> bool, outcome: impl Fn() -> Outcome) {
        let gone = self.callers.iter().filter(|(_, caller)| which(caller));
        let gone: Vec<_> = gone.map(|(number, _)| *number).collect();
        for caller in gone.iter().filter_map(|number| self.callers.remove(number)) {
            // This fails if the caller's future was dropped meanwhile.
            let _ = caller.reply.send(outcome());
        }
    }
}

fn later(from: Instant, by: Duration) -> Instant {
    from + by.min(FAR)
}
