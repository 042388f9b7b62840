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

    /// The refusal, if it was one.
    pub(super) fn held(&self) -> Option<&Held> {
        match self {
            Self::Held(held) => Some(held),
            Self::Unknown | Self::Failed { .. } => None,
        }
    }

    /// How many processes were ahead of the last request.
    pub(super) fn ahead(&self) -> usize {
        self.held().map_or(0, Held::ahead)
    }

    /// How many leases of permits this many releases after a refusal make room for at most, as far as the refusal tells.
    /// There may be more room after an eviction, and after the end of a lease that came later. A process that this
    /// does not count asks after its pause.
    pub(super) fn room_after(&self, releases: usize) -> usize {
        let most = |held: &Held| held.holders().iter().map(|holder| holder.permits).max();
        let most = self.held().and_then(most).map(usize::try_from);
        match most {
            Some(Ok(most)) if self.is_refusal_by(Mode::Permits) => most.saturating_mul(releases),
            _ => usize::MAX,
        }
    }

    /// Whether it was a refusal because of leases of this mode only.
    pub(super) fn is_refusal_by(&self, mode: Mode) -> bool {
        let holders = self.held().map_or(&[][..], Held::holders);
        !holders.is_empty() && holders.iter().all(|holder| holder.mode == mode)
    }
}
