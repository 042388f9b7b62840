//! `Failure`: how a call to a faulty store fails.

use crate::model::{Cause, Error};

const STORE: &str = "the faulty store";

/// How a call to a [`FaultyStore`](super::FaultyStore) fails: with which [`Error`], and whether the request is carried
/// out.
///
/// Each is what a store gives when a database does the same.
///
/// ```
/// use leasehold::{ErrorKind, testing::Failure};
///
/// let error = Failure::AnswerLost.error();
/// assert_eq!(error.kind(), ErrorKind::NoAnswer);
/// assert!(error.is_retryable() && error.is_ambiguous());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Failure {
    /// The request is not carried out: [`Error::Unreachable`]. A retry can help.
    Unreachable,
    /// The request is not carried out: [`Error::Overloaded`]. A retry can help.
    Overloaded,
    /// The request is carried out, and its answer is lost: [`Error::Interrupted`]. A retry can help.
    AnswerLost,
    /// The request is not carried out, and its caller cannot know: [`Error::Interrupted`], as for
    /// [`AnswerLost`](Self::AnswerLost). A retry can help.
    RequestLost,
    /// The request is not carried out: [`Error::Denied`]. A retry does not help.
    Denied,
    /// The request is not carried out: [`Error::Store`]. A retry does not help.
    Broken,
}

impl Failure {
    /// The error that the call gives.
    ///
    /// ```
    /// use leasehold::{Error, testing::Failure};
    ///
    /// assert!(matches!(Failure::Denied.error(), Error::Denied { .. }));
    /// assert!(!Failure::Denied.error().is_retryable());
    /// ```
    pub fn error(self) -> Error {
        let (store, source) = (STORE, Cause::text("a test said so"));
        match self {
            Self::Unreachable => Error::Unreachable { store, source },
            Self::Overloaded => Error::Overloaded { store, source },
            Self::AnswerLost | Self::RequestLost => Error::Interrupted { store, source },
            Self::Denied => Error::Denied { store, source },
            Self::Broken => Error::Store { store, source },
        }
    }

    /// Whether the request is carried out although the call fails.
    pub(super) fn is_carried_out(self) -> bool {
        self == Self::AnswerLost
    }
}
