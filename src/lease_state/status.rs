//! The status of a lease in this process, and which losses were told: pure, times come in as arguments.

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
    /// These two change with a conversion.
    pub(super) mode: Mode,
    pub(super) fence: Fence,
    /// Whether an upgrade was ever sent.
    pub(super) has_upgraded: bool,
    /// How many upgrades were sent of which it is not known what became of them: each may have given it a new fence.
    pub(super) unanswered_upgrades: u32,
    pub(super) end: Option<EndReason>,
    /// The release that belongs to the end has been answered, or given up.
    pub(super) over: bool,
    /// Whether its loss was told to the observers.
    loss_told: bool,
    /// Whether they were told that it is at risk.
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

    /// The loss, for the first look that sees it. After the end there is none.
    pub(super) fn take_unreported_loss(&mut self, now: Instant) -> Option<LossReason> {
        if self.loss_told || self.end.is_some() {
            return None;
        }
        let loss = self.validity.loss(now);
        self.loss_told = loss.is_some();
        loss
    }

    /// All is well again.
    pub(super) fn clear_risk(&mut self) {
        self.risk_told = false;
    }

    /// Whether it is at risk, for the first look that sees it since all went well.
    pub(super) fn take_unreported_risk(&mut self, ttl: Duration, now: Instant) -> bool {
        let risk = self.validity.risk(ttl, None).is_some_and(|at| at <= now);
        let news = risk && !self.risk_told && self.validity.is_live(now) && self.end.is_none();
        self.risk_told |= news;
        news
    }
}
