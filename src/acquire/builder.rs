//! `TryAcquire` and `Acquire`: the builders for a lease on one key.

use std::{future::IntoFuture, sync::Arc, time::Duration};

use futures::future::BoxFuture;

use super::{
    attempt::Attempt,
    context::AcquireContext,
    options::{LeaseOptions, lease_options},
    start,
    with::{self, WithError},
};
use crate::{
    lease::Lease,
    model::{Error, Key, WaitPolicy},
};

/// A single request for a key, made by [`Leases::try_acquire`](crate::Leases::try_acquire). Await
/// it.
///
/// The request does not wait, and does not overtake the processes that wait with [`Leases::acquire`](crate::Leases::acquire): while
/// one of them comes first, the answer is [`Attempt::Held`], also if the key is free.
/// [`Held::ahead`](crate::Held::ahead) says how many there are. With [`barging`](TryAcquire::barging) the request comes before them.
///
/// # Errors
///
/// - Before anything is sent: an error whose name begins with `Invalid` for bad terms, [`Error::Closed`], and
///   [`Error::NoRuntime`] outside a tokio runtime.
/// - [`Error::TooManyHolders`] if the key has as many holders as it can have, and none of them conflicts.
/// - [`Error::NotTaken`] if the lease expired before the future was polled again.
/// - Otherwise the error of the store, after three tries if a retry could help. A request that is not answered
///   within the ttl, or within the [`call_timeout`](crate::LeasesBuilder::call_timeout) if that is shorter, gives
///   [`Error::TimedOut`]. A request that went in a batch with others is sent once more, alone, after a second without
///   an answer.
///
/// # Cancel safety
///
/// Cancel safe: dropping the future at any point leaves no lock behind. A task waits for the requests that were
/// sent, and releases a lease that they were granted; the task does the same after an error. If a request is not
/// answered within the [`call_timeout`](crate::LeasesBuilder::call_timeout), or its connection broke, the task
/// repeats the release for as long again, because the server may carry out the request late. If the runtime ends
/// before that, or the store cannot be reached, the key is free when the ttl is over.
#[derive(Debug)]
#[must_use = "nothing is sent until it is awaited"]
pub struct TryAcquire {
    key: Result<Key, Error>,
    options: LeaseOptions,
}

lease_options!(TryAcquire);

impl TryAcquire {
    pub(crate) fn new(
        context: Arc<AcquireContext>,
        key: Result<Key, Error>,
        ttl: Duration,
    ) -> Self {
        let options = LeaseOptions::new(context, ttl);
        Self { key, options }
    }
}

impl IntoFuture for TryAcquire {
    type Output = Result<Attempt, Error>;
    type IntoFuture = BoxFuture<'static, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(start::acquire(self.options, self.key, WaitPolicy::None))
    }
}

/// A request for a key that waits until the key is granted, made by
/// [`Leases::acquire`](crate::Leases::acquire). Await it.
///
/// The waiters for one key of one [`Leases`](crate::Leases) and its clones stand in a queue, first in, first out.
/// Only the first waiter sends requests, so a thousand waiters load the store no more than one. (A
/// [`reentrant`](Acquire::reentrant) acquire asks once before it joins the queue.)
///
/// - The release of an exclusive lease in this process grants its key to the first waiter, in one request. After
///   32 such handoffs in a row, or 100 ms, the key is released instead, so that other processes can be granted
///   it.
/// - Otherwise the first waiter asks again after pauses that grow from 10 ms to 1 s while the holder is the same.
///   No pause goes past the moment at which the earliest holder expires. If the store reports freed keys
///   ([`Store::freed`](crate::Store::freed)), the waiter asks on such a report, and otherwise about once a second.
///
/// # Between processes
///
/// The processes that wait for a key are granted it in turn. A process takes a place in the document of the key when it
/// is refused, one for all of its tasks, and gives it up when the last of them ends its wait. If the first of its tasks ends
/// its wait without the key, the next one has the place, in its own mode; one grant ends the place. A request is refused
/// while one that conflicts with it is ahead, also if the key is free: so readers queue behind a writer that waits.
///
/// - Of the tasks of a process that wait to share the key, all that waited when the first of them asks are let in with it.
/// - A process that is first asks every few milliseconds while the key changes hands quickly, and once a second while one
///   holder has it. One that is further behind asks less often, every three seconds at the least.
/// - A place counts until a moment after the process has to have asked again. So a process that died, or is paused, delays
///   those behind it for 1.5 s if it was first, and for 4 s at the most.
/// - A lease that is [upgraded](crate::Lease::upgrade), and a [`reentrant`](Acquire::reentrant) acquire whose owner has
///   the key, come before those that wait.
/// - A task that has a shared lease and asks for another one of the same key waits behind a writer that waits for the
///   first one: a deadlock that ends with a ttl or a [`wait_for`](Acquire::wait_for). Use one lease, make the second
///   request reentrant, or [`barging`](Acquire::barging).
/// - A key has room for [`MAX_PLACES`](crate::limits::MAX_PLACES) processes. Those beyond that have no place, and ask from
///   time to time.
///
/// After an error that a retry can fix, the waiter asks again. Once the time given to
/// [`wait_for`](Acquire::wait_for) is over, such an error ends the wait. Without a bound the wait ends when three
/// such errors came in a row, and the last answer is longer ago than the
/// [`call_timeout`](crate::LeasesBuilder::call_timeout).
///
/// # Errors
///
/// As for [`TryAcquire`], and [`Error::WaitTimedOut`] if the key is still held when the time is over.
/// [`Error::TooManyHolders`] is returned only then, too.
///
/// # Cancel safety
///
/// As for [`TryAcquire`]: dropping the future at any point leaves no lock behind. The waiter loses its place in
/// the queue, and another call starts at the end.
#[derive(Debug)]
#[must_use = "nothing is sent until it is awaited"]
pub struct Acquire {
    key: Result<Key, Error>,
    options: LeaseOptions,
    wait_policy: WaitPolicy,
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
            options: LeaseOptions::new(context, ttl),
            wait_policy: WaitPolicy::Endless,
        }
    }

    /// Bounds the wait for the key. Without this option the wait has no bound.
    ///
    /// When the time is over, the first waiter asks a last time, unless other waiters stand behind it and the last
    /// answer is less than half a second old. The acquire still waits for a request that is under way then. For a
    /// bound that holds even if the store does not answer, put `tokio::time::timeout` around the acquire, which is
    /// cancel safe. With a time of zero the acquire asks once, and does not join the queue.
    pub fn wait_for(mut self, time: Duration) -> Self {
        self.wait_policy = WaitPolicy::For(time);
        self
    }

    /// Acquires the lease, [keeps it alive](Acquire::keep_alive) while the body runs, and releases it.
    ///
    /// If the lease is lost, the body's future is dropped where it awaits. The lease is released in any case,
    /// also when the body fails, and this call waits for the answer to the release.
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
    /// [`WithError`] tells apart a lease that was not acquired, one that was lost, and the body's own
    /// error. A release that fails is no error, because the body ended under the lease: the release goes on in
    /// the background.
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
            let attempt = start::acquire(self.options, self.key, self.wait_policy).await?;
            attempt.acquired()
        })
    }
}
