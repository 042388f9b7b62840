//! Asking for a lease: the builders, the retries, and the wait for a holder to go.

use std::{future::IntoFuture, sync::Arc, time::Duration};

use futures::future::BoxFuture;
use tokio::{
    task::JoinHandle,
    time::{Instant, sleep, timeout_at},
};

use crate::{
    AcquireAnswer, AcquireRequest, Error, Grant, Held, Key, Lease, backoff,
    deadline::{Validity, deadline},
    keeper::{self, Abandoned},
    leases::Shared,
    record::LeaseId,
    ttl,
};

/// How often an operation that may be repeated is sent before its error is handed to the caller.
pub(crate) const TRIES: u32 = 3;

/// The outcome of [`Leases::try_acquire`](crate::Leases::try_acquire).
#[derive(Debug)]
#[must_use = "a lease that is dropped is released at once"]
pub enum Attempt {
    /// The lease is yours.
    Acquired(Lease),
    /// Somebody else holds the key.
    Held(Held),
}

/// A single request for a key, made by [`Leases::try_acquire`](crate::Leases::try_acquire). Await
/// it.
///
/// # Errors
///
/// [`Error::InvalidKey`] and [`Error::InvalidTtl`] before anything is sent; otherwise what the
/// store answers, after three tries if a retry could help.
///
/// # Cancel safety
///
/// Dropping the future at any point leaves no lock behind: if the request was sent, a task in the
/// background waits for its outcome and releases what it granted.
#[derive(Debug)]
#[must_use = "nothing is sent until it is awaited"]
pub struct TryAcquire {
    ask: Ask,
}

impl TryAcquire {
    pub(crate) fn new(shared: Arc<Shared>, key: Result<Key, Error>, ttl: Duration) -> Self {
        Self {
            ask: Ask { shared, key, ttl },
        }
    }
}

impl IntoFuture for TryAcquire {
    type Output = Result<Attempt, Error>;
    type IntoFuture = BoxFuture<'static, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move { Pending::new(self.ask)?.attempt().await })
    }
}

/// A request for a key that waits for its holder to go, made by
/// [`Leases::acquire`](crate::Leases::acquire). Await it.
///
/// It asks again after pauses that grow from 10 ms to 1 s, and never later than the moment at which
/// the earliest holder expires.
///
/// # Errors
///
/// As for [`TryAcquire`], and [`Error::WaitTimedOut`] when the time given to
/// [`wait_for`](Acquire::wait_for) is over.
///
/// # Cancel safety
///
/// As for [`TryAcquire`]: dropping the future at any point leaves no lock behind.
#[derive(Debug)]
#[must_use = "nothing is sent until it is awaited"]
pub struct Acquire {
    ask: Ask,
    patience: Option<Duration>,
}

impl Acquire {
    pub(crate) fn new(shared: Arc<Shared>, key: Result<Key, Error>, ttl: Duration) -> Self {
        Self {
            ask: Ask { shared, key, ttl },
            patience: None,
        }
    }

    /// Waits this long at the most for the holder to go; without it, for as long as it takes.
    ///
    /// The key is asked for at least once, and that first answer is waited for even if it takes
    /// longer.
    pub fn wait_for(mut self, patience: Duration) -> Self {
        self.patience = Some(patience);
        self
    }

    async fn run(self) -> Result<Lease, Error> {
        let start = Instant::now();
        // A patience beyond the end of time is no bound.
        let give_up = self.patience.and_then(|wait| start.checked_add(wait));
        let mut pending = Pending::new(self.ask)?;
        let mut held = match pending.attempt().await? {
            Attempt::Acquired(lease) => return Ok(lease),
            Attempt::Held(held) => held,
        };
        for refusals in 0.. {
            let again = async {
                sleep(backoff::pause(refusals, held.expires_in(), fastrand::f64())).await;
                pending.attempt().await
            };
            let outcome = match give_up {
                Some(at) => timeout_at(at, again).await,
                None => Ok(again.await),
            };
            match outcome {
                Ok(attempt) => match attempt? {
                    Attempt::Acquired(lease) => return Ok(lease),
                    Attempt::Held(newer) => held = newer,
                },
                Err(_) => break,
            }
        }
        Err(Error::WaitTimedOut {
            waited: start.elapsed(),
            held,
        })
    }
}

