//! What kind of error something is, for those who count or match.

use std::fmt;

use super::error::Error;

/// What kind of error an [`Error`] is: what an application counts, or decides by.
///
/// Variants of [`Error`] may be added; each has one of these kinds, or of those that come.
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
    /// What was asked for is out of bounds. Nothing was sent.
    InvalidInput,
    /// The store cannot be reached, or has too much to do. Nothing was changed, and a retry can help.
    Unavailable,
    /// There is no answer: the request may or may not have been carried out. A retry can help.
    NoAnswer,
    /// Others hold the key, and still did when the wait was over. A retry can help.
    Held,
    /// The limiter lets no call through in the time that was allowed for waiting. A retry can help.
    LimitReached,
    /// The lease is over, or the resource has seen a newer one.
    Lost,
    /// The handle was closed.
    Closed,
    /// The store, its credentials, or the runtime is not what is needed: somebody has to mend that.
    Misconfigured,
    /// The document of the key is not one of this crate, or of a version that this one does not know. It was
    /// left alone.
    ForeignDocument,
    /// A transaction of the application is not done, and can be run again.
    TransactionAborted,
    /// The store failed otherwise, in a way that a retry will not mend.
    Other,
}

impl ErrorKind {
    /// The kind as one word, for the label of a metric.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::InvalidInput => "invalid_input",
            Self::Unavailable => "unavailable",
            Self::NoAnswer => "no_answer",
            Self::Held => "held",
            Self::LimitReached => "limit_reached",
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
    /// What kind of error it is.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::InvalidKey { .. }
            | Self::InvalidOwner { .. }
            | Self::InvalidPermits { .. }
            | Self::InvalidConversion
            | Self::InvalidNote { .. }
            | Self::InvalidMinHold { .. }
            | Self::InvalidLimit
            | Self::InvalidWindow { .. }
            | Self::InvalidBurst { .. }
            | Self::InvalidTtl { .. }
            | Self::InvalidUpsert => ErrorKind::InvalidInput,
            Self::Unreachable { .. } | Self::Overloaded { .. } | Self::Contention { .. } => {
                ErrorKind::Unavailable
            }
            Self::Interrupted { .. } | Self::TimedOut { .. } => ErrorKind::NoAnswer,
            Self::WaitTimedOut { .. } | Self::TooManyHolders { .. } => ErrorKind::Held,
            Self::LimitReached { .. } => ErrorKind::LimitReached,
            Self::Lost { .. } | Self::Fenced { .. } => ErrorKind::Lost,
            Self::Closed => ErrorKind::Closed,
            Self::Denied { .. }
            | Self::NotPrepared { .. }
            | Self::NoJournal { .. }
            | Self::File { .. }
            | Self::NoRuntime
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
    use crate::model::{Cause, Key};

    #[test]
    fn the_kind_says_what_the_questions_to_an_error_say() {
        let (store, source) = ("the store", || Cause::text("broken"));
        let limit = Duration::from_secs(1);
        let errors = [
            Error::InvalidKey { bytes: 0 },
            Error::Unreachable {
                store,
                source: source(),
            },
            Error::Interrupted {
                store,
                source: source(),
            },
            Error::TimedOut {
                operation: "acquire",
                limit,
            },
            Error::Overloaded {
                store,
                source: source(),
            },
            Error::Denied {
                store,
                source: source(),
            },
            Error::Store {
                store,
                source: source(),
            },
            Error::TransactionAborted {
                store,
                source: source(),
            },
            Error::TooManyHolders {
                key: Key::new("key").unwrap(),
            },
            Error::LimitReached {
                key: Key::new("key").unwrap(),
                waited: limit,
                retry_in: limit,
            },
            Error::Closed,
        ];
        for error in errors {
            let kind = error.kind();
            assert_eq!(error.is_ambiguous(), kind == ErrorKind::NoAnswer, "{kind}");
            let can_help = matches!(
                kind,
                ErrorKind::NoAnswer
                    | ErrorKind::Unavailable
                    | ErrorKind::Held
                    | ErrorKind::LimitReached
                    | ErrorKind::TransactionAborted
            );
            assert_eq!(error.is_retryable(), can_help, "{kind}");
        }
    }
}
