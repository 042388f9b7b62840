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
    /// Whether an upgrade was ever sent.
    pub(super) has_upgraded: bool,
    /// How many upgrades were sent whose outcome is not known. Each may have given the lease a new fence.
    pub(super) unanswered_upgrades: u32,
    /// `None` until the holder gives up the lease.
    pub(super) end: Option<EndReason>,
    /// Whether the release that belongs to the end has been answered, or given up.
    pub(super) over: bool,
    /// Whether the loss was reported.
    loss_told: bool,
    /// Whether the risk was reported since the last renewal that succeeded.
    risk_told: bool,
}

impl Status {
    pub(super) fn new(validity: Validity, mode: Mode, fence: Fence) -> Self {
        Self {
            validity,
            mode,
            fence,
            has_upgraded: false,
            unanswered_upgrades: 0,
            end: None,
            over: false,
            loss_told: false,
            risk_told: false,
        }
    }

    /// The loss, if it was not reported yet. After the end none is to be reported.
    pub(super) fn take_unreported_loss(&mut self, now: Instant) -> Option<LossReason> {
        if self.loss_told || self.end.is_some() {
            return None;
        }
        let loss = self.validity.loss(now);
        self.loss_told = loss.is_some();
        loss
    }

    /// Records that a renewal succeeded, so that the next risk is reported again.
    pub(super) fn clear_risk(&mut self) {
        self.risk_told = false;
    }

    /// Whether the lease is at risk because a renewal failed, and that was not reported yet.
    pub(super) fn take_unreported_risk(&mut self, ttl: Duration, now: Instant) -> bool {
        let risk = self.validity.risk(ttl, None).is_some_and(|at| at <= now);
        let news = risk && !self.risk_told && self.validity.is_live(now) && self.end.is_none();
        self.risk_told |= news;
        news
    }
}
