//! The outcome of the last request of a queue.

use crate::model::{Error, Held, Mode};

/// The outcome of the last request.
#[derive(Debug)]
pub(super) enum LastAnswer {
    /// There was no answer yet, or the key was granted from memory since the last one.
    Unknown,
    Held(Held),
    /// The key was granted to a waiter of this process. Other requests are refused with this.
    Granted(Held),
    /// The last `times` requests have failed, the last one with this error. If `is_final`, no request was answered for
    /// the whole call timeout, and a waiter has given up.
    Failed {
        error: Error,
        times: u32,
        is_final: bool,
    },
}

impl LastAnswer {
    /// Records that a request has failed. Returns how many have failed in a row.
    pub(super) fn fail(&mut self, error: Error) -> u32 {
        let (before, is_final) = match *self {
            Self::Failed {
                times, is_final, ..
            } => (times, is_final),
            Self::Unknown | Self::Held(_) | Self::Granted(_) => (0, false),
        };
        let times = before.saturating_add(1);
        *self = Self::Failed {
            error,
            times,
            is_final,
        };
        times
    }

    pub(super) fn is_final(&self) -> bool {
        matches!(self, Self::Failed { is_final: true, .. })
    }

    /// How many processes were ahead of the last request.
    pub(super) fn ahead(&self) -> usize {
        match self {
            Self::Held(held) => held.ahead(),
            Self::Unknown | Self::Granted(_) | Self::Failed { .. } => 0,
        }
    }

    /// How many leases of permits this many releases after a refusal make room for at most, as far as the refusal tells.
    /// There may be more room after an eviction, and after the end of a lease that came later. A process that this
    /// does not count asks after its pause.
    pub(super) fn room_after(&self, releases: usize) -> usize {
        let Self::Held(held) = self else {
            return usize::MAX;
        };
        let are_permits = held
            .holders()
            .iter()
            .all(|holder| holder.mode == Mode::Permits);
        let most = held.holders().iter().map(|holder| holder.permits).max();
        match most.map(usize::try_from) {
            Some(Ok(most)) if are_permits => most.saturating_mul(releases),
            _ => usize::MAX,
        }
    }

    /// Whether it was a refusal because of leases of this mode only.
    pub(super) fn is_refusal_by(&self, mode: Mode) -> bool {
        let Self::Held(held) = self else {
            return false;
        };
        let mut holders = held.holders().iter();
        !held.holders().is_empty() && holders.all(|holder| holder.mode == mode)
    }

    /// The last refusal or error; `None` if the key was granted since.
    pub(super) fn outcome(&self) -> Option<Result<Held, Error>> {
        match self {
            Self::Unknown | Self::Granted(_) => None,
            Self::Held(held) => Some(Ok(held.clone())),
            Self::Failed { error, .. } => Some(Err(error.clone())),
        }
    }

    /// What other requests are refused with after a grant to a waiter of this process, if that was the last answer.
    pub(super) fn grant(&self) -> Option<Held> {
        match self {
            Self::Granted(held) => Some(held.clone()),
            Self::Unknown | Self::Held(_) | Self::Failed { .. } => None,
        }
    }
}
