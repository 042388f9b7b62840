//! The callers that wait for permits of a limiter in this process: their order, what each is told, and when the next
//! request is sent. Pure: times come in as arguments.
//!
//! Invariants:
//!
//! - Callers are granted permits in the order in which they came.
//! - A request is for the first caller and for the callers directly behind it that want as many permits. One request is
//!   under way at a time.
//! - A request that is sent again keeps its id, so that the store grants it only once in a window.
//! - While it is certain that there are not enough permits for the first caller, no request is sent, except one
//!   [every ten minutes](retry::after_refill).
//! - A caller whose receiver is gone has left, and is removed when it is looked at.

#[cfg(test)]
mod tests;

use std::{collections::VecDeque, time::Duration};

use chrono::{DateTime, Utc};
use tokio::{sync::oneshot, time::Instant};

use crate::{
    messages::{PermitAnswer, PermitRequest},
    model::{Error, Key, PermitId, PermitsLeft, Quota},
    retry::{self, SHORTEST_PAUSE, TRIES},
};

/// What one limiter has granted to one caller.
#[derive(Clone, Copy, Debug)]
pub(super) struct Granted {
    pub(super) permits: u32,
    pub(super) granted_at: DateTime<Utc>,
    pub(super) left: PermitsLeft,
}

/// What a caller is told. The error is `LimitReached` if there are not enough permits while it waits.
pub(super) type PermitOutcome = Result<Granted, Error>;
/// A request, when it was sent, and its outcome.
pub(super) type Call = (PermitRequest, Instant, Result<PermitAnswer, Error>);

/// A request is sent again if it is not answered within the length of a window, or within this time if the window is
/// shorter, but at the latest after the call timeout. A longer wait would waste more windows after a lost answer. A
/// shorter wait has a cost too: if the server is only slow, a request that is repeated in a later window also takes
/// permits of that window.
const MIN_RESPONSE_TIMEOUT: Duration = Duration::from_secs(5);

pub(super) struct PermitCaller {
    pub(super) permits: u32,
    pub(super) since: Instant,
    /// When its wait is over. A caller that does not wait has `since` here.
    pub(super) end: Option<Instant>,
    /// Closed when the caller has left.
    pub(super) reply: oneshot::Sender<PermitOutcome>,
}

impl PermitCaller {
    /// Whether it waits for permits, and not only for one answer.
    fn waits(&self) -> bool {
        self.end != Some(self.since)
    }

    /// Whether its wait is over.
    fn is_over(&self, now: Instant) -> bool {
        self.waits() && self.end.is_some_and(|end| end <= now)
    }

    /// Whether there will not be enough permits while it waits.
    fn waits_in_vain(&self, full: &Exhausted) -> bool {
        let ends_before = !self.waits() || self.end.is_some_and(|end| end < full.certain);
        ends_before && self.permits >= full.permits
    }
}

/// What the task of the limiter does next.
#[derive(Debug)]
pub(super) enum Step {
    /// It sends this request now.
    Send(PermitRequest),
    /// It completes this request, which was sent at this time, with an error: no answer came in time.
    GiveUp(PermitRequest, Instant),
    /// It waits until this time, or until something happens. `None` if no caller waits.
    Wait(Option<Instant>),
}

pub(super) struct PermitQueue {
    key: Key,
    quota: Quota,
    /// How long all answers may be errors before a caller whose wait has no bound gets the error.
    call_timeout: Duration,
    callers: VecDeque<PermitCaller>,
    /// The earliest end of a wait, or an earlier time.
    next_end: Option<Instant>,
    full: Option<Exhausted>,
    attempt: Option<Attempt>,
}

/// What the last answer says about a limiter that is full.
#[derive(Clone, Copy)]
struct Exhausted {
    /// The number of permits that was refused. The limiter has fewer.
    permits: u32,
    /// Until when the limiter is certain to be full. This is counted from the instant before the request was sent,
    /// because the store may have carried it out at any time between that instant and the answer.
    certain: Instant,
    /// When the next request is sent, unless the wait of a caller ends before, but not before `certain`.
    next_request: Instant,
    left: PermitsLeft,
    /// When all permits of the limiter are back if no caller takes any, counted from the same instant as `certain`.
    reset: Instant,
}

/// A request that is not answered yet, perhaps sent several times.
struct Attempt {
    /// As it was last sent.
    request: PermitRequest,
    sent: Instant,
    /// When it is given up, or sent again.
    due: Instant,
    /// The error of the last try, until the next one. `None` while a try is under way.
    error: Option<Error>,
    /// Whether permits were given back meanwhile, so that the limiter may have room although the answer says it is full.
    is_outdated: bool,
    /// How many times it has failed, and since when.
    failures: u32,
    failing_since: Option<Instant>,
}

impl PermitQueue {
    pub(super) fn new(key: Key, quota: Quota, call_timeout: Duration) -> Self {
        Self {
            key,
            quota,
            call_timeout,
            callers: VecDeque::new(),
            next_end: None,
            full: None,
            attempt: None,
        }
    }

