//! `Status`: the part of a lease's state that changes, with what was reported to telemetry. Pure: times come in as
//! arguments.

use std::time::Duration;

use tokio::time::Instant;

use super::{conversions::Conversions, validity::Validity};
use crate::{
    messages::DoneTick,
    model::{Fence, LossReason, Mode},
};

/// The call that returns this has ended the lease, and no other call has. It has the loss of the lease, if that was not
/// reported before.
#[must_use = "it is to be reported"]
pub(crate) struct Ended(pub(super) Option<LossReason>);

/// Another call had ended the lease before, so this one has changed nothing: the lease is not what this call would have
/// made of it. A close may release a lease whose guard is given away at the same moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EndedBefore;

/// The part of a lease's state that changes.
#[derive(Clone, Debug)]
pub(super) struct Status {
    pub(super) validity: Validity,
    /// The mode and the fence change with a conversion.
    pub(super) mode: Mode,
    pub(super) fence: Fence,
    pub(super) conversions: Conversions,
    /// Whether the holder has given up the lease.
    pub(super) has_ended: bool,
    /// Whether the lease is renewed in the background.
    pub(super) is_kept: bool,
    pub(super) release: ReleaseTerms,
    /// How long the machine had been suspended in all before the request was sent that granted the lease or renewed it
    /// last. The greatest value for a guard, whose lease counts suspensions.
    pub(super) suspended: Duration,
    pub(super) reported: Reported,
}

/// What the release of a lease depends on.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ReleaseTerms {
    /// The minimum hold: how long after the grant the key stays held, even if the lease is released. It is set when the
    /// caller gets the lease, so that the release of a lease that no caller got frees the key at once.
    pub(crate) min_hold: Option<Duration>,
    /// The tick that was done under the lease.
    pub(crate) done: Option<DoneTick>,
    /// Whether other processes wait for the release, as followers wait for that of a leader. A majority then confirms
    /// it: a change stream reports a change only when a majority has it, and if a failover undid the release, the key
    /// would be held until the ttl is over.
    pub(crate) is_awaited: bool,
    /// Whether another acquire request for the lease may still be on its way to the server. The release is then repeated
    /// until no such request can arrive any more.
    pub(crate) maybe_in_flight: bool,
}

/// What was reported to telemetry.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Reported {
    /// A risk, since the last renewal that succeeded.
    pub(super) risk: bool,
    /// The loss. A lost lease stays lost, so no later renewal resets this.
    loss: bool,
}

impl Status {
    pub(super) fn new(until: Instant, mode: Mode, fence: Fence, suspended: Duration) -> Self {
        Self {
            validity: Validity::until(until),
            mode,
            fence,
            conversions: Conversions::default(),
            has_ended: false,
            is_kept: false,
            release: ReleaseTerms::default(),
            suspended,
            reported: Reported::default(),
        }
    }

    /// This instant on a clock that has gone on during the suspensions since the last renewal. `total` is how long the
    /// machine was suspended in all.
    fn counted(&self, now: Instant, total: Duration) -> Instant {
        now + total.saturating_sub(self.suspended)
    }

    /// Why the lease is lost at this instant. `None` while it is live.
    pub(super) fn loss(&self, now: Instant, total: Duration) -> Option<LossReason> {
        self.validity.loss(self.counted(now, total))
    }

    /// How long the holder may still count on the lease.
    pub(super) fn remaining(&self, now: Instant, total: Duration) -> Duration {
        self.validity.remaining(self.counted(now, total))
    }

    /// The instant at which the lease is lost, if the machine is not suspended any more until then.
    pub(super) fn deadline(&self, total: Duration) -> Instant {
        let (deadline, suspended) = (self.validity.deadline, total.saturating_sub(self.suspended));
        deadline.checked_sub(suspended).unwrap_or(deadline)
    }

    /// Ends the lease if it was over at this instant, with the suspensions: a renewal that the server has carried out
    /// all the same does not bring it back.
    pub(super) fn end_if_over(&mut self, now: Instant, total: Duration) {
        if !self.validity.is_live(self.counted(now, total)) {
            self.validity.shorten(now);
        }
    }

    /// Whether a renewal with this fence renewed this lease. Another fence belongs to another grant: after a takeover,
    /// a late acquire request was granted the same lease id again. But while an upgrade is unanswered, any fence may be
    /// the one of this lease. And after an upgrade, the answer to a renewal that was carried out before the upgrade has
    /// a smaller fence.
    pub(super) fn is_own_renewal(&self, fence: Fence) -> bool {
        if self.conversions.upgraded {
            self.conversions.upgrades > 0 || fence <= self.fence
        } else {
            fence == self.fence
        }
    }

    /// Returns the loss of the lease if it was not reported yet, and marks it as reported. After the end of the lease no
    /// loss is reported.
    pub(super) fn take_unreported_loss(&mut self, loss: Option<LossReason>) -> Option<LossReason> {
        let is_new = !self.reported.loss && !self.has_ended;
        let loss = loss.filter(|_| is_new)?;
        self.reported.loss = true;
        Some(loss)
    }

    /// Returns whether the lease is at risk because a renewal failed, if that was not reported yet, and marks it as
    /// reported.
    pub(super) fn take_unreported_risk(&mut self, ttl: Duration, now: Instant) -> bool {
        let risk = self.validity.renewal_risk(ttl, None);
        let is_new = risk.is_some_and(|at| at <= now)
            && !self.reported.risk
            && !self.reported.loss
            && self.validity.is_live(now)
            && !self.has_ended;
        self.reported.risk |= is_new;
        is_new
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Conversion;

    #[test]
    fn which_fences_are_those_of_the_lease_depends_on_its_upgrades() {
        use Conversion::{Downgrade, Upgrade};

        let [less, own, more] = [6, 7, 8].map(Fence::new);
        let until = Instant::now() + Duration::from_secs(1);
        let mut status = Status::new(until, Mode::Shared, own, Duration::ZERO);
        let is_own = |status: &Status| [less, own, more].map(|fence| status.is_own_renewal(fence));
        assert_eq!(is_own(&status), [false, true, false]);
        status.conversions.sent(Downgrade);
        assert_eq!(is_own(&status), [false, true, false]);
        status.conversions.sent(Upgrade);
        status.conversions.sent(Upgrade);
        assert_eq!(is_own(&status), [true; 3]);
        status.conversions.answered(Upgrade);
        assert_eq!(is_own(&status), [true; 3], "one is unanswered");
        status.conversions.fence_changed();
        assert_eq!(
            is_own(&status),
            [true, true, false],
            "it names an earlier fence"
        );
    }
}
