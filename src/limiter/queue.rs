//! The callers that wait for permits of a limiter in this process: their order, what each is told, and when the next
//! request is sent. Pure: times come in as arguments.
//!
//! Invariants:
//!
//! - Callers are granted permits in the order of their places.
//! - A request is for the first caller and for the callers directly behind it that want as many permits. One request is
//!   under way at a time.
//! - A request that is sent again keeps its id, so that the store grants it only once in a window.
//! - While it is certain that there are not enough permits for the first caller, no request is sent, except one after
//!   each [`RECHECK`].

#[cfg(test)]
mod tests;

use std::{collections::BTreeMap, time::Duration};

use chrono::{DateTime, Utc};
use tokio::{sync::oneshot, time::Instant};

use super::permit::{Permit, PermitAttempt};
use crate::{
    messages::{PermitAnswer, PermitRequest},
    model::{Error, Key, PermitId, Quota},
    retry::{self, TRIES},
};

/// What a caller is told.
pub(super) type PermitOutcome = Result<PermitAttempt, Error>;
/// A request, when it was sent, and its outcome.
pub(super) type Call = (PermitRequest, Instant, Result<PermitAnswer, Error>);

/// A request is sent again if it is not answered within the length of a window, or within this time if the window is
/// shorter, but at the latest after the call timeout. A longer wait would waste more windows after a lost answer. A
/// shorter wait has a cost too: if the server is only slow, a request that is repeated in a later window also takes
/// permits of that window.
const MIN_RESPONSE_TIMEOUT: Duration = Duration::from_secs(5);
/// The shortest pause before the next request for a full window.
const MIN_PAUSE: Duration = Duration::from_millis(1);
/// The next request for a full window is sent after this time at the latest, because the document may have been
/// removed, or the server's clock may have been wrong.
const RECHECK: Duration = Duration::from_secs(10 * 60);
/// No wait is longer than this, so that a sum of times does not overflow. A window is always shorter.
const MAX_WAIT: Duration = Duration::from_secs(2 * 366 * 24 * 60 * 60);
/// After a full window, the next request is sent a random time after permits become available, so that not all
/// processes send theirs at once. That time is at most this share of the window, and at most [`MAX_DELAY`].
const MAX_DELAY_SHARE: f64 = 0.05;
const MAX_DELAY: Duration = Duration::from_secs(1);
/// Permits that their caller did not take go to the next callers for one part in so many of the window. Later their
/// window may be over, and who used them then would take more than the limit of the next one.
const FRESH_PART: u32 = 10;

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

pub(super) struct PermitCaller {
    pub(super) permits: u32,
    pub(super) until: Until,
    pub(super) since: Instant,
    /// `None` when the caller has been told its outcome.
    pub(super) reply: Option<oneshot::Sender<PermitOutcome>>,
}

impl PermitCaller {
    /// Tells the caller its outcome. Returns whether it still waits for it.
    fn tell(&mut self, outcome: PermitOutcome) -> bool {
        let reply = self.reply.take();
        reply.is_some_and(|reply| reply.send(outcome).is_ok())
    }

    fn is_over(&self, now: Instant) -> bool {
        matches!(self.until, Until::Time(end) if end <= now)
    }
}

/// What the task of the limiter does next.
#[derive(Debug)]
pub(super) enum Step {
    /// It sends this request, at this time.
    Send(PermitRequest, Instant),
    /// It completes this request, which was sent at this time, with an error: no answer came in time.
    GiveUp(PermitRequest, Instant),
    /// It waits until this time, or until something happens. `None` if no caller waits.
    Wait(Option<Instant>),
}

/// The time of an operation on the queue, and a random number from 0 to 1.
#[derive(Clone, Copy, Debug)]
pub(super) struct Moment {
    pub(super) now: Instant,
    pub(super) chance: f64,
}

