//! The request of the first waiter: when the next one is sent, and what a report changes while one is under way.

use tokio::time::Instant;

use crate::{model::LeaseId, waiters::handoff::HandoffOffer};

/// The request of the first waiter.
#[derive(Debug)]
pub(super) enum FirstRequest {
    /// No request is under way. This is when the next one is sent. If there is an offer, the request replaces a lease
    /// of this process.
    Next(Due, Option<HandoffOffer>),
    /// A request is under way. A report that came since it was sent says when the next one is sent.
    UnderWay(Option<Due>),
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

/// When the next request is sent.
#[derive(Clone, Copy, Debug)]
pub(super) enum Due {
    /// After a pause, which ends at this instant. The key is not known to be free.
    Paused(Instant),
    /// At once: the key may have become free since the last request.
    AtOnce,
}

impl FirstRequest {
    /// The next step of the first waiter.
    pub(super) fn step(&self, now: Instant) -> Step {
        match *self {
            Self::UnderWay(_) => Step::Wait(None),
            Self::Next(Due::AtOnce, _) => Step::Ask,
            Self::Next(Due::Paused(at), _) if now >= at => Step::Ask,
            Self::Next(Due::Paused(at), _) => Step::Wait(Some(at)),
        }
    }

    pub(super) fn is_under_way(&self) -> bool {
        matches!(self, Self::UnderWay(_))
    }

    /// Whether a report says that the key may have become free since the last request.
    pub(super) fn has_news(&self) -> bool {
        matches!(self, Self::Next(Due::AtOnce, _) | Self::UnderWay(Some(_)))
    }

    /// Records that the request is sent. Returns the offer that it takes.
    pub(super) fn send(&mut self) -> Option<HandoffOffer> {
        match std::mem::replace(self, Self::UnderWay(None)) {
            Self::Next(_, offer) => offer,
            Self::UnderWay(_) => None,
        }
    }

    /// Records that the answer to the request that is under way will not be reported.
    pub(super) fn give_up_answer(&mut self, now: Instant) {
        if let Self::UnderWay(news) = self {
            *self = Self::Next(news.unwrap_or(Due::Paused(now)), None);
        }
    }

    /// Records that the key may be free. The next request is sent at once, or after the answer to the one that is under
    /// way.
    pub(super) fn report(&mut self) {
        match self {
            Self::Next(next, _) => *next = Due::AtOnce,
            Self::UnderWay(news) => *news = Some(Due::AtOnce),
        }
    }

    /// Plans the next request after an answer: at once if a report came meanwhile, or else at this instant.
    pub(super) fn pause_until(&mut self, at: Instant) {
        match self {
            Self::UnderWay(news) => *self = Self::Next(news.unwrap_or(Due::Paused(at)), None),
            // The answer belongs to a request before the last one.
            Self::Next(due @ Due::Paused(_), _) => *due = Due::Paused(at),
            Self::Next(Due::AtOnce, _) => {}
        }
    }

    /// Takes back the offer of this lease. Returns whether the offer was still there.
    pub(super) fn take_back(&mut self, lease: LeaseId) -> bool {
        match self {
            Self::Next(_, offer) => offer.take_if(|offer| offer.from() == lease).is_some(),
            Self::UnderWay(_) => false,
        }
    }
}
