//! The words that events and metrics have in common.

use crate::model::Error;

/// The target of all events and spans. A filter can select them by it: `leasehold=debug`.
pub(super) const TARGET: &str = "leasehold";

/// The outcome of a call that failed with this error, as one of the values of the field `outcome` of events and spans,
/// and of the label `outcome` of metrics.
pub(super) fn outcome_of(error: &Error) -> &'static str {
    match error {
        Error::WaitTimedOut { .. } => "timed_out",
        Error::LimitReached { .. } => "full",
        Error::Done(_) => "done",
        Error::Superseded { .. } => "superseded",
        Error::Closed => "closed",
        Error::Lost { .. } => "lost",
        _ => "error",
    }
}

/// Why a lease that stayed with this process goes back to the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StayEndReason {
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
    /// Its guard was part of a set that was not granted as a whole.
    SetRefused,
    /// The lease was evicted by this process, or released by its owner's name.
    Evicted,
    /// The client closes, or its runtime has ended.
    Closed,
}

impl StayEndReason {
    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::WaitedFor => "waited_for",
            Self::NotUsed => "not_used",
            Self::DocumentNeeded => "document_needed",
            Self::NotTold => "not_told",
            Self::TooMany => "too_many",
            Self::Detached => "detached",
            Self::SetRefused => "set_refused",
            Self::Evicted => "evicted",
            Self::Closed => "closed",
        }
    }
}
