//! The request of the first waiter: when the next one is sent, and what a report changes while one is under way.

use tokio::time::Instant;

use crate::{model::LeaseId, waiters::handoff::HandoffOffer};

/// The request of the first waiter.
#[derive(Debug)]
pub(super) enum FirstRequest {
    /// The next request is sent after a pause, which ends at this instant. The key is not known to be free.
    Paused(Instant),
    /// The next request is sent at once: the key may have become free since the last one. If there is an offer, the
    /// request replaces a lease of this process.
    AtOnce(Option<HandoffOffer>),
    /// A request is under way.
    UnderWay {
        /// Whether the key was reported to be free since the request was sent.
        is_reported: bool,
    },
}

/// The next step of a waiter.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// The waiter sends a request.
    Ask,
    /// The waiter gives up without a request.
    GiveUp,
    /// The waiter waits until it is notified, or until this instant.
    Wait(Option<Instant>),
}

impl FirstRequest {
    /// The next step of the first waiter.
    pub(super) fn step(&self, now: Instant) -> Step {
        match *self {
            Self::UnderWay { .. } => Step::Wait(None),
            Self::AtOnce(_) => Step::Ask,
            Self::Paused(until) if now >= until => Step::Ask,
            Self::Paused(until) => Step::Wait(Some(until)),
        }
    }

    pub(super) fn is_under_way(&self) -> bool {
        matches!(self, Self::UnderWay { .. })
    }

    /// Whether the next request is sent at once, or directly after the answer to the one that is under way.
    pub(super) fn next_is_at_once(&self) -> bool {
        matches!(self, Self::AtOnce(_) | Self::UnderWay { is_reported: true })
    }

    /// Records that the request is sent. Returns the offer that it takes.
    pub(super) fn send(&mut self) -> Option<HandoffOffer> {
        match std::mem::replace(self, Self::UnderWay { is_reported: false }) {
            Self::AtOnce(offer) => offer,
            Self::Paused(_) | Self::UnderWay { .. } => None,
        }
    }

    /// Records that the answer to the request that is under way will not be reported.
    pub(super) fn give_up_answer(&mut self, now: Instant) {
        if self.is_under_way() {
            self.pause_until(now);
        }
    }

    /// Records that the key may be free. The next request is sent at once, or after the answer to the one that is under
    /// way.
    pub(super) fn report(&mut self) {
        match self {
            Self::Paused(_) => *self = Self::AtOnce(None),
            Self::AtOnce(_) => {}
            Self::UnderWay { is_reported } => *is_reported = true,
        }
    }

    /// Plans the next request after an answer: at once if the key was reported to be free meanwhile, or else at this
    /// instant.
    pub(super) fn pause_until(&mut self, at: Instant) {
        match self {
            Self::UnderWay { is_reported: true } => *self = Self::AtOnce(None),
            // If no request is under way, the answer belongs to a request before the last one.
            Self::UnderWay { is_reported: false } | Self::Paused(_) => *self = Self::Paused(at),
            Self::AtOnce(_) => {}
        }
    }

    /// Takes back the offer of this lease. Returns whether the offer was still there.
    pub(super) fn take_back(&mut self, lease: LeaseId) -> bool {
        match self {
            Self::AtOnce(offer) => offer.take_if(|offer| offer.from() == lease).is_some(),
            Self::Paused(_) | Self::UnderWay { .. } => false,
        }
    }
}
