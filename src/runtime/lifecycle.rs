//! `Lifecycle`: the runtime of a client, and how the client ends: by a close, or with its runtime.
//!
//! A client belongs to the runtime on which it was first used. What goes on without a caller runs there: renewals,
//! releases in the background, timers, batches. Nothing moves to another runtime. Callers on other runtimes are served
//! as long as that runtime runs.
//!
//! When the runtime ends, it drops the task that watches for that, and the client ends as by a close (`key/closing.rs`),
//! but nothing can be released.

use std::sync::{
    Arc, OnceLock, Weak,
    atomic::{AtomicBool, Ordering},
};

use tokio::runtime::Handle;
use tokio_util::{
    sync::CancellationToken,
    task::{TaskTracker, task_tracker::TaskTrackerToken},
};

use super::outside;
use crate::model::{Error, LossReason};

/// The runtime of a client, whether the client is closing, and the operations that a close waits for.
pub(crate) struct Lifecycle {
    home: OnceLock<Handle>,
    closing: CancellationToken,
    /// Whether the runtime has ended before a close.
    has_runtime_ended: AtomicBool,
    at_work: TaskTracker,
    /// Ends what the client has, because its runtime has ended.
    on_runtime_ended: Box<dyn Fn() + Send + Sync>,
}

impl Lifecycle {
    /// The lifecycle of a client that was not used yet. `on_runtime_ended` is called once at most.
    pub(crate) fn new(on_runtime_ended: impl Fn() + Send + Sync + 'static) -> Arc<Self> {
        Arc::new(Self {
            home: OnceLock::new(),
            closing: CancellationToken::new(),
            has_runtime_ended: AtomicBool::new(false),
            at_work: TaskTracker::new(),
            on_runtime_ended: Box::new(on_runtime_ended),
        })
    }

    /// Begins to use the client. The first call decides which runtime it belongs to.
    ///
    /// Fails outside of a runtime, and if the client is closing, or its runtime has ended.
    pub(crate) fn enter(self: &Arc<Self>) -> Result<(), Error> {
        self.check()?;
        let here = Handle::try_current().map_err(|_| Error::NoRuntime)?;
        self.home.get_or_init(|| {
            let watch = EndsWithRuntime(Arc::downgrade(self));
            here.spawn(watch.until(self.closing.clone()));
            here
        });
        Ok(())
    }

    /// Fails if the client is closing, or its runtime has ended.
    pub(crate) fn check(&self) -> Result<(), Error> {
        if self.is_closing() {
            Err(self.why_closed())
        } else {
            Ok(())
        }
    }

    /// The runtime of the client. `None` before the first use.
    pub(crate) fn home(&self) -> Option<&Handle> {
        self.home.get()
    }

    /// Spawns work on the runtime of the client. If that has ended, the work is dropped.
    pub(crate) fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        if let Some(home) = self.home() {
            outside::spawn(home, work);
        }
    }

    /// The token that is cancelled by the close, and by the end of the runtime.
    pub(crate) fn closing(&self) -> &CancellationToken {
        &self.closing
    }

    /// Whether the client is closing or has closed, by a call or with its runtime.
    pub(crate) fn is_closing(&self) -> bool {
        self.closing.is_cancelled()
    }

    /// Whether the runtime has ended before a close.
    pub(crate) fn has_runtime_ended(&self) -> bool {
        self.has_runtime_ended.load(Ordering::Acquire)
    }

    /// The error of an operation that is refused because the client [is closing](Self::is_closing).
    pub(crate) fn why_closed(&self) -> Error {
        if self.has_runtime_ended() {
            Error::RuntimeEnded
        } else {
            Error::Closed
        }
    }

    /// Why a lease is lost when the client [is closing](Self::is_closing).
    pub(crate) fn loss(&self) -> LossReason {
        match self.why_closed() {
            Error::Closed => LossReason::Closed,
            error => LossReason::Unreachable(Box::new(error)),
        }
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

    fn end_with_runtime(&self) {
        if !self.is_closing() {
            self.has_runtime_ended.store(true, Ordering::Release);
            self.closing.cancel();
            (self.on_runtime_ended)();
        }
    }
}

impl Drop for Lifecycle {
    fn drop(&mut self) {
        // If a client is dropped without a close, this ends its background parts, the listener for example.
        self.closing.cancel();
    }
}

/// The task that ends the client when it is dropped with its runtime.
struct EndsWithRuntime(Weak<Lifecycle>);

impl EndsWithRuntime {
    async fn until(self, closing: CancellationToken) {
        closing.cancelled().await;
    }
}

impl Drop for EndsWithRuntime {
    fn drop(&mut self) {
        if let Some(lifecycle) = self.0.upgrade() {
            lifecycle.end_with_runtime();
        }
    }
}
