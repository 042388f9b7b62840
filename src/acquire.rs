//! Asking for a lease: the builders, the retries, and the wait for a holder to go.

use std::{future::IntoFuture, mem, sync::Arc, time::Duration};

use futures::future::BoxFuture;
use tokio::time::{Instant, sleep};

use crate::{
    AcquireAnswer, AcquireRequest, Error, Held, Key, Lease, backoff,
    deadline::{Validity, deadline},
    keeper::{self, Abandoned, Residue},
    key::MAX_OWNER_BYTES,
    leases::Shared,
    record::LeaseId,
    tries::{TRIES, Tries},
    ttl,
};

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
/// [`Error::InvalidKey`], [`Error::InvalidTtl`] and [`Error::InvalidOwner`] before anything is sent; otherwise what the
/// store answers, after three tries if a retry could help.
///
/// # Cancel safety
///
/// Cancel safe: dropping the future at any point leaves no lock behind. If a request was sent, a task
/// in the background waits for its outcome and releases what it granted; the same holds after an
/// error. Only if the runtime ends before that does a lock stay, until its ttl is over.
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
        Box::pin(async move {
            let mut pending = Pending::new(self.ask)?;
            let mut tries = Tries::default();
            loop {
                match pending.attempt().await {
                    Err(error) => tries.after(error, pending.request.ttl).await?,
                    answer => return answer,
                }
            }
        })
    }
}

/// A request for a key that waits for its holder to go, made by
/// [`Leases::acquire`](crate::Leases::acquire). Await it.
///
/// It asks again after pauses that grow from 10 ms to 1 s, and never later than the moment at which
/// the earliest holder expires. An error that a retry may mend is one more reason to ask again: it
/// ends the wait only when the time given to [`wait_for`](Acquire::wait_for) is over, or, without
/// one, when there was nothing but errors for the
/// [`call_timeout`](crate::LeasesBuilder::call_timeout).
///
/// # Errors
///
/// As for [`TryAcquire`], and [`Error::WaitTimedOut`] when the time is over and the key is held.
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

    /// Waits this long for the holder to go; without it, for as long as it takes.
    ///
    /// The key is asked for at once, and a last time when the time is over. Each of these requests
    /// gets its time: for a bound that holds even if the store does not answer, put
    /// `tokio::time::timeout` around, which is safe.
    pub fn wait_for(mut self, patience: Duration) -> Self {
        self.patience = Some(patience);
        self
    }

    async fn run(self) -> Result<Lease, Error> {
        let start = Instant::now();
        // A patience beyond the end of time is no bound.
        let give_up = self.patience.and_then(|wait| start.checked_add(wait));
        let mut pending = Pending::new(self.ask)?;
        let mut failures = 0;
        let mut answered = start;
        let mut pauses = 0;
        loop {
            let attempt = pending.attempt().await;
            let now = Instant::now();
            let left = give_up.map(|at| at.saturating_duration_since(now));
            let expires_in = match attempt {
                Ok(Attempt::Acquired(lease)) => return Ok(lease),
                Ok(Attempt::Held(held)) => {
                    (failures, answered) = (0, now);
                    if left.is_some_and(|left| left.is_zero()) {
                        let waited = now - start;
                        return Err(Error::WaitTimedOut { waited, held });
                    }
                    (!held.holders().is_empty()).then(|| held.expires_in())
                }
                Err(error) if error.is_retryable() => {
                    failures += 1;
                    let over = match left {
                        Some(left) => left.is_zero(),
                        None => now - answered >= pending.shared.call_timeout,
                    };
                    if over && failures >= TRIES {
                        return Err(error);
                    }
                    None
                }
                Err(error) => return Err(error),
            };
            let pause = backoff::pause_until_free(pauses, expires_in, fastrand::f64());
            // When the time is over there is one more look, after what is left of it.
            sleep(
                left.filter(|left| !left.is_zero())
                    .map_or(pause, |left| pause.min(left)),
            )
            .await;
            pauses += 1;
        }
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
/// Dropped before it is granted, it hands the lease id to the keeper, which frees what may have
/// been granted.
struct Pending {
    shared: Arc<Shared>,
    request: Arc<AcquireRequest>,
    residue: Residue,
    /// When the newest request was sent.
    sent: Instant,
}

impl Pending {
    fn new(ask: Ask) -> Result<Self, Error> {
        let Ask { shared, key, ttl } = ask;
        let ttl = ttl::checked(ttl, shared.clock_margin)?;
        let bytes = shared.owner.len();
        if bytes == 0 || bytes > MAX_OWNER_BYTES {
            return Err(Error::InvalidOwner { bytes });
        }
        let request = AcquireRequest::exclusive(key?, LeaseId::random(), shared.owner.clone(), ttl);
        shared.keeper.ensure_running()?;
        Ok(Self {
            shared,
            request: Arc::new(request),
            residue: Residue::default(),
            sent: Instant::now(),
        })
    }

    /// Asks once.
    async fn attempt(&mut self) -> Result<Attempt, Error> {
        match self.send().await? {
            AcquireAnswer::Granted(grant) => {
                let until = deadline(self.sent, &grant, self.shared.clock_margin);
                let validity = Validity::until(until);
                if validity.loss(Instant::now()).is_some() {
                    // The answer took so long that nothing is left of it.
                    self.residue.leave_open();
                    return Err(self.too_late());
                }
                let residue = mem::take(&mut self.residue);
                let shared = self.shared.clone();
                let lease = Lease::new(shared, &self.request, &grant, validity, residue);
                Ok(Attempt::Acquired(lease))
            }
            AcquireAnswer::Held(held) => Ok(Attempt::Held(held)),
        }
    }

    async fn send(&mut self) -> Result<AcquireAnswer, Error> {
        let (store, request) = (self.shared.store.clone(), self.request.clone());
        let limit = self.limit();
        self.sent = Instant::now();
        let task = keeper::spawn(async move { store.acquire(&request).await })?;
        // Kept there while it runs, so that a drop here hands it to the keeper.
        let answer = keeper::join("acquire", limit, self.residue.started(task)).await;
        self.residue.ended(&answer);
        answer
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
        if self.residue.is_empty() {
            return;
        }
        self.shared.keeper.abandon(Abandoned {
            key: self.request.key.clone(),
            lease: self.request.lease,
            granted: false,
            until: self.sent + self.request.ttl,
            residue: mem::take(&mut self.residue),
        });
    }
}