    /// Adds a caller to the end of the queue, or tells it its outcome, if that is known without a request.
    pub(super) fn enter(&mut self, caller: PermitCaller, now: Instant) {
        if self.first().is_none() {
            // The errors belong to callers that have left, perhaps long ago.
            self.attempt.take_if(|it| it.error.is_some());
            self.attempt.iter_mut().for_each(|it| it.failures = 0);
        }
        self.tell_or_add(caller, now);
    }

    fn tell_or_add(&mut self, caller: PermitCaller, now: Instant) {
        if self.callers.len() == self.callers.capacity() {
            // Otherwise callers that come and leave behind a first one that sleeps would pile up.
            self.callers.retain(|it| !it.reply.is_closed());
        }
        if let Some(error) = self.known(&caller, now) {
            // A caller that has left needs no outcome.
            return drop(caller.reply.send(Err(error)));
        }
        let end = caller.end.filter(|_| caller.waits());
        self.next_end = self.next_end.into_iter().chain(end).min();
        self.callers.push_back(caller);
    }

    /// Why a caller behind those in the queue gets no permits, if that is known.
    fn known(&mut self, caller: &PermitCaller, now: Instant) -> Option<Error> {
        let error = self.attempt.as_ref().and_then(|it| it.error.as_ref());
        if let Some(error) = error.filter(|_| caller.is_over(now)) {
            return Some(error.clone());
        }
        // The callers behind a first one that sleeps would wait longer than it does.
        let is_asleep = self.asleep_until().is_some_and(|until| now < until);
        let full = self.full?;
        let is_certain = now < full.certain.min(full.next_request);
        let is_refused = (is_certain && caller.waits_in_vain(&full))
            || (is_asleep && !caller.waits())
            || (is_asleep && caller.is_over(now) && now < full.certain);
        is_refused.then(|| self.refusal(full, caller, now))
    }

    fn refusal(&self, full: Exhausted, caller: &PermitCaller, now: Instant) -> Error {
        let until = |time: Instant| time.saturating_duration_since(now).max(SHORTEST_PAUSE);
        Error::LimitReached {
            key: self.key.clone(),
            waited: now.saturating_duration_since(caller.since),
            retry_in: until(full.certain),
            left: PermitsLeft {
                reset_in: until(full.reset),
                ..full.left
            },
        }
    }

    /// Another caller of this process has given permits back, so it is not certain any more that the limiter is full.
    pub(super) fn given_back(&mut self) {
        self.full = None;
        self.attempt.iter_mut().for_each(|it| it.is_outdated = true);
    }

    /// The first caller that has not left.
    pub(super) fn first(&mut self) -> Option<&mut PermitCaller> {
        while self.callers.front()?.reply.is_closed() {
            self.callers.pop_front();
        }
        self.callers.front_mut()
    }

    /// What the task does now.
    pub(super) fn step(&mut self, now: Instant) -> Step {
        let is_under_way = self.attempt.as_ref().is_some_and(|it| it.error.is_none());
        if !is_under_way && self.next_end.is_some_and(|end| end <= now) {
            self.tell(now, |_, _| None);
        }
        let Some(permits) = self.first().map(|first| first.permits) else {
            return Step::Wait(None);
        };
        let due = match &self.attempt {
            Some(it) if is_under_way && now < it.due => return Step::Wait(Some(it.due)),
            Some(it) if is_under_way => return Step::GiveUp(it.request.clone(), it.sent),
            failed => failed.as_ref().map(|it| it.due),
        };
        let next = self.asleep_until().max(due).unwrap_or(now);
        // A caller that is left although its wait is over needs an answer now.
        let next = self.next_end.map_or(next, |end| end.min(next));
        if now < next {
            Step::Wait(Some(next))
        } else {
            Step::Send(self.send(permits, now))
        }
    }

    /// When the next request is sent, if the first caller waits because the window is full.
    fn asleep_until(&mut self) -> Option<Instant> {
        let (full, first) = (self.full?, self.first()?);
        // A first caller that does not wait needs an answer now.
        let waits = first.waits() && first.permits >= full.permits;
        waits.then_some(full.next_request)
    }

    /// A request for the first caller and the callers directly behind it that want the same number of permits, for as
    /// many callers as can be granted permits at once.
    fn send(&mut self, permits: u32, now: Instant) -> PermitRequest {
        let most = (self.quota.most_at_once() / permits.max(1)).max(1);
        let callers = self.callers.iter().filter(|it| !it.reply.is_closed());
        let alike = callers.take_while(|it| it.permits == permits).zip(0..most);
        let times = u32::try_from(alike.count()).unwrap_or(most);
        let longest = self.quota.window().max(MIN_RESPONSE_TIMEOUT);
        let attempt = self.attempt.get_or_insert_with(|| Attempt {
            request: PermitRequest::new(self.key.clone(), PermitId::random(), self.quota, permits),
            sent: now,
            due: now,
            error: None,
            is_outdated: false,
            failures: 0,
            failing_since: None,
        });
        (attempt.request.permits, attempt.request.times) = (permits, times);
        (attempt.sent, attempt.error, attempt.is_outdated) = (now, None, false);
        attempt.due = now + longest.min(self.call_timeout);
        attempt.request.clone()
    }

