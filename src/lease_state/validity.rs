//! `Validity`: how long a holder may count on its lease, by its own clock. Pure: times come in as arguments.
//!
//! The server decides when a lease ends, and the holder must stop before that. So the holder counts from the instant
//! before it sent the request, which cannot be later than the instant at which the server carried it out. It also
//! subtracts a clock margin, because after a failover the clock of the new server may be ahead.
//!
//! The clock of the process stands still while the machine is suspended. Only leases that were granted from memory
//! count that time (`status.rs`, `backing.rs`).

use std::time::Duration;

use tokio::time::Instant;

use super::timing;
use crate::{
    messages::Grant,
    model::{Error, LossReason, between},
};

/// The instant of the grant on the clock of this process, or a little earlier. `sent` is the instant before the request
/// was sent.
///
/// A repeated request, or the renewal of a resumed lease, may be answered with a lease that was granted a while ago.
/// The times in the answer, both by the server's clock, show how long ago.
pub(crate) fn granted_at(sent: Instant, grant: &Grant) -> Instant {
    let since = between(grant.acquired_at, grant.now);
    // If an `Instant` cannot express so early a time, the answer is nonsensical, and the time of the request is used.
    sent.checked_sub(since).unwrap_or(sent)
}

/// The instant from which the holder must not count on the lease any more.
///
/// `sent` is the instant before the request was sent. The time is computed from what the lease had left when the server
/// answered: a repeated request may be answered with the lease that the first request was granted a while ago. It is
/// never longer than the ttl: if the server's clock was set back after the grant, the lease has more than that left by
/// that clock, and loses it when the clock is right again.
pub(crate) fn deadline(
    sent: Instant,
    grant: &Grant,
    ttl: Duration,
    clock_margin: Duration,
) -> Instant {
    let usable = grant.expires_in().min(ttl).saturating_sub(clock_margin);
    // A ttl is bounded, so only a nonsensical answer can overflow. The lease then counts as expired at once.
    sent.checked_add(usable).unwrap_or(sent)
}

/// Until when the holder may count on a lease. A lease that is lost stays lost, for the first reason.
#[derive(Clone, Debug)]
pub(crate) struct Validity {
    /// Not later than `end`.
    pub(super) deadline: Instant,
    /// When the maximum hold is over, if the lease has one. No renewal moves the deadline past it.
    pub(super) end: Option<Instant>,
    lost: Option<LossReason>,
    /// The last error of a renewal, if no renewal succeeded since. Or the reason why a renewal that is due was not
    /// sent.
    pub(super) trouble: Option<Error>,
}

impl Validity {
    pub(crate) fn until(deadline: Instant) -> Self {
        Self {
            deadline,
            end: None,
            lost: None,
            trouble: None,
        }
    }

    /// Sets when the maximum hold is over. A lease that is already lost keeps the reason of its loss.
    pub(crate) fn limit(&mut self, end: Instant, now: Instant) {
        if self.is_live(now) {
            self.end = Some(end);
            self.deadline = self.deadline.min(end);
        }
    }

    /// Whether the lease lasts until its maximum hold is over, so that no renewal can extend it.
    pub(crate) fn reaches_end(&self) -> bool {
        self.end == Some(self.deadline)
    }

    /// Whether the holder may count on the lease at this instant.
    pub(crate) fn is_live(&self, now: Instant) -> bool {
        self.lost.is_none() && now < self.deadline
    }

    /// Why the lease is lost at this instant. `None` while it is live.
    pub(crate) fn loss(&self, now: Instant) -> Option<LossReason> {
        if self.is_live(now) {
            return None;
        }
        Some(match (&self.lost, &self.trouble) {
            (Some(reason), _) => reason.clone(),
            // Failed renewals do not matter here, because no renewal was needed any more.
            (None, _) if self.reaches_end() => LossReason::HeldTooLong,
            (None, Some(error)) => LossReason::Unreachable(Box::new(error.clone())),
            (None, None) => LossReason::Expired,
        })
    }

    /// How long the holder may still count on the lease.
    pub(crate) fn remaining(&self, now: Instant) -> Duration {
        if !self.is_live(now) {
            return Duration::ZERO;
        }
        self.deadline.saturating_duration_since(now)
    }

    /// The instant from which the lease is at risk: a third of the ttl before its maximum hold is over, or an earlier
    /// one because of [its renewals](Self::renewal_risk). `None` if there is no such instant before the deadline.
    pub(crate) fn risk(&self, ttl: Duration, unrenewed: Option<Duration>) -> Option<Instant> {
        let of_end = self
            .end
            .map(|end| end.checked_sub(timing::risk_margin(ttl)).unwrap_or(end));
        let of_renewals = self.renewal_risk(ttl, unrenewed);
        let first = of_end.into_iter().chain(of_renewals).min();
        first.filter(|at| *at < self.deadline)
    }

