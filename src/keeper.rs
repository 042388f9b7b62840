//! What goes on behind the caller's back: the tasks of store calls, and releases that nobody
//! waits for. Only this file spawns.

use std::{future::Future, mem, sync::Arc, time::Duration};

use futures::{StreamExt, stream::FuturesUnordered};
use parking_lot::Mutex;
use tokio::{
    runtime::Handle,
    sync::{
        Semaphore,
        mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel},
    },
    task::JoinHandle,
    time::{Instant, sleep, timeout},
};

use crate::{
    AcquireAnswer, Error, Key, ReleaseAnswer, ReleaseRequest, Store, backoff, record::LeaseId,
};

/// How many background releases are sent at the same time.
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

/// A request for a lease that was not waited for to its end.
pub(crate) type Straggler = JoinHandle<Result<AcquireAnswer, Error>>;

/// What may still come of the requests for one lease.
#[derive(Debug, Default)]
pub(crate) struct Residue {
    /// The request that is waited for.
    running: Option<Straggler>,
    /// Requests that ran out of time and run on.
    stragglers: Vec<Straggler>,
    /// Whether one ended without telling its outcome: it may have been granted, or may still be on
    /// its way to the server.
    open: bool,
}

impl Residue {
    pub(crate) fn is_empty(&self) -> bool {
        self.running.is_none() && self.stragglers.is_empty() && !self.open
    }

    /// Takes in a request as it starts, and gives it back to be waited for.
    pub(crate) fn started(&mut self, request: Straggler) -> &mut Straggler {
        self.running.insert(request)
    }

    /// Takes in how that request ended.
    pub(crate) fn ended(&mut self, answer: &Result<AcquireAnswer, Error>) {
        // What has ended unseen may have been granted.
        let known = self.stragglers.len();
        self.stragglers.retain(|straggler| !straggler.is_finished());
        self.open |= self.stragglers.len() < known;
        match (self.running.take(), answer) {
            // One that ended meanwhile must not be waited for again.
            (Some(request), Err(Error::TimedOut { .. })) if !request.is_finished() => {
                self.stragglers.push(request);
            }
            _ => self.open |= leaves_open(answer),
        }
    }

    /// Takes in that there is a grant that is of no use.
    pub(crate) fn leave_open(&mut self) {
        self.open = true;
    }

    fn take_requests(&mut self) -> impl Iterator<Item = Straggler> + use<> {
        mem::take(&mut self.stragglers)
            .into_iter()
            .chain(self.running.take())
    }
}

/// Whether the lease may be granted although the answer does not say so. An error counts unless it
/// says for certain that nothing was changed: a release too many costs nothing.
fn leaves_open(answer: &Result<AcquireAnswer, Error>) -> bool {
    match answer {
        Ok(_) => false,
        // The last of the nodes that were asked said so, and perhaps not the first.
        Err(Error::Store { .. } | Error::Overloaded { .. }) => true,
        Err(error) => error.is_ambiguous(),
    }
}

/// A lease that is, or may be, in the store, and that nobody has any use for.
#[derive(Debug)]
pub(crate) struct Abandoned {
    pub(crate) key: Key,
    pub(crate) lease: LeaseId,
    /// Whether it was granted.
    pub(crate) granted: bool,
    /// When the grant is over by itself.
    pub(crate) until: Instant,
    pub(crate) residue: Residue,
}

/// The inbox of the task that releases in the background.
///
/// Sending never blocks, spawns or panics, so that guards can do it as they drop, with or without
/// a runtime. The task starts with the first acquire and ends when the last [`Keeper`] is gone and
/// all is released. A runtime that shuts down takes it along: what was left to release then ends
/// with its ttl.
#[derive(Debug)]
pub(crate) struct Keeper {
    releases: Releases,
    inbox: Mutex<Option<UnboundedSender<Abandoned>>>,
}

impl Keeper {
    pub(crate) fn new(store: Arc<dyn Store>, call_timeout: Duration) -> Self {
        Self {
            releases: Releases {
                store,
                call_timeout,
                slots: Arc::new(Semaphore::new(RELEASES_AT_ONCE)),
            },
            inbox: Mutex::new(None),
        }
    }

    /// Starts the task unless it runs. It does not outlive its runtime, so each acquire asks.
    pub(crate) fn ensure_running(&self) -> Result<(), Error> {
        let mut inbox = self.inbox.lock();
        if inbox.as_ref().is_none_or(UnboundedSender::is_closed) {
            let (sender, receiver) = unbounded_channel();
            spawn(run(self.releases.clone(), receiver))?;
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

async fn run(releases: Releases, inbox: UnboundedReceiver<Abandoned>) {
    futures::stream::unfold(inbox, async |mut inbox| {
        inbox.recv().await.map(|abandoned| (abandoned, inbox))
    })
    // Without a bound: what waits, for a straggler or between two tries, must not keep others from
    // being released.
    .for_each_concurrent(None, |abandoned| releases.settle(abandoned))
    .await;
}

/// How leases are released that nobody waits for.
#[derive(Clone, Debug)]
struct Releases {
    store: Arc<dyn Store>,
    call_timeout: Duration,
    /// One for each release that is sent.
    slots: Arc<Semaphore>,
}

impl Releases {
    /// Releases the lease now, and again whenever a request for it ends that was not waited for.
    async fn settle(&self, mut abandoned: Abandoned) {
        let mut stragglers: FuturesUnordered<_> = abandoned.residue.take_requests().collect();
        loop {
            if abandoned.granted || abandoned.residue.open {
                self.free(&abandoned).await;
                (abandoned.granted, abandoned.residue.open) = (false, false);
            }
            // A release that overtakes its acquire would free nothing, hence this order.
            match stragglers.next().await {
                None => return,
                Some(Ok(answer)) => {
                    abandoned.granted = matches!(answer, Ok(AcquireAnswer::Granted(_)));
                    abandoned.residue.open = leaves_open(&answer);
                }
                // A panic in the store, or the end of its runtime.
                Some(Err(_)) => abandoned.residue.open = true,
            }
        }
    }

    async fn free(&self, abandoned: &Abandoned) {
        // What may still be on its way to the server gets the time that a call has.
        let settled = Instant::now().checked_add(self.call_timeout);
        let mut pauses = 0;
        loop {
            let now = Instant::now();
            match self.send(abandoned).await {
                Ok(ReleaseAnswer::Released) => return,
                Ok(ReleaseAnswer::NotHeld) if !abandoned.residue.open => return,
                Ok(ReleaseAnswer::NotHeld) if settled.is_none_or(|at| now >= at) => return,
                Ok(ReleaseAnswer::NotHeld) => {}
                Err(error) if now >= abandoned.until || !error.is_retryable() => {
                    tracing::warn!(key = %abandoned.key, %error, "could not release; the ttl will");
                    return;
                }
                Err(_) => {}
            }
            sleep(backoff::pause(pauses, backoff::BACKGROUND, fastrand::f64())).await;
            pauses += 1;
        }
    }

    async fn send(&self, abandoned: &Abandoned) -> Result<ReleaseAnswer, Error> {
        // The semaphore is never closed; without a slot there is only less order.
        let _slot = self.slots.acquire().await;
        let request = ReleaseRequest::new(abandoned.key.clone(), abandoned.lease);
        let store = self.store.clone();
        call("release", self.call_timeout, async move {
            store.release(&request).await
        })
        .await
    }
}