    /// Applies the outcome of a request. `chance` is a random number from 0 to 1.
    ///
    /// If a request was sent twice with one id, the first grant counts, because both are for the same one. Any other
    /// outcome of the earlier one is ignored, because the later one may still be granted. An outcome under another id is
    /// ignored, because its callers have left.
    pub(super) fn complete(&mut self, (request, sent, outcome): Call, now: Instant, chance: f64) {
        let attempt = self.attempt.as_ref();
        let Some(attempt) = attempt.filter(|it| it.request.id == request.id) else {
            return;
        };
        let (is_last, is_outdated) = (attempt.sent <= sent, attempt.is_outdated);
        let (retry_in, left) = match outcome {
            Ok(PermitAnswer::Full { retry_in, left }) if is_last => {
                (retry_in.max(SHORTEST_PAUSE), left)
            }
            Ok(PermitAnswer::Granted {
                permits,
                granted_at,
                retry_in,
                left,
            }) => {
                self.hand_out(permits, |permits, later| {
                    let remaining = left.remaining.saturating_add(later);
                    let left = PermitsLeft { remaining, ..left };
                    Granted {
                        permits,
                        granted_at,
                        left,
                    }
                });
                (retry_in, left)
            }
            // A request that was given up has failed before.
            Err(error) if is_last && attempt.error.is_none() => {
                return self.failed(&error, now, chance);
            }
            _ => return,
        };
        self.attempt = None;
        let certain = retry::wait_end(sent, retry_in);
        let refill = self.quota.longest_refill();
        let full = Exhausted {
            permits: request.permits,
            certain,
            // It is counted from the same instant as `certain`, because it takes about as long to arrive as this one.
            next_request: retry::after_refill(certain, refill, now, chance),
            left,
            reset: retry::wait_end(sent, left.reset_in.max(retry_in)),
        };
        let is_full = !retry_in.is_zero();
        self.full = (is_full && !is_outdated).then_some(full);
        let in_vain = |it: &PermitCaller| {
            let gets_answer = is_full && (!is_outdated || !it.waits());
            it.is_over(now) || (gets_answer && it.waits_in_vain(&full))
        };
        self.tell(now, |queue, it| {
            in_vain(it).then(|| queue.refusal(full, it, now))
        });
    }

    /// Records that the request failed. Answers the callers that have waited long enough, and plans the next try.
    fn failed(&mut self, error: &Error, now: Instant, chance: f64) {
        let Some(attempt) = &mut self.attempt else {
            return;
        };
        attempt.failures = attempt.failures.saturating_add(1);
        attempt.error = Some(error.clone());
        let times = attempt.failures;
        let since = *attempt.failing_since.get_or_insert(now);
        attempt.due = now + retry::pause(times, retry::LONGEST_PAUSE, chance);
        let limit = self.call_timeout;
        let gets_error = |caller: &PermitCaller| match caller.end {
            _ if !error.is_retryable() => true,
            _ if times < TRIES => false,
            Some(_) => !caller.waits(),
            None => now.saturating_duration_since(since.max(caller.since)) >= limit,
        };
        self.tell(now, |_, it| gets_error(it).then(|| error.clone()));
    }

    /// Hands out permits in the order of the callers. Permits that no caller takes are lost. A permit is made of its
    /// number, and of how many the callers behind it take.
    fn hand_out(&mut self, granted: u32, permit: impl Fn(u32, u32) -> Granted) {
        let callers = self.callers.iter().filter(|it| !it.reply.is_closed());
        let after = |left: &mut u32, it: &PermitCaller| {
            *left = left.checked_sub(it.permits)?;
            Some(*left)
        };
        let lost = callers.scan(granted, after).last().unwrap_or(granted);
        let mut left = granted;
        while self.first().is_some_and(|first| first.permits <= left)
            && let Some(PermitCaller { permits, reply, .. }) = self.callers.pop_front()
        {
            let later = (left - permits).saturating_sub(lost);
            if reply.send(Ok(permit(permits, later))).is_ok() {
                left -= permits;
            }
        }
    }

    /// Tells each caller why it gets no permits, if there is a reason here, or [it is known](Self::known) now.
    fn tell(&mut self, now: Instant, here: impl Fn(&Self, &PermitCaller) -> Option<Error>) {
        self.next_end = None;
        for caller in std::mem::take(&mut self.callers) {
            match here(self, &caller) {
                Some(error) => drop(caller.reply.send(Err(error))),
                None => self.tell_or_add(caller, now),
            }
        }
    }
}
