//! The outcome of the last request for a line.

use crate::model::{Error, Held, Mode};

/// The outcome of the last request.
#[derive(Debug)]
pub(super) enum LastAnswer {
    /// There was no answer yet, or the key was granted to this process since the last one.
    Unknown,
    Held(Held),
    /// The last `times` requests have failed, the last one with this error.
    Failed {
        error: Error,
        times: u32,
    },
}

impl LastAnswer {
    /// Records that a request has failed. Returns how many have failed in a row.
    pub(super) fn fail(&mut self, error: Error) -> u32 {
        let before = match *self {
            Self::Failed { times, .. } => times,
            Self::Unknown | Self::Held(_) => 0,
        };
        let times = before.saturating_add(1);
        *self = Self::Failed { error, times };
        times
    }

    /// How many processes were ahead of the last request.
    pub(super) fn ahead(&self) -> usize {
        match self {
            Self::Held(held) => held.ahead(),
            Self::Unknown | Self::Failed { .. } => 0,
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
            Self::Unknown => None,
            Self::Held(held) => Some(Ok(held.clone())),
            Self::Failed { error, .. } => Some(Err(error.clone())),
        }
    }
}
