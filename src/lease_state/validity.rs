//! How long a holder may count on its lease, on its own clock.
//!
//! The server decides when a lease ends, and the holder has to stop before that. So the holder counts from the
//! instant before it sent the request, which cannot be later than the instant at which the server carried it out. It
//! stops earlier by a clock margin, because the clock of another server may be ahead when that takes over.

use std::time::Duration;

use tokio::time::Instant;

use crate::{
    messages::Grant,
    model::{Error, LossReason},
};

/// The instant from which a lease must not be counted on any more.
///
/// `sent` is the instant before the request was sent. What counts is how long the lease had to
/// live when the server answered, not the ttl: the answer to a repeated request may be of a lease
/// that was granted to the first one, a while ago.
pub(crate) fn deadline(sent: Instant, grant: &Grant, clock_margin: Duration) -> Instant {
    let usable = grant.expires_in().saturating_sub(clock_margin);
    // A ttl is bounded, so only a nonsensical answer can overflow. Then the lease has expired at once.
    sent.checked_add(usable).unwrap_or(sent)
}

/// Until when a lease may be counted on. Once it is lost it stays lost, for the first reason.
#[derive(Clone, Debug)]
pub(crate) struct Validity {
    deadline: Instant,
    lost: Option<LossReason>,
    /// The last error of a renewal, if none succeeded since; or why a renewal that is due was not sent.
    trouble: Option<Error>,
}

impl Validity {
    pub(crate) fn until(deadline: Instant) -> Self {
        Self {
            deadline,
            lost: None,
            trouble: None,
        }
    }

    pub(crate) fn deadline(&self) -> Instant {
        self.deadline
    }

    /// Whether the lease may be counted on at this instant.
    pub(crate) fn is_live(&self, now: Instant) -> bool {
        self.lost.is_none() && now < self.deadline
    }

    /// Why the lease must not be counted on at this instant; `None` while it may.
    pub(crate) fn loss(&self, now: Instant) -> Option<LossReason> {
        if self.is_live(now) {
            return None;
        }
        Some(match (&self.lost, &self.trouble) {
            (Some(reason), _) => reason.clone(),
            (None, Some(error)) => LossReason::Unreachable(Box::new(error.clone())),
            (None, None) => LossReason::Expired,
        })
    }

    /// How long the lease may still be counted on.
    pub(crate) fn remaining(&self, now: Instant) -> Duration {
        if !self.is_live(now) {
            return Duration::ZERO;
        }
        self.deadline.saturating_duration_since(now)
    }

    /// From when on the lease is at risk: when a third of the ttl is left, if a renewal has failed; otherwise when
    /// `unrenewed` is left. `None` if neither applies.
    pub(crate) fn risk(&self, ttl: Duration, unrenewed: Option<Duration>) -> Option<Instant> {
        let left = match self.trouble {
            Some(_) => ttl / 3,
            None => unrenewed?,
        };
        // If the clock cannot express so early an instant, the lease is at risk only from its deadline on.
        Some(self.deadline.checked_sub(left).unwrap_or(self.deadline))
    }

    /// Takes in a renewal. An answer after the deadline comes too late, because the holder may already have
    /// acted on the loss. Of two renewals that cross, the later deadline counts.
    pub(crate) fn renewed(&mut self, deadline: Instant, now: Instant) -> Result<(), LossReason> {
        if let Some(reason) = self.loss(now) {
            return Err(self.lost.insert(reason).clone());
        }
        self.deadline = self.deadline.max(deadline);
        self.trouble = None;
        Ok(())
    }

    /// Whether no renewal failed since the last one that succeeded.
    pub(crate) fn is_well(&self) -> bool {
        self.trouble.is_none()
    }

    /// Records that a renewal failed. After a loss the reason stays what it was.
    pub(crate) fn failed(&mut self, error: Error, now: Instant) {
        if self.is_live(now) {
            self.trouble = Some(error);
        }
    }

    /// Records that the lease is lost, and gives back the reason that counts.
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
        let end = deadline(sent, &grant(SECOND), margin);
        assert_eq!(end - sent, Duration::from_millis(900));
        assert_eq!(deadline(sent, &grant(margin / 2), margin), sent);
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
        assert_eq!(validity.deadline(), start + 3 * SECOND);
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
}