pub(super) struct PermitQueue {
    key: Key,
    quota: Quota,
    /// How long an answer may take before the request is sent again.
    pub(super) response_timeout: Duration,
    /// How long all answers may be errors before a caller whose wait has no bound gets the error.
    call_timeout: Duration,
    /// The callers, by the numbers of their places.
    callers: BTreeMap<u64, PermitCaller>,
    /// The number of the next place.
    next_place: u64,
    full: Option<Exhausted>,
    attempt: Option<Attempt>,
    /// When the task takes the next step, as far as it knows.
    planned: Option<Instant>,
    start: Instant,
}

/// What the last answer says about a limiter that is full.
#[derive(Clone, Copy)]
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
    /// Moves the next request to a time before the end of this caller's wait, if permits may be available by then.
    fn recheck_for(&mut self, caller: &PermitCaller) {
        if let Until::Time(end) = caller.until
            && (self.certain..self.next_request).contains(&end)
        {
            self.next_request = self.certain + (end - self.certain) / 2;
        }
    }

    /// Whether there will not be enough permits while this caller waits.
    fn disappoints(&self, caller: &PermitCaller) -> bool {
        let in_vain = match caller.until {
            Until::Answered => true,
            Until::Time(end) => end < self.certain,
            Until::Granted => false,
        };
        in_vain && caller.permits >= self.permits
    }

    fn refusal(&self, now: Instant) -> PermitAttempt {
        let retry_in = self.certain.saturating_duration_since(now).max(MIN_PAUSE);
        PermitAttempt::Full { retry_in }
    }
}

/// A request that is not answered yet, perhaps sent several times.
struct Attempt {
    /// As it was last sent.
    request: PermitRequest,
    sent: Instant,
    /// Callers with a smaller number were in the queue then.
    next_place: u64,
    /// When it is given up, or sent again.
    due: Instant,
    /// The error, while it is not under way.
    error: Option<Error>,
    /// How many times it has failed, and since when.
    failures: u32,
    since: Instant,
}

impl Attempt {
    fn is_under_way(&self) -> bool {
        self.error.is_none()
    }
}

impl PermitQueue {
    pub(super) fn new(key: Key, quota: Quota, call_timeout: Duration, start: Instant) -> Self {
        let longest = quota.window().max(MIN_RESPONSE_TIMEOUT);
        Self {
            key,
            quota,
            response_timeout: longest.min(call_timeout),
            call_timeout,
            callers: BTreeMap::new(),
            next_place: 0,
            full: None,
            attempt: None,
            planned: None,
            start,
        }
    }

    /// Adds a caller to the end of the queue. Returns the number of its place. If the answer is known without a request,
    /// it is returned as the error.
    pub(super) fn enter(
        &mut self,
        caller: PermitCaller,
        now: Instant,
    ) -> Result<u64, PermitAttempt> {
        let is_asleep = self.is_asleep(now);
        if let Some(full) = &mut self.full {
            let is_certain = now < full.certain.min(full.next_request);
            if (is_certain && full.disappoints(&caller))
                || (is_asleep && caller.until == Until::Answered)
            {
                return Err(full.refusal(now));
            }
            full.recheck_for(&caller);
        }
        if self.callers.is_empty() {
            // The errors belong to callers that have left, perhaps long ago.
            self.attempt = self.attempt.take().filter(Attempt::is_under_way);
            self.attempt.iter_mut().for_each(|it| it.failures = 0);
        }
        let place = self.next_place;
        self.next_place += 1;
        self.callers.insert(place, caller);
        Ok(place)
    }

    /// Removes a caller from the queue. A permit in `unused`, the outcome that it did not take, goes to the next callers
    /// unless it is too old.
    pub(super) fn leave(&mut self, place: u64, unused: Option<PermitOutcome>, now: Instant) {
        self.callers.remove(&place);
        if let Some(Ok(PermitAttempt::Granted(permit))) = unused
            && now.saturating_duration_since(permit.answered()) <= self.quota.window() / FRESH_PART
        {
            self.hand_out(permit.permits(), permit.granted_at(), permit.answered());
        }
    }

