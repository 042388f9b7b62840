//! The status of a lease in this process, and whether its loss and its risk were reported to telemetry: without I/O,
//! and with the time as an argument.

use std::time::Duration;

use tokio::time::Instant;

use super::validity::Validity;
use crate::model::{Fence, LossReason, Mode};

/// How a lease ended in this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EndReason {
    /// The lease is released.
    Released,
    /// The lease stays until its ttl is over.
    Detached,
}

/// The part of a lease's state that changes.
#[derive(Clone, Debug)]
pub(super) struct Status {
    pub(super) validity: Validity,
    /// The mode and the fence change with a conversion.
    pub(super) mode: Mode,
    pub(super) fence: Fence,
    pub(super) upgrades: Upgrades,
    pub(super) phase: Phase,
    reported: Reported,
}

/// From the grant to the end of the lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Its holder has not given up the lease.
    Held,
    /// The lease was given up, and its release has not been answered.
    Releasing,
    /// The release has been answered, or given up.
    Released,
    /// The lease stays until its ttl is over.
    Detached,
}

/// Which upgrades of the lease were sent. Each may have given it a new fence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Upgrades {
    None,
    /// Some, whose outcomes are known.
    Answered,
    /// Some, and of so many the outcome is not known. The number is not zero.
    Unanswered(u32),
}

/// What telemetry was told of the lease since the last renewal that succeeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reported {
    Nothing,
    Risk,
    /// The loss, which no renewal undoes.
    Loss,
}

impl Phase {
    /// How the lease ended; `None` if its holder has not given it up.
    pub(super) fn end(self) -> Option<EndReason> {
        match self {
            Self::Held => None,
            Self::Releasing | Self::Released => Some(EndReason::Released),
            Self::Detached => Some(EndReason::Detached),
        }
    }
}

impl Upgrades {
    /// Those that were sent, with one more.
    pub(super) fn with_one_sent(self) -> Self {
        match self {
            Self::None | Self::Answered => Self::Unanswered(1),
            Self::Unanswered(before) => Self::Unanswered(before.saturating_add(1)),
        }
    }

    /// The same once the outcome of one more is known.
    pub(super) fn with_one_answered(self) -> Self {
        match self {
            Self::Unanswered(before) if before > 1 => Self::Unanswered(before - 1),
            Self::Unanswered(_) | Self::Answered => Self::Answered,
            Self::None => Self::None,
        }
    }
}

impl Status {
    pub(super) fn new(validity: Validity, mode: Mode, fence: Fence) -> Self {
        Self {
            validity,
            mode,
            fence,
            upgrades: Upgrades::None,
            phase: Phase::Held,
            reported: Reported::Nothing,
        }
    }

    /// Whether a renewal with this fence was of this lease. Another fence is that of another grant: after a takeover, a
    /// late acquire was granted the same lease id anew. But while an upgrade is unanswered any fence may be its own, and
    /// after an upgrade a smaller fence is in the answer to a renewal that was carried out before it.
    pub(super) fn is_own_renewal(&self, fence: Fence) -> bool {
        match self.upgrades {
            Upgrades::None => fence == self.fence,
            Upgrades::Answered => fence <= self.fence,
            Upgrades::Unanswered(_) => true,
        }
    }

    /// Takes out the loss, if it was not reported yet. After the end none is to be reported.
    pub(super) fn take_unreported_loss(&mut self, now: Instant) -> Option<LossReason> {
        if self.reported == Reported::Loss || self.phase != Phase::Held {
            return None;
        }
        let loss = self.validity.loss(now)?;
        self.reported = Reported::Loss;
        Some(loss)
    }

    /// Records that a renewal succeeded, so that the next risk is reported again.
    pub(super) fn clear_risk(&mut self) {
        if self.reported == Reported::Risk {
            self.reported = Reported::Nothing;
        }
    }

    /// Takes out whether the lease is at risk because a renewal failed, if that was not reported yet.
    pub(super) fn take_unreported_risk(&mut self, ttl: Duration, now: Instant) -> bool {
        let risk = self
            .validity
            .renewal_risk(ttl, None)
            .is_some_and(|at| at <= now);
        let is_new = risk
            && self.reported == Reported::Nothing
            && self.validity.is_live(now)
            && self.phase == Phase::Held;
        if is_new {
            self.reported = Reported::Risk;
        }
        is_new
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn which_fences_are_those_of_the_lease_depends_on_its_upgrades() {
        let [less, own, more] = [6, 7, 8].map(Fence::new);
        let until = Instant::now() + Duration::from_secs(1);
        let mut status = Status::new(Validity::until(until), Mode::Shared, own);
        let is_own = |status: &Status| [less, own, more].map(|fence| status.is_own_renewal(fence));
        assert_eq!(is_own(&status), [false, true, false]);
        status.upgrades = status.upgrades.with_one_sent().with_one_sent();
        assert_eq!(is_own(&status), [true; 3]);
        status.upgrades = status.upgrades.with_one_answered();
        assert_eq!(is_own(&status), [true; 3], "one is unanswered");
        status.upgrades = status.upgrades.with_one_answered();
        assert_eq!(is_own(&status), [true, true, false]);
    }
}
