//! Telemetry of the leases that stay with this process after their last use.

use tracing::{debug, trace};

#[cfg(feature = "metrics")]
use super::metrics;
use super::{lease::LeaseFields, words::TARGET};

/// Why a lease that stayed with this process goes back to the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SentBack {
    /// Another process waits for the key.
    WaitedFor,
    /// No task has used the key for long enough, or the lease is lost.
    NotUsed,
    /// The next request needs the document, a fence that the lease does not have, or more time than it has left.
    DocumentNeeded,
    /// The store does not say whether other processes wait.
    NotTold,
    /// Too many leases stay, and this one was not used for the longest time.
    TooMany,
    /// Its guard was detached, or became a ticket.
    Detached,
    /// The lease was evicted by this process.
    Evicted,
    /// The client closes, or its runtime has ended.
    Closed,
}

impl SentBack {
    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::WaitedFor => "waited_for",
            Self::NotUsed => "not_used",
            Self::DocumentNeeded => "document_needed",
            Self::NotTold => "not_told",
            Self::TooMany => "too_many",
            Self::Detached => "detached",
            Self::Evicted => "evicted",
            Self::Closed => "closed",
        }
    }
}

/// Reports that a lease stays with this process.
pub(crate) fn stays(of: LeaseFields<'_>) {
    let LeaseFields { key, lease, .. } = of;
    debug!(target: TARGET, key = key.as_str(), %lease, "a lease stays here");
    #[cfg(feature = "metrics")]
    metrics::stay_begun();
}

/// Reports that a lease does not stay any more. `at_once` says that no task uses the key.
pub(crate) fn stay_ended(of: LeaseFields<'_>, why: SentBack, at_once: bool) {
    let LeaseFields { key, lease, .. } = of;
    debug!(
        target: TARGET, key = key.as_str(), %lease, reason = why.as_str(), at_once, "a lease goes back",
    );
    #[cfg(feature = "metrics")]
    metrics::stay_ended(why);
}

/// Reports a grant from memory.
pub(crate) fn granted_from_memory(of: LeaseFields<'_>) {
    let LeaseFields {
        key, lease, fence, ..
    } = of;
    trace!(target: TARGET, key = key.as_str(), %lease, fence = fence.get(), "granted from memory");
    #[cfg(feature = "metrics")]
    metrics::granted_from_memory();
}
