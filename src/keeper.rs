//! What goes on behind the caller's back: the tasks of store calls, and releases that nobody
//! waits for. Only this file spawns.

use std::{future::Future, sync::Arc, time::Duration};

use futures::StreamExt;
use parking_lot::Mutex;
use tokio::{
    runtime::Handle,
    sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel},
    task::JoinHandle,
    time::{Instant, sleep, timeout},
};

use crate::{
    AcquireAnswer, Error, Key, ReleaseAnswer, ReleaseRequest, Store, backoff, record::LeaseId,
};

/// How many background releases run at the same time.
const RELEASES_AT_ONCE: usize = 64;

/// Runs a store call in a task of its own and waits for it this long.
///
/// Dropping the returned future, or running out of time, leaves the call running: the MongoDB
/// driver documents that its futures are not cancel safe.
pub(crate) async fn call<T: Send + 'static>(
    operation: &'static str,
    limit: Duration,
    work: impl Future<Output = Result<T, Error>> + Send + 'static,
) -> Result<T, Error> {
    let mut task = spawn(work)?;
    join(operation, limit, &mut task).await
}

pub(crate) fn spawn<T: Send + 'static>(
    work: impl Future<Output = T> + Send + 'static,
) -> Result<JoinHandle<T>, Error> {
    let runtime = Handle::try_current().map_err(|_| Error::NoRuntime)?;
    Ok(runtime.spawn(work))
}

pub(crate) async fn join<T>(
    operation: &'static str,
    limit: Duration,
    task: &mut JoinHandle<Result<T, Error>>,
) -> Result<T, Error> {
    match timeout(limit, task).await {
        Ok(Ok(outcome)) => outcome,
        // The task was killed by a panic in the store or by the end of its runtime.
        Ok(Err(ended)) => Err(Error::Interrupted {
            store: "the store",
            source: ended.into(),
        }),
        Err(_) => Err(Error::TimedOut { operation, limit }),
    }
}

/// The inbox of the task that releases in the background.
///
/// Sending never blocks, spawns or panics, so that guards can do it as they drop, with or without
/// a runtime. The task starts with the first acquire and ends when the last [`Keeper`] is gone and
/// its inbox is empty. A runtime that shuts down takes it along: what was left to release then
/// ends with its ttl.
#[derive(Debug)]
pub(crate) struct Keeper {
    store: Arc<dyn Store>,
    call_timeout: Duration,
    inbox: Mutex<Option<UnboundedSender<Abandoned>>>,
}

/// A lease that is, or may be, in the store, and that nobody has any use for.
#[derive(Debug)]
pub(crate) struct Abandoned {
    pub(crate) key: Key,
    pub(crate) lease: LeaseId,
    /// When it is over by itself.
    pub(crate) until: Instant,
    /// The request for it, if that is still under way.
    pub(crate) call: Option<JoinHandle<Result<AcquireAnswer, Error>>>,
    /// Whether a request for it may still be on its way to the server, so that "not held" is no
    /// proof yet.
    pub(crate) ambiguous: bool,
}

impl Keeper {
    pub(crate) fn new(store: Arc<dyn Store>, call_timeout: Duration) -> Self {
        Self {
            store,
            call_timeout,
            inbox: Mutex::new(None),
        }
    }

    /// Starts the task unless it runs. It does not outlive its runtime, so each acquire asks.
    pub(crate) fn ensure_running(&self) -> Result<(), Error> {
        let mut inbox = self.inbox.lock();
        if inbox.as_ref().is_none_or(UnboundedSender::is_closed) {
            let (sender, receiver) = unbounded_channel();
            spawn(run(self.store.clone(), self.call_timeout, receiver))?;
            *inbox = Some(sender);
        }
        Ok(())
    }

    /// Has the lease released in the background.
    pub(crate) fn abandon(&self, abandoned: Abandoned) {
        if let Some(inbox) = self.inbox.lock().as_ref() {
            // With its runtime gone nobody can release; the ttl will.
            let _ = inbox.send(abandoned);
        }
    }
}

async fn run(store: Arc<dyn Store>, call_timeout: Duration, inbox: UnboundedReceiver<Abandoned>) {
    futures::stream::unfold(inbox, async |mut inbox| {
        inbox.recv().await.map(|abandoned| (abandoned, inbox))
    })
    .for_each_concurrent(RELEASES_AT_ONCE, |abandoned| {
        release(store.clone(), call_timeout, abandoned)
    })
    .await;
}

async fn release(store: Arc<dyn Store>, call_timeout: Duration, mut abandoned: Abandoned) {
    // A release that overtakes its acquire would free nothing.
    if let Some(call) = abandoned.call.take() {
        match call.await {
            Ok(Ok(AcquireAnswer::Granted(_))) => abandoned.ambiguous = false,
            Ok(Ok(AcquireAnswer::Held(_))) if !abandoned.ambiguous => return,
            Ok(Err(error)) if !abandoned.ambiguous && !error.is_ambiguous() => return,
            Ok(_) | Err(_) => abandoned.ambiguous = true,
        }
    }
    let settled = Instant::now()
        .checked_add(call_timeout)
        .map_or(abandoned.until, |at| at.min(abandoned.until));
    for failures in 0.. {
        let request = ReleaseRequest::new(abandoned.key.clone(), abandoned.lease);
        let work = {
            let store = store.clone();
            async move { store.release(&request).await }
        };
        let now = match call("release", call_timeout, work).await {
            Ok(ReleaseAnswer::Released) => return,
            Ok(ReleaseAnswer::NotHeld) if !abandoned.ambiguous => return,
            // What is still on its way gets the time that a call has.
            Ok(ReleaseAnswer::NotHeld) if Instant::now() >= settled => return,
            Ok(ReleaseAnswer::NotHeld) => Instant::now(),
            Err(error) if Instant::now() >= abandoned.until => {
                tracing::warn!(key = %abandoned.key, %error, "could not release; the ttl did");
                return;
            }
            Err(_) => Instant::now(),
        };
        let left = abandoned.until.saturating_duration_since(now);
        sleep(backoff::pause(failures, left, fastrand::f64())).await;
    }
}
