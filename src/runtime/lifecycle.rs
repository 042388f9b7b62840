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
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::outside;
use crate::model::{Error, LossReason};

/// The runtime of a client, whether the client is closing, and the operations that a close waits for.
pub(crate) struct Lifecycle {
    home: OnceLock<Handle>,
    /// It is cancelled by the close, and by the end of the runtime. Operations that begin after this fail.
    pub(crate) closing: CancellationToken,
    /// Whether the runtime has ended before a close.
    has_runtime_ended: AtomicBool,
    /// Each operation has a token, and a [close](Lifecycle::finish) waits until all are dropped.
    pub(crate) at_work: TaskTracker,
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
            let closing = self.closing.clone();
            here.spawn(async move {
                closing.cancelled().await;
                drop(watch);
            });
            here
        });
        Ok(())
    }

    /// Fails if the client is closing, or its runtime has ended.
    pub(crate) fn check(&self) -> Result<(), Error> {
        if self.is_closing() {
            return Err(self.why_closed());
        }
        Ok(())
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

    /// Waits until each operation has dropped its token.
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

/// Ends the client when its task is dropped with the runtime.
struct EndsWithRuntime(Weak<Lifecycle>);

impl Drop for EndsWithRuntime {
    fn drop(&mut self) {
        if let Some(lifecycle) = self.0.upgrade()
            && !lifecycle.is_closing()
        {
            lifecycle.has_runtime_ended.store(true, Ordering::Release);
            lifecycle.closing.cancel();
            (lifecycle.on_runtime_ended)();
        }
    }
}
