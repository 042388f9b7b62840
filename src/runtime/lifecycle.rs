//! The operations that the close of a client waits for, and the token that tells the parts of the client about the
//! close. (The steps of a close are in `key/closing.rs`.)

use tokio_util::{
    sync::CancellationToken,
    task::{TaskTracker, task_tracker::TaskTrackerToken},
};

/// Whether a client is closing, and the operations that the close waits for.
#[derive(Debug, Default)]
pub(crate) struct Lifecycle {
    closing: CancellationToken,
    at_work: TaskTracker,
}

impl Lifecycle {
    /// The token that is cancelled by the close.
    pub(crate) fn closing(&self) -> &CancellationToken {
        &self.closing
    }

    /// Whether the client is closing or has closed.
    pub(crate) fn is_closing(&self) -> bool {
        self.closing.is_cancelled()
    }

    /// The token of one more operation. A [close](Lifecycle::finish) waits until the token is dropped.
    pub(crate) fn register_operation(&self) -> TaskTrackerToken {
        self.at_work.token()
    }

    /// Begins the close. Operations that begin after this fail.
    pub(crate) fn begin_to_close(&self) {
        self.closing.cancel();
    }

    /// Waits until each operation has dropped its [token](Lifecycle::register_operation).
    pub(crate) async fn finish(&self) {
        self.at_work.close();
        self.at_work.wait().await;
    }
}

impl Drop for Lifecycle {
    fn drop(&mut self) {
        // If a client is dropped without a close, this ends its background parts, the listener for example.
        self.closing.cancel();
    }
}
