//! Trying an operation again that may be repeated.

use std::time::Duration;

use crate::{Error, backoff};

/// How often an operation is sent before its error is handed to the caller.
pub(crate) const TRIES: u32 = 3;

/// Counts the tries of one operation.
#[derive(Debug, Default)]
pub(crate) struct Tries {
    failed: u32,
}

impl Tries {
    /// How long to pause before the next try; `None` if trying again cannot help, or was tried often
    /// enough.
    pub(crate) fn pause_after(&mut self, error: &Error) -> Option<Duration> {
        self.failed += 1;
        let again = self.failed < TRIES && error.is_retryable();
        again.then(|| backoff::pause(self.failed, backoff::WAITING, fastrand::f64()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_pass_is_tried_three_times() {
        let passing = Error::TimedOut {
            operation: "acquire",
            limit: Duration::from_secs(1),
        };
        let mut tries = Tries::default();
        assert!(tries.pause_after(&passing).is_some());
        assert!(tries.pause_after(&passing).is_some());
        assert!(tries.pause_after(&passing).is_none());
        assert!(Tries::default().pause_after(&Error::Closed).is_none());
    }
}