    /// Removes a caller whose time is over, and returns its outcome; `silence` is the error if there was no answer. `None`
    /// if the caller is told anyway: it was told before, or a request for it is under way, or is sent next.
    pub(super) fn give_up(
        &mut self,
        place: u64,
        now: Instant,
        silence: impl FnOnce() -> Error,
    ) -> Option<PermitOutcome> {
        let outcome = match (&self.attempt, &self.full) {
            (Some(it), _) if it.is_under_way() && place < it.next_place => return None,
            (Some(it), _) => Err(it.error.clone().unwrap_or_else(silence)),
            (None, Some(full)) if self.is_asleep(now) => Ok(full.refusal(now)),
            (None, _) => return None,
        };
        self.callers.remove(&place)?;
        Some(outcome)
    }

    /// What the task does now.
    pub(super) fn step(&mut self, now: Instant) -> Step {
        self.planned = self.next_step();
        match &self.attempt {
            _ if self.planned.is_none_or(|next| now < next) => Step::Wait(self.planned),
            Some(it) if it.is_under_way() => Step::GiveUp(it.request.clone(), it.sent),
            _ => Step::Send(self.send(now), now),
        }
    }

    /// Whether the next step is at another time than the task knows.
    pub(super) fn has_new_plan(&mut self) -> bool {
        let known = self.planned;
        self.planned = self.next_step();
        known != self.planned
    }

    /// When the next request is sent, or the one that is under way is given up. `None` if no caller waits.
    fn next_step(&self) -> Option<Instant> {
        self.callers.first_key_value()?;
        let asleep = self.asleep_until().unwrap_or(self.start);
        Some(match &self.attempt {
            Some(attempt) if attempt.is_under_way() => attempt.due,
            Some(attempt) => attempt.due.max(asleep),
            None => asleep,
        })
    }

    /// When the next request is sent, if the first caller waits because the window is full.
    fn asleep_until(&self) -> Option<Instant> {
        let (full, first) = (self.full.as_ref()?, self.callers.values().next()?);
        // A first caller that does not wait needs an answer now.
        let waits = first.until != Until::Answered && first.permits >= full.permits;
        waits.then_some(full.next_request)
    }

    fn is_asleep(&self, now: Instant) -> bool {
        self.asleep_until().is_some_and(|until| now < until)
    }

    /// A request for the first caller and the callers directly behind it that want the same number of permits, for as
    /// many callers as can be granted permits at once.
    fn send(&mut self, now: Instant) -> PermitRequest {
        let permits = self.callers.values().next().map_or(1, |it| it.permits);
        let most = (self.quota.most_at_once() / permits.max(1)).max(1);
        let callers = self.callers.values().zip(0..most);
        let alike = callers.take_while(|(caller, _)| caller.permits == permits);
        let times = u32::try_from(alike.count()).unwrap_or(most);
        let (id, failures, since) = match self.attempt.take() {
            Some(failed) => (failed.request.id, failed.failures, failed.since),
            None => (PermitId::random(), 0, now),
        };
        let request = PermitRequest::new(self.key.clone(), id, self.quota, permits).up_to(times);
        self.attempt = Some(Attempt {
            request: request.clone(),
            sent: now,
            next_place: self.next_place,
            due: now + self.response_timeout,
            error: None,
            failures,
            since,
        });
        request
    }

    /// Applies the outcome of a request.
    ///
    /// If a request was sent twice with one id, the first grant counts, because both are for the same one. Any other
    /// outcome of the earlier one is ignored, because the later one may still be granted. An outcome under another id is
    /// ignored, because its callers have left.
    pub(super) fn complete(&mut self, (request, sent, outcome): Call, moment: Moment) {
        let same = |it: &&Attempt| it.request.id == request.id;
        let Some(attempt) = self.attempt.as_ref().filter(same) else {
            return;
        };
        let is_last = attempt.sent <= sent;
        let retry_in = match outcome {
            Ok(PermitAnswer::Full { retry_in }) if is_last => retry_in.max(MIN_PAUSE),
            Ok(PermitAnswer::Granted {
                permits,
                granted_at,
                retry_in,
            }) => {
                self.hand_out(permits, granted_at, moment.now);
                retry_in
            }
            // A request that was given up has failed before.
            Err(error) if is_last && attempt.is_under_way() => return self.failed(&error, moment),
            _ => return,
        };
        self.answered(request.permits, sent, retry_in, moment);
    }