    /// The instant from which the lease is at risk because it was not renewed. If a renewal has failed, this is when a
    /// third of the ttl is left. Otherwise it is when `unrenewed` is left. `None` if no renewal has failed and
    /// `unrenewed` is `None`.
    pub(crate) fn renewal_risk(
        &self,
        ttl: Duration,
        unrenewed: Option<Duration>,
    ) -> Option<Instant> {
        let left = match self.trouble {
            Some(_) => timing::risk_margin(ttl),
            None => unrenewed?,
        };
        // If an `Instant` cannot express so early a time, the lease is at risk only from its deadline on.
        Some(self.deadline.checked_sub(left).unwrap_or(self.deadline))
    }

    /// Applies a renewal. An answer after the deadline comes too late, because the holder may already have acted on the
    /// loss. If two renewals cross, the later deadline counts. The deadline is never later than the end of the maximum
    /// hold.
    pub(crate) fn renewed(&mut self, deadline: Instant, now: Instant) -> Result<(), LossReason> {
        if let Some(reason) = self.loss(now) {
            return Err(self.lost.insert(reason).clone());
        }
        let deadline = self.end.map_or(deadline, |end| deadline.min(end));
        self.deadline = self.deadline.max(deadline);
        self.trouble = None;
        Ok(())
    }

    /// Moves the deadline to this instant, unless it is earlier already.
    pub(crate) fn shorten(&mut self, deadline: Instant) {
        self.deadline = self.deadline.min(deadline);
    }

    /// Records that a renewal failed. After a loss this does not change the reason of the loss.
    pub(crate) fn failed(&mut self, error: Error, now: Instant) {
        if self.is_live(now) {
            self.trouble = Some(error);
        }
    }

    /// Records that the lease is lost, and returns the first reason of the loss.
    pub(crate) fn lose(&mut self, reason: LossReason, now: Instant) -> LossReason {
        let first = self.loss(now).unwrap_or(reason);
        self.lost.insert(first).clone()
    }
}

#[cfg(test)]
mod tests {
    use chrono::{DateTime, Utc};

    use super::*;
    use crate::model::{Fence, after};

    const SECOND: Duration = Duration::from_secs(1);

    fn grant(expires_in: Duration) -> Grant {
        let now = DateTime::<Utc>::UNIX_EPOCH;
        Grant {
            is_awaited: false,
            fence: Fence::new(1),
            acquired_at: now,
            expires_at: after(now, expires_in),
            now,
        }
    }

    #[test]
    fn the_deadline_counts_from_the_sending_and_leaves_the_margin() {
        let sent = Instant::now();
        let margin = Duration::from_millis(100);
        let usable = |left, ttl| deadline(sent, &grant(left), ttl, margin) - sent;
        assert_eq!(usable(SECOND, 3 * SECOND), SECOND - margin);
        assert_eq!(usable(margin / 2, 3 * SECOND), Duration::ZERO);
    }

    #[test]
    fn a_clock_that_was_set_back_adds_nothing_to_the_ttl() {
        let (sent, margin) = (Instant::now(), Duration::from_millis(100));
        let end = deadline(sent, &grant(100 * SECOND), 10 * SECOND, margin);
        assert_eq!(end - sent, 10 * SECOND - margin);
    }

    #[test]
    fn the_grant_may_be_older_than_the_request_that_was_answered() {
        let sent = Instant::now() + 100 * SECOND;
        let mut grant = grant(SECOND);
        assert_eq!(granted_at(sent, &grant), sent);
        grant.now = after(grant.acquired_at, 60 * SECOND);
        assert_eq!(granted_at(sent, &grant), sent - 60 * SECOND);
        // After a failover the clock of the new server may be behind.
        grant.now = grant.acquired_at - SECOND;
        assert_eq!(granted_at(sent, &grant), sent);
    }

    #[test]
    fn the_deadline_itself_is_too_late() {
        let start = Instant::now();
        let validity = Validity::until(start + SECOND);
        assert!(validity.is_live(start) && validity.loss(start).is_none());
        assert_eq!(validity.remaining(start), SECOND);
        let loss = validity.loss(start + SECOND);
        assert!(matches!(loss, Some(LossReason::Expired)), "{loss:?}");
        assert_eq!(validity.remaining(start + SECOND), Duration::ZERO);
    }

    #[test]
    fn a_renewal_that_comes_after_the_deadline_does_not_revive_the_lease() {
        let start = Instant::now();
        let mut validity = Validity::until(start + SECOND);
        let late = validity.renewed(start + 9 * SECOND, start + SECOND);
        assert!(matches!(late, Err(LossReason::Expired)), "{late:?}");
        assert!(!validity.is_live(start));
    }

    #[test]
    fn of_two_renewals_that_cross_the_later_deadline_counts() {
        let start = Instant::now();
        let mut validity = Validity::until(start + SECOND);
        validity.renewed(start + 3 * SECOND, start).unwrap();
        validity.renewed(start + 2 * SECOND, start).unwrap();
        assert_eq!(validity.deadline, start + 3 * SECOND);
    }

