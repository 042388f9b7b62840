//! Telemetry of the leases that stay with this process after their last use.

use tracing::{debug, trace};

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
    /// Too many leases stay, and this one was not used for the longest time.
    TooMany,
    /// The lease was evicted by this process.
    Evicted,
    /// The client closes, or its runtime has ended.
    Closed,
}

impl SentBack {
    fn as_str(self) -> &'static str {
        match self {
            Self::WaitedFor => "waited_for",
            Self::NotUsed => "not_used",
            Self::DocumentNeeded => "document_needed",
            Self::TooMany => "too_many",
            Self::Evicted => "evicted",
            Self::Closed => "closed",
        }
    }
}

/// Reports that a lease stays with this process.
pub(crate) fn stays(of: LeaseFields<'_>) {
    let LeaseFields { key, lease, .. } = of;
    debug!(target: TARGET, key = key.as_str(), %lease, "stays");
}

/// Reports that a lease does not stay any more. `at_once` says that no task uses the key.
pub(crate) fn sent_back(of: LeaseFields<'_>, why: SentBack, at_once: bool) {
    let LeaseFields { key, lease, .. } = of;
    debug!(
        target: TARGET, key = key.as_str(), %lease, reason = why.as_str(), at_once, "does not stay any more",
    );
}

/// Reports that the store was asked which of this many keys other processes wait for.
pub(crate) fn looked(keys: usize) {
    trace!(target: TARGET, keys, "looked for processes that wait");
}
