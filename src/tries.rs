//! Trying an operation again that may be repeated.

use std::time::Duration;

use tokio::time::sleep;

use crate::{Error, backoff};

/// How often an operation is sent before its error is handed to the caller.
pub(crate) const TRIES: u32 = 3;

/// Counts the tries of one operation.
#[derive(Debug, Default)]
pub(crate) struct Tries {
    failed: u32,
}

impl Tries {
    /// Pauses before the next try, not longer than this. Gives the error back if trying again
    /// cannot help, or was tried often enough.
    pub(crate) async fn after(&mut self, error: Error, longest: Duration) -> Result<(), Error> {
        self.failed += 1;
        if self.failed >= TRIES || !error.is_retryable() {
            return Err(error);
        }
        let pause = backoff::pause(self.failed, backoff::WAITING, fastrand::f64());
        sleep(pause.min(longest)).await;
        Ok(())
    }
}
