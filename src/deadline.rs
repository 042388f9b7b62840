//! How long a holder may count on its lease, on its own clock.
//!
//! The server decides when a lease ends, the holder has to stop before that. It counts from the
//! instant before it sent the request, which cannot be later than the instant at which the server
//! carried it out, and gives up a margin for clocks that jump when another server takes over.

use std::time::Duration;

use tokio::time::Instant;

use crate::{LossReason, store::Grant};

/// The instant from which a lease must not be counted on any more.
///
/// `sent` is the instant before the request was sent. What counts is how long the lease had to
/// live when the server answered, not the ttl: the answer to a repeated request may be of a lease
/// that was granted to the first one, a while ago.
pub(crate) fn deadline(sent: Instant, grant: &Grant, clock_margin: Duration) -> Instant {
    let usable = grant.expires_in().saturating_sub(clock_margin);
    // A ttl is bounded, so only an answer that makes no sense could overflow: no lease, then.
    sent.checked_add(usable).unwrap_or(sent)
}

/// What a holder knows of its lease. Once it is lost it stays lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Validity {
    deadline: Instant,
    lost: Option<LossReason>,
}

impl Validity {
    pub(crate) fn until(deadline: Instant) -> Self {
        Self {
            deadline,
            lost: None,
        }
    }

    pub(crate) fn deadline(&self) -> Instant {
        self.deadline
    }

    /// Why the lease must not be counted on at this instant; `None` while it may.
    pub(crate) fn loss(&self, now: Instant) -> Option<LossReason> {
        self.lost
            .or_else(|| (now >= self.deadline).then_some(LossReason::Expired))
    }

    /// How long the lease may still be counted on.
    pub(crate) fn remaining(&self, now: Instant) -> Duration {
        match self.loss(now) {
            Some(_) => Duration::ZERO,
            None => self.deadline.saturating_duration_since(now),
        }
    }

    /// Takes in a renewal. One that is answered after the deadline comes too late: the holder may
    /// already have acted on the loss. Of two renewals that cross, the later deadline counts.
    pub(crate) fn renewed(&mut self, deadline: Instant, now: Instant) -> Result<(), LossReason> {
        if let Some(reason) = self.loss(now) {
            self.lost = Some(reason);
            return Err(reason);
        }
        self.deadline = self.deadline.max(deadline);
        Ok(())
    }

    pub(crate) fn lose(&mut self, reason: LossReason) {
        self.lost.get_or_insert(reason);
    }
}

#[cfg(test)]
mod tests {
    use chrono::{DateTime, Utc};

    use super::*;
    use crate::{Fence, record::after};

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
        assert_eq!(validity.loss(start), None);
        assert_eq!(validity.remaining(start), SECOND);
        assert_eq!(validity.loss(start + SECOND), Some(LossReason::Expired));
        assert_eq!(validity.remaining(start + SECOND), Duration::ZERO);
    }

    #[test]
    fn a_renewal_that_comes_after_the_deadline_does_not_revive_the_lease() {
        let start = Instant::now();
        let mut validity = Validity::until(start + SECOND);
        let late = validity.renewed(start + 9 * SECOND, start + SECOND);
        assert_eq!(late, Err(LossReason::Expired));
        assert_eq!(validity.loss(start), Some(LossReason::Expired));
    }

    #[test]
    fn of_two_renewals_that_cross_the_later_deadline_counts() {
        let start = Instant::now();
        let mut validity = Validity::until(start + SECOND);
        assert_eq!(validity.renewed(start + 3 * SECOND, start), Ok(()));
        assert_eq!(validity.renewed(start + 2 * SECOND, start), Ok(()));
        assert_eq!(validity.deadline(), start + 3 * SECOND);
    }

    #[test]
    fn the_first_reason_stays() {
        let start = Instant::now();
        let mut validity = Validity::until(start + SECOND);
        validity.lose(LossReason::TakenOver);
        validity.lose(LossReason::Expired);
        assert_eq!(validity.loss(start), Some(LossReason::TakenOver));
        assert_eq!(validity.remaining(start), Duration::ZERO);
    }
}
