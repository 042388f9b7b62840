//! What the outcome of a request changes in a [`PermitQueue`]: which callers get an answer, and when the next request
//! is sent.

use std::time::Duration;

use chrono::{DateTime, Utc};
use tokio::time::Instant;

use super::{
    Exhausted, FailedAttempts, MIN_PAUSE, Moment, PermitCaller, PermitOutcome, PermitQueue,
    RECHECK, Until, later,
};
use crate::{
    limiter::permit::{Permit, PermitAttempt},
    messages::{PermitAnswer, PermitRequest},
    model::Error,
    retry::{self, TRIES},
};

/// After a full window, the next request is sent a random time after permits become available, so that not all
/// processes send theirs at once. That time is at most this share of the window, and at most [`MAX_DELAY`].
const MAX_DELAY_SHARE: f64 = 0.05;
const MAX_DELAY: Duration = Duration::from_secs(1);
/// Permits that their caller did not take go to the next callers for one part in so many of the window. Later their
/// window may be over, and who used them then would take more than the limit of the next one.
const FRESH_PART: u32 = 10;

impl PermitQueue {
    /// Applies the outcome of a request that was sent at `sent`. If a request was sent twice with one id, the first
    /// grant counts, because both are for the same one. Any other outcome of the earlier one is ignored, because the
    /// later one may still be granted. An outcome under another id is ignored, because its callers have left.
    pub(in crate::limiter) fn complete(
        &mut self,
        request: &PermitRequest,
        sent: Instant,
        outcome: Result<PermitAnswer, Error>,
        tick: Moment,
    ) {
        let pending = self.pending.as_ref().map(|it| (it.id, it.sent));
        // After a failure, the answer to the request that was given up may still arrive, and counts.
        let awaited = pending.or(self.failure.as_ref().map(|it| (it.id, it.sent)));
        let Some((id, last_sent)) = awaited else {
            return;
        };
        let is_granted = matches!(outcome, Ok(PermitAnswer::Granted { .. }));
        if id != request.id || (sent < last_sent && !is_granted) {
            return;
        }
        match outcome {
            Ok(answer) => self.answered(request, sent, answer, tick),
            Err(error) => self.failed(&error, tick),
        }
        self.call_first();
    }

    /// Hands out the granted permits, in the order of the places, and answers the callers that are certain to get none
    /// in their time.
    fn answered(
        &mut self,
        request: &PermitRequest,
        sent: Instant,
        answer: PermitAnswer,
        tick: Moment,
    ) {
        (self.pending, self.failure) = (None, None);
        let retry_in = match answer {
            PermitAnswer::Full { retry_in } => retry_in.max(MIN_PAUSE),
            PermitAnswer::Granted {
                permits,
                granted_at,
                retry_in,
            } => {
                self.hand_out(permits, granted_at, tick.now);
                retry_in
            }
        };
        let full = || {
            let retry_in = retry_in.max(MIN_PAUSE);
            Ok(PermitAttempt::Full { retry_in })
        };
        let over = |caller: &PermitCaller| caller.end().is_some_and(|end| end <= tick.now);
        self.answer_callers(over, full);
        self.full = None;
        if retry_in.is_zero() {
            return;
        }
        let late = request
            .quota
            .longest_refill()
            .mul_f64(MAX_DELAY_SHARE * tick.chance)
            .min(MAX_DELAY);
        let certain = later(sent, retry_in);
        // The next request is counted from the same instant as `certain`, because it takes about as long to arrive as
        // this one.
        let next_request = later(certain, late).min(later(tick.now, RECHECK));
        let mut next = Exhausted {
            permits: request.permits,
            certain,
            next_request: next_request.max(tick.now + MIN_PAUSE),
        };
        let ends = self.callers.values().filter_map(|caller| caller.end());
        ends.for_each(|end| next.recheck_before(end));
        self.full = Some(next);
        let in_vain = |caller: &PermitCaller| match caller.until {
            Until::Answered => true,
            Until::Time(end) => end < certain,
            Until::Granted => false,
        };
        let as_many = |caller: &PermitCaller| caller.permits >= request.permits;
        self.answer_callers(|caller| as_many(caller) && in_vain(caller), full);
        if self.asleep_until(tick.now).is_some() {
            // The callers behind the first one would wait longer than it does, so those that do not wait are refused.
            self.answer_callers(|caller| caller.until == Until::Answered, full);
        }
    }

    /// Hands a permit that its caller did not take to the next callers, unless it is too old.
    pub(super) fn hand_on(&mut self, permit: &Permit, now: Instant) {
        let age = now.saturating_duration_since(permit.answered());
        if age <= self.config.quota.window() / FRESH_PART {
            self.hand_out(permit.permits(), permit.granted_at(), permit.answered());
        }
    }

    /// Hands out permits in the order of the places. Permits that no caller takes are lost.
    fn hand_out(&mut self, permits: u32, granted_at: DateTime<Utc>, answered: Instant) {
        let mut left = permits;
        while let Some(first) = self.callers.first_entry()
            && first.get().permits <= left
        {
            let caller = first.remove();
            let permit = Permit::new(caller.permits, granted_at, answered);
            let granted = Ok(PermitAttempt::Granted(permit));
            if caller.reply.send(granted).is_ok() {
                left -= caller.permits;
            }
        }
    }

    /// Records that a request failed. Answers the callers that have waited long enough, and plans the next try.
    pub(super) fn failed(&mut self, error: &Error, tick: Moment) {
        // If no request is under way, this one was given up before, and its failure was already counted.
        let Some(pending) = self.pending.take() else {
            return;
        };
        let Moment { now, chance } = tick;
        let before = self.failure.take();
        let since = before.as_ref().map_or(now, |failure| failure.since);
        let times = before.map_or(0, |failure| failure.times).saturating_add(1);
        let limit = self.config.call_timeout;
        let gets_error = |caller: &PermitCaller| match caller.until {
            _ if !error.is_retryable() => true,
            Until::Time(end) => end <= now,
            _ if times < TRIES => false,
            Until::Answered => true,
            Until::Granted => now.saturating_duration_since(since.max(caller.since)) >= limit,
        };
        self.answer_callers(gets_error, || Err(error.clone()));
        self.failure = Some(FailedAttempts {
            error: error.clone(),
            times,
            since,
            id: pending.id,
            sent: pending.sent,
            retry_at: now + retry::pause(times, retry::LONGEST_PAUSE, chance),
        });
    }

    /// The outcome for a caller whose time is over. `None` if no answer and no error has come yet.
    pub(in crate::limiter) fn timeout_outcome(&self, now: Instant) -> Option<PermitOutcome> {
        if let Some(failure) = &self.failure {
            return Some(Err(failure.error.clone()));
        }
        let full = self.full.as_ref()?;
        let retry_in = full.retry_in(now);
        Some(Ok(PermitAttempt::Full { retry_in }))
    }

    /// Removes the callers for which `which` is true from the queue, and sends them this outcome.
    fn answer_callers(
        &mut self,
        which: impl Fn(&PermitCaller) -> bool,
        outcome: impl Fn() -> PermitOutcome,
    ) {
        let gone = self.callers.iter().filter(|(_, caller)| which(caller));
        let gone: Vec<_> = gone.map(|(number, _)| *number).collect();
        for caller in gone.iter().filter_map(|number| self.callers.remove(number)) {
            // This fails if the caller's future was dropped meanwhile.
            let _ = caller.reply.send(outcome());
        }
    }
}
