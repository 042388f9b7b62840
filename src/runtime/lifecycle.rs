//! What a handle that closes waits for, and the token by which its parts hear of the close. (The steps of a close
//! stand in `lease/registry.rs`.)

use std::sync::Arc;

use futures::future::BoxFuture;
use tokio::{sync::oneshot, time::Instant};
use tokio_util::{
    sync::CancellationToken,
    task::{TaskTracker, task_tracker::TaskTrackerToken},
};

use super::{inline_task::InlineTask, inline_tasks::InlineTasks};

/// Whether a handle closes, and what it waits for then.
#[derive(Debug, Default)]
pub(crate) struct Lifecycle {
    closing: CancellationToken,
    at_work: TaskTracker,
    /// The operations that callers run in their own futures.
    tasks: Arc<InlineTasks>,
}

impl Lifecycle {
    /// The token that is cancelled by the close.
    pub(crate) fn closing(&self) -> &CancellationToken {
        &self.closing
    }

    /// Whether it closes, or has closed.
    pub(crate) fn is_closing(&self) -> bool {
        self.closing.is_cancelled()
    }

    /// Counts one more piece of work among those that a [close](Lifecycle::finish) waits for.
    pub(crate) fn at_work(&self) -> TaskTrackerToken {
        self.at_work.token()
    }

    /// Does this work from now on, or has it done, and waits for its outcome.
    pub(crate) async fn wait_for<T>(
        &self,
        task: Arc<InlineTask>,
        now: Instant,
        rest: BoxFuture<'static, ()>,
        outcome: oneshot::Receiver<T>,
    ) -> Option<T> {
        let _entry = self.tasks.enter(&task, now);
        // A close that came before the entry has not seen it.
        if self.is_closing() {
            task.detach();
        }
        task.wait(rest, outcome).await
    }

    /// Begins the close: nothing new is to begin from now on.
    pub(crate) fn begin_to_close(&self) {
        self.closing.cancel();
    }

    /// Waits for all that is at work.
    pub(crate) async fn finish(&self) {
        self.tasks.detach();
        self.at_work.close();
        self.at_work.wait().await;
    }
}

impl Drop for Lifecycle {
    fn drop(&mut self) {
        // This fails if no receiver is left.
        self.closing.cancel();
    }
}