    /// Plans the next request after an answer, and refuses the callers that are certain to get no permits in their time.
    fn answered(&mut self, permits: u32, sent: Instant, retry_in: Duration, moment: Moment) {
        let Moment { now, chance } = moment;
        (self.attempt, self.full) = (None, None);
        let certain = sent + retry_in.min(MAX_WAIT);
        let refill = self.quota.longest_refill();
        let late = refill.mul_f64(MAX_DELAY_SHARE * chance);
        // The next request is counted from the same instant as `certain`, because it takes about as long to arrive as
        // this one.
        let next_request = (certain + late.min(MAX_DELAY)).min(now + RECHECK);
        let mut full = Exhausted {
            permits,
            certain,
            next_request: next_request.max(now + MIN_PAUSE),
        };
        let has_permits = retry_in.is_zero();
        let in_vain = |it: &PermitCaller| it.is_over(now) || (!has_permits && full.disappoints(it));
        self.tell(in_vain, || Ok(full.refusal(now)));
        if has_permits {
            return;
        }
        self.callers.values().for_each(|it| full.recheck_for(it));
        self.full = Some(full);
        if self.is_asleep(now) {
            // The callers behind the first one would wait longer than it does, so those that do not wait are refused.
            let does_not_wait = |it: &PermitCaller| it.until == Until::Answered;
            self.tell(does_not_wait, || Ok(full.refusal(now)));
        }
    }

    /// Records that the request failed. Answers the callers that have waited long enough, and plans the next try.
    fn failed(&mut self, error: &Error, Moment { now, chance }: Moment) {
        let Some(attempt) = &mut self.attempt else {
            return;
        };
        if attempt.failures == 0 {
            attempt.since = now;
        }
        attempt.failures = attempt.failures.saturating_add(1);
        attempt.error = Some(error.clone());
        let (times, since) = (attempt.failures, attempt.since);
        attempt.due = now + retry::pause(times, retry::LONGEST_PAUSE, chance);
        let limit = self.call_timeout;
        let gets_error = |caller: &PermitCaller| match caller.until {
            _ if !error.is_retryable() => true,
            Until::Time(end) => end <= now,
            _ if times < TRIES => false,
            Until::Answered => true,
            Until::Granted => now.saturating_duration_since(since.max(caller.since)) >= limit,
        };
        self.tell(gets_error, || Err(error.clone()));
    }

    /// Hands out permits in the order of the places. Permits that no caller takes are lost.
    fn hand_out(&mut self, permits: u32, granted_at: DateTime<Utc>, answered: Instant) {
        let mut left = permits;
        while let Some(first) = self.callers.first_entry()
            && first.get().permits <= left
        {
            let mut caller = first.remove();
            let permit = Permit::new(caller.permits, granted_at, answered);
            if caller.tell(Ok(PermitAttempt::Granted(permit))) {
                left -= caller.permits;
            }
        }
    }

    /// Tells all callers that nothing is sent for them any more.
    pub(super) fn end(&mut self, error: &Error) {
        self.tell(|_| true, || Err(error.clone()));
    }

    /// Removes the callers for which `which` is true from the queue, and tells them this outcome.
    fn tell(&mut self, which: impl Fn(&PermitCaller) -> bool, outcome: impl Fn() -> PermitOutcome) {
        self.callers.retain(|_, caller| {
            let is_told = which(caller);
            if is_told {
                caller.tell(outcome());
            }
            !is_told
        });
    }
}
