//! The kind of an error, and whether a retry can help.

use std::fmt;

use super::error::Error;

/// The kind of an [`Error`], for counting errors and for decisions.
///
/// New variants of [`Error`] may be added. Each of them has one of these kinds, or a kind that is added with it.
///
/// ```
/// use leasehold::{ErrorKind, Key};
///
/// let error = Key::new("").unwrap_err();
/// assert_eq!(error.kind(), ErrorKind::InvalidInput);
/// assert_eq!(error.kind().as_str(), "invalid_input");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// An argument is invalid or out of bounds. Nothing was sent.
    InvalidInput,
    /// The store cannot be reached, or has too much to do. Nothing was changed, and a retry can help.
    Unavailable,
    /// No answer came. The store may or may not have carried out the request. A retry can help.
    NoAnswer,
    /// The lease was granted, and expired before its caller took it. It is released. A retry can help.
    NotTaken,
    /// Others hold the key, and still held it when the wait was over. A retry can help.
    Held,
    /// The limiter grants nothing within the time that was allowed for waiting. A retry can help.
    LimitReached,
    /// The tick of a job is done.
    Done,
    /// A later tick of the job is done.
    Superseded,
    /// The lease is over, or the resource has seen a newer one.
    Lost,
    /// The handle was closed.
    Closed,
    /// The store, its credentials, or the runtime is not as it has to be. An operator has to fix that.
    Misconfigured,
    /// The document of the key was not written by this crate, or by a version that this one does not know. It was left
    /// unchanged.
    ForeignDocument,
    /// A transaction of the application was aborted, and can be run again.
    TransactionAborted,
    /// The store failed in another way, which a retry cannot fix.
    Other,
}

impl ErrorKind {
    /// The kind as one word, for example for the label of a metric.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::InvalidInput => "invalid_input",
            Self::Unavailable => "unavailable",
            Self::NoAnswer => "no_answer",
            Self::NotTaken => "not_taken",
            Self::Held => "held",
            Self::LimitReached => "limit_reached",
            Self::Done => "done",
            Self::Superseded => "superseded",
            Self::Lost => "lost",
            Self::Closed => "closed",
            Self::Misconfigured => "misconfigured",
            Self::ForeignDocument => "foreign_document",
            Self::TransactionAborted => "transaction_aborted",
            Self::Other => "other",
        }
    }
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Error {
    /// Whether the same call can succeed later, although nobody changes anything for it.
    pub fn is_retryable(&self) -> bool {
        matches!(
            self.kind(),
            ErrorKind::Unavailable
                | ErrorKind::NoAnswer
                | ErrorKind::NotTaken
                | ErrorKind::Held
                | ErrorKind::LimitReached
                | ErrorKind::TransactionAborted
        )
    }

    /// Whether the store may have carried out the request although the call failed.
    pub fn is_ambiguous(&self) -> bool {
        self.kind() == ErrorKind::NoAnswer
    }

    /// Whether the request may have been carried out although the error says otherwise. A driver may have sent it to
    /// several servers in turn: this is the answer of the last one, and an earlier one may have carried it out.
    pub(crate) fn leaves_doubt(&self) -> bool {
        self.is_ambiguous() || matches!(self, Self::Store { .. } | Self::Overloaded { .. })
    }

    /// The kind of the error.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::InvalidKey { .. }
            | Self::InvalidOwner { .. }
            | Self::InvalidPermits { .. }
            | Self::InvalidConversion
            | Self::InvalidNote { .. }
            | Self::InvalidMinHold { .. }
            | Self::InvalidMaxHold { .. }
            | Self::InvalidLimit
            | Self::InvalidTick { .. }
            | Self::OtherTickKind { .. }
            | Self::InvalidWindow { .. }
            | Self::InvalidBurst { .. }
            | Self::InvalidTtl { .. }
            | Self::InvalidUpsert => ErrorKind::InvalidInput,
            Self::Unreachable { .. } | Self::Overloaded { .. } | Self::Contention { .. } => {
                ErrorKind::Unavailable
            }
            Self::Interrupted { .. } | Self::TimedOut { .. } => ErrorKind::NoAnswer,
            Self::NotTaken { .. } => ErrorKind::NotTaken,
            Self::WaitTimedOut { .. } | Self::TooManyHolders { .. } => ErrorKind::Held,
            Self::LimitReached { .. } => ErrorKind::LimitReached,
            Self::Done(_) => ErrorKind::Done,
            Self::Superseded { .. } => ErrorKind::Superseded,
            Self::Lost { .. } | Self::Fenced { .. } => ErrorKind::Lost,
            Self::Closed => ErrorKind::Closed,
            Self::Denied { .. }
            | Self::NotPrepared { .. }
            | Self::NoJournal { .. }
            | Self::File { .. }
            | Self::NoRuntime
            | Self::RuntimeEnded
            | Self::NotEnforceable { .. } => ErrorKind::Misconfigured,
            Self::UnsupportedSchema { .. } | Self::NotALock { .. } | Self::NotALimiter { .. } => {
                ErrorKind::ForeignDocument
            }
            Self::TransactionAborted { .. } => ErrorKind::TransactionAborted,
            Self::Store { .. } => ErrorKind::Other,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::model::{Cause, Key, PermitsLeft};

    /// The table is written out, because applications decide by it.
    #[test]
    fn what_can_be_retried_and_what_is_ambiguous() {
        let (store, source) = ("the store", || Cause::text("broken"));
        let (limit, key) = (Duration::from_secs(1), || Key::new("key").unwrap());
        let (waited, retry_in) = (limit, limit);
        let operation = "acquire";
        let errors = [
            (Error::InvalidKey { bytes: 0 }, false, false),
            (
                Error::Unreachable {
                    store,
                    source: source(),
                },
                true,
                false,
            ),
            (
                Error::Overloaded {
                    store,
                    source: source(),
                },
                true,
                false,
            ),
            (Error::Contention { key: key() }, true, false),
            (
                Error::Interrupted {
                    store,
                    source: source(),
                },
                true,
                true,
            ),
            (
                Error::TimedOut {
                    store: store.to_owned(),
                    operation,
                    limit,
                },
                true,
                true,
            ),
            (
                Error::NotTaken {
                    key: key(),
                    ttl: limit,
                },
                true,
                false,
            ),
            (Error::TooManyHolders { key: key() }, true, false),
            (
                Error::LimitReached {
                    key: key(),
                    waited,
                    retry_in,
                    left: PermitsLeft {
                        limit: 1,
                        remaining: 0,
                        reset_in: retry_in,
                    },
                },
                true,
                false,
            ),
            (
                Error::TransactionAborted {
                    store,
                    source: source(),
                },
                true,
                false,
            ),
            (
                Error::Denied {
                    store,
                    source: source(),
                },
                false,
                false,
            ),
            (
                Error::Store {
                    store,
                    source: source(),
                },
                false,
                false,
            ),
            (Error::NoRuntime, false, false),
            (Error::RuntimeEnded, false, false),
            (Error::InvalidUpsert, false, false),
            (Error::Closed, false, false),
        ];
        for (error, is_retryable, is_ambiguous) in errors {
            let told = (error.is_retryable(), error.is_ambiguous());
            assert_eq!(told, (is_retryable, is_ambiguous), "{error}");
        }
    }
}