impl IntoFuture for Acquire {
    type Output = Result<Lease, Error>;
    type IntoFuture = BoxFuture<'static, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.run())
    }
}

/// What both builders collect. A bad key is kept until the builder is awaited, so that the call
/// site needs one `?` and not two.
struct Ask {
    shared: Arc<Shared>,
    key: Result<Key, Error>,
    ttl: Duration,
}

impl std::fmt::Debug for Ask {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ask")
            .field("key", &self.key)
            .field("ttl", &self.ttl)
            .finish_non_exhaustive()
    }
}

/// An acquire under way, under one lease id from its first request to its last.
///
/// Dropped before it is settled, it hands the lease id to the keeper, which frees what may have
/// been granted.
struct Pending {
    shared: Arc<Shared>,
    request: Arc<AcquireRequest>,
    call: Option<JoinHandle<Result<AcquireAnswer, Error>>>,
    /// Whether an earlier request may still be carried out, or already has been.
    ambiguous: bool,
    /// When the newest request was sent.
    sent: Instant,
}

impl Pending {
    fn new(ask: Ask) -> Result<Self, Error> {
        let Ask { shared, key, ttl } = ask;
        let ttl = ttl::checked(ttl, shared.clock_margin)?;
        let request = AcquireRequest::exclusive(key?, LeaseId::random(), shared.owner.clone(), ttl);
        shared.keeper.ensure_running()?;
        Ok(Self {
            shared,
            request: Arc::new(request),
            call: None,
            ambiguous: false,
            sent: Instant::now(),
        })
    }

    /// Asks once, and again under the same lease id after an error that a retry may mend.
    async fn attempt(&mut self) -> Result<Attempt, Error> {
        let mut tries = 1;
        loop {
            match self.send().await {
                Ok(AcquireAnswer::Granted(grant)) => match self.accept(&grant) {
                    Some(lease) => return Ok(Attempt::Acquired(lease)),
                    None => return Err(self.too_late()),
                },
                Ok(AcquireAnswer::Held(held)) => return Ok(Attempt::Held(held)),
                Err(error) if error.is_retryable() && tries < TRIES => {
                    let pause = backoff::pause(tries, self.request.ttl, fastrand::f64());
                    sleep(pause).await;
                    tries += 1;
                }
                Err(error) => return Err(error),
            }
        }
    }

    async fn send(&mut self) -> Result<AcquireAnswer, Error> {
        let (store, request) = (self.shared.store.clone(), self.request.clone());
        let limit = self.limit();
        self.sent = Instant::now();
        let task = keeper::spawn(async move { store.acquire(&request).await })?;
        // Kept in `self` while it runs, so that a drop here hands it to the keeper.
        let call = self.call.insert(task);
        let answer = keeper::join("acquire", limit, call).await;
        match &answer {
            // Still running: its outcome is not known to anybody but the task.
            Err(Error::TimedOut { .. }) => {}
            _ => self.call = None,
        }
        self.ambiguous |= answer.as_ref().is_err_and(Error::is_ambiguous);
        answer
    }

    /// The guard of a grant, unless the answer took so long that nothing is left of it.
    fn accept(&mut self, grant: &Grant) -> Option<Lease> {
        let until = deadline(self.sent, grant, self.shared.clock_margin);
        let validity = Validity::until(until);
        if validity.loss(Instant::now()).is_some() {
            self.ambiguous = true;
            return None;
        }
        self.ambiguous = false;
        Some(Lease::new(
            self.shared.clone(),
            &self.request,
            grant,
            validity,
        ))
    }

    fn too_late(&self) -> Error {
        Error::TimedOut {
            operation: "acquire",
            limit: self.limit(),
        }
    }

    /// An answer that comes after the ttl grants nothing any more.
    fn limit(&self) -> Duration {
        self.shared.call_timeout.min(self.request.ttl)
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        let call = self.call.take();
        if call.is_none() && !self.ambiguous {
            return;
        }
        self.shared.keeper.abandon(Abandoned {
            key: self.request.key.clone(),
            lease: self.request.lease,
            until: self.sent + self.request.ttl,
            call,
            ambiguous: self.ambiguous,
        });
    }
}
