//! The operations that the close of a client waits for, and the token that tells the parts of the client about the
//! close. (The steps of a close are in `key/closing.rs`.)

use std::sync::Arc;

use futures::future::BoxFuture;
use tokio::{sync::oneshot, time::Instant};
use tokio_util::{
    sync::CancellationToken,
    task::{TaskTracker, task_tracker::TaskTrackerToken},
};

use super::{inline_task::InlineTask, inline_tasks::InlineTasks};
use crate::model::Error;

/// Whether a client is closing, and the operations that the close waits for.
#[derive(Debug, Default)]
pub(crate) struct Lifecycle {
    closing: CancellationToken,
    at_work: TaskTracker,
    /// The operations that their callers poll.
    tasks: Arc<InlineTasks>,
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

    /// Polls this work, or lets a task poll it, and waits for its outcome. Fails if the work panics, or is dropped with
    /// its runtime. If the future is dropped, a task does the rest of the work.
    pub(crate) async fn wait_for<T>(
        &self,
        task: Arc<InlineTask>,
        now: Instant,
        rest: BoxFuture<'static, ()>,
        outcome: oneshot::Receiver<T>,
    ) -> Result<T, Error> {
        let _entry = self.tasks.enter(&task, now);
        // A close that began before the entry was made has not detached this work.
        if self.is_closing() {
            task.detach();
        }
        task.wait(rest, outcome).await
    }

    /// Begins the close. Operations that begin after this fail.
    pub(crate) fn begin_to_close(&self) {
        self.closing.cancel();
    }

    /// Detaches all operations, and waits until each has dropped its [token](Lifecycle::register_operation).
    pub(crate) async fn finish(&self) {
        self.tasks.detach();
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
