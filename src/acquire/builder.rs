//! Asking for a lease: the builders.

use std::{future::IntoFuture, sync::Arc, time::Duration};

use futures::future::BoxFuture;

use super::{
    attempt::Attempt,
    context::AcquireContext,
    operation,
    options::{LeaseOptions, lease_options},
    with::{self, WithError},
};
use crate::{
    lease::Lease,
    model::{Error, Key, WaitPolicy},
};

/// A single request for a key, made by [`Leases::try_acquire`](crate::Leases::try_acquire). Await
/// it.
///
/// It does not stand in the queue of the waiters of [`Leases::acquire`](crate::Leases::acquire):
/// it may be granted a key that is just released before the first of them.
///
/// # Errors
///
/// One whose name begins with `Invalid` for bad terms, and [`Error::Closed`], before anything is sent;
/// otherwise what the store answers, after three tries if a retry could help, and
/// [`Error::TooManyHolders`] when only the number of those who share the key is in the way. A request that is
/// not answered within the ttl, or the [`call_timeout`](crate::LeasesBuilder::call_timeout) if that is shorter,
/// is [`Error::TimedOut`]: what it grants later would be over, or nearly so.
///
/// # Cancel safety
///
/// Cancel safe: dropping the future at any point leaves no lock behind. Its requests go on in a task of
/// their own, which waits for the outcome and releases what was granted; the same holds after an error. The key
/// is free again one answered release after the last answer. A request without an answer is released after the
/// [`call_timeout`](crate::LeasesBuilder::call_timeout), and one whose connection broke for as long, again and
/// again, in case that it arrives late. Only if the runtime ends before that, or the store cannot be reached, does a
/// lock stay, until its ttl is over.
#[derive(Debug)]
#[must_use = "nothing is sent until it is awaited"]
pub struct TryAcquire {
    key: Result<Key, Error>,
    ask: LeaseOptions,
}

lease_options!(TryAcquire);

impl TryAcquire {
    pub(crate) fn new(
        context: Arc<AcquireContext>,
        key: Result<Key, Error>,
        ttl: Duration,
    ) -> Self {
        let ask = LeaseOptions::new(context, ttl);
        Self { key, ask }
    }
}

impl IntoFuture for TryAcquire {
    type Output = Result<Attempt, Error>;
    type IntoFuture = BoxFuture<'static, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(operation::acquire(self.ask, self.key, WaitPolicy::None))
    }
}

/// A request for a key that waits for its holder to go, made by
/// [`Leases::acquire`](crate::Leases::acquire). Await it.
///
/// The tasks that wait for the same key through the same [`Leases`](crate::Leases) stand in a queue,
/// first in, first out, and the first of them asks for all: a thousand waiters send no more requests
/// than one. A release in this process hands its key to the first, in one request; after 32 of them, or
/// 100 ms, the key is free for a moment, in which other processes can ask for it. Otherwise the first asks
/// again after pauses that grow from 10 ms to 1 s while the holder is the same, and never later than the
/// moment at which the earliest holder expires. Between processes there is no order.
///
/// An error that a retry may mend is one more reason to ask again: it ends the wait only when the time
/// given to [`wait_for`](Acquire::wait_for) is over, or, without one, when there was nothing but errors
/// for the [`call_timeout`](crate::LeasesBuilder::call_timeout).
///
/// # Errors
///
/// As for [`TryAcquire`], and [`Error::WaitTimedOut`] when the time is over and the key is held. Too many
/// holders are waited for as well.
///
/// # Cancel safety
///
/// As for [`TryAcquire`]: dropping the future at any point leaves no lock behind. It also leaves its
/// place in the queue, and loses it: another call starts at the end.
#[derive(Debug)]
#[must_use = "nothing is sent until it is awaited"]
pub struct Acquire {
    key: Result<Key, Error>,
    ask: LeaseOptions,
    patience: WaitPolicy,
}

lease_options!(Acquire);

impl Acquire {
    pub(crate) fn new(
        context: Arc<AcquireContext>,
        key: Result<Key, Error>,
        ttl: Duration,
    ) -> Self {
        Self {
            key,
            ask: LeaseOptions::new(context, ttl),
            patience: WaitPolicy::Endless,
        }
    }

    /// Waits this long for the holder to go; without it, for as long as it takes.
    ///
    /// When the time is over the first in the queue asks a last time. Each request gets its time: for
    /// a bound that holds even if the store does not answer, put `tokio::time::timeout` around, which
    /// is safe. With a time of zero the key is asked for once, without a look at the queue.
    pub fn wait_for(mut self, patience: Duration) -> Self {
        self.patience = WaitPolicy::For(patience);
        self
    }

    /// Acquires the lease, keeps it alive while the body runs, and releases it.
    ///
    /// If the lease is lost the body is stopped: it is dropped at the point at which it waits. The
    /// lease is released in any case, also when the body fails, and that is waited for.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use leasehold::{Fence, Leases, MemoryStore};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let leases = Leases::new(MemoryStore::new());
    /// # async fn publish(fence: Fence) -> std::io::Result<u32> { Ok(3) }
    /// let published = leases
    ///     .acquire("report:42", Duration::from_secs(30))
    ///     .with(async |lease| publish(lease.fence()).await)
    ///     .await?;
    /// # assert_eq!(published, 3);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`WithError`] separates a lease that was not acquired, one that was lost, and the body's own
    /// error. A release that does not get through is no error, because the body has come to its end
    /// under the lease: it goes on in the background.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops the body and releases the lease in the background.
    pub async fn with<T, E>(
        self,
        body: impl AsyncFnOnce(&Lease) -> Result<T, E>,
    ) -> Result<T, WithError<E>> {
        let lease = self.keep_alive().await.map_err(WithError::NotAcquired)?;
        with::run(lease, body).await
    }
}

impl IntoFuture for Acquire {
    type Output = Result<Lease, Error>;
    type IntoFuture = BoxFuture<'static, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let attempt = operation::acquire(self.ask, self.key, self.patience).await?;
            attempt.acquired()
        })
    }
}