    #[test]
    fn the_first_reason_stays() {
        let start = Instant::now();
        let mut validity = Validity::until(start + SECOND);
        validity.lose(LossReason::TakenOver, start);
        let reason = validity.lose(LossReason::Closed, start);
        assert!(matches!(reason, LossReason::TakenOver), "{reason:?}");
        assert_eq!(validity.remaining(start), Duration::ZERO);

        let mut expired = Validity::until(start + SECOND);
        let reason = expired.lose(LossReason::TakenOver, start + SECOND);
        assert!(matches!(reason, LossReason::Expired), "{reason:?}");
    }

    #[test]
    fn the_last_error_is_the_reason_unless_a_renewal_came_after_it() {
        let start = Instant::now();
        let mut validity = Validity::until(start + SECOND);
        assert_eq!(validity.risk(SECOND * 3, None), None);
        validity.failed(Error::NoRuntime, start);
        validity.failed(Error::Closed, start);
        assert_eq!(
            validity.risk(SECOND * 3 / 2, None),
            Some(start + SECOND / 2)
        );
        let loss = validity.loss(start + SECOND);
        assert!(
            matches!(&loss, Some(LossReason::Unreachable(error)) if matches!(**error, Error::Closed)),
            "{loss:?}"
        );
        validity.renewed(start + SECOND, start).unwrap();
        assert_eq!(validity.risk(SECOND, None), None);
        let unrenewed = Some(SECOND / 4);
        assert_eq!(
            validity.risk(SECOND, unrenewed),
            Some(start + SECOND * 3 / 4)
        );
        let loss = validity.loss(start + SECOND);
        assert!(matches!(loss, Some(LossReason::Expired)), "{loss:?}");
    }

    #[test]
    fn no_renewal_puts_the_deadline_past_the_end_of_the_maximum_hold() {
        let start = Instant::now();
        let end = start + 5 * SECOND;
        let mut validity = Validity::until(start + 3 * SECOND);
        validity.limit(end, start);
        assert_eq!(validity.deadline, start + 3 * SECOND);
        assert!(!validity.reaches_end());
        validity.renewed(start + 4 * SECOND, start).unwrap();
        assert!(!validity.reaches_end());
        validity.renewed(start + 9 * SECOND, start).unwrap();
        assert_eq!((validity.deadline, validity.end), (end, Some(end)));
        assert!(validity.reaches_end() && validity.is_live(end - SECOND));
        // Neither a renewal that fails now nor one that succeeds too late changes the reason.
        validity.failed(Error::NoRuntime, end - SECOND);
        let loss = validity.loss(end);
        assert!(matches!(loss, Some(LossReason::HeldTooLong)), "{loss:?}");
        let late = validity.renewed(end + SECOND, end);
        assert!(matches!(late, Err(LossReason::HeldTooLong)), "{late:?}");
    }

    #[test]
    fn a_lease_that_ends_before_its_maximum_hold_is_lost_for_its_own_reason() {
        let start = Instant::now();
        let mut validity = Validity::until(start + SECOND);
        validity.limit(start + 2 * SECOND, start);
        let loss = validity.loss(start + SECOND);
        assert!(matches!(loss, Some(LossReason::Expired)), "{loss:?}");
        validity.failed(Error::NoRuntime, start);
        let loss = validity.loss(start + SECOND);
        assert!(matches!(loss, Some(LossReason::Unreachable(_))), "{loss:?}");

        let mut expired = Validity::until(start);
        expired.limit(start - SECOND, start);
        let loss = expired.loss(start);
        assert!(matches!(loss, Some(LossReason::Expired)), "{loss:?}");

        let mut over = Validity::until(start + SECOND);
        over.limit(start, start);
        let loss = over.loss(start);
        assert!(matches!(loss, Some(LossReason::HeldTooLong)), "{loss:?}");
    }

    #[test]
    fn the_end_of_the_maximum_hold_is_a_risk_of_its_own() {
        let (start, ttl) = (Instant::now(), 3 * SECOND);
        let mut validity = Validity::until(start + 3 * SECOND);
        validity.limit(start + 5 * SECOND, start);
        // Without a renewal the lease is lost before the end of the maximum hold.
        assert_eq!(validity.risk(ttl, None), None);
        let unrenewed = Some(SECOND / 2);
        let first = validity.risk(ttl, unrenewed);
        assert_eq!(first, Some(start + SECOND * 5 / 2));
        validity.renewed(start + 6 * SECOND, start).unwrap();
        for unrenewed in [None, unrenewed] {
            let risk = validity.risk(ttl, unrenewed);
            assert_eq!(risk, Some(start + 4 * SECOND));
        }
        assert_eq!(validity.renewal_risk(ttl, None), None);
    }
}
