//! `TryAcquire` and `Acquire`: the builders for a lease on one key.

use std::{future::IntoFuture, time::Duration};

use futures::future::BoxFuture;

use super::{
    options::{LeaseOptions, lease_options},
    start::{self, Attempt},
};
use crate::{
    lease::Lease,
    model::{Error, Key, WaitPolicy},
};

/// A single request for a key, made by [`Leases::try_acquire`](crate::Leases::try_acquire). Await it: it resolves to an
/// [`Attempt`].
///
/// The request does not wait for the key. It does not overtake the processes that wait with
/// [`Leases::acquire`](crate::Leases::acquire): while such a process comes first, the answer is [`Attempt::Held`], even
/// if the key is free. [`Held::ahead`](crate::Held::ahead) says how many processes wait. With
/// [`barging`](TryAcquire::barging) the request comes before them. With [`keep_alive`](TryAcquire::keep_alive) it waits
/// while renewals are late, for a third of the ttl at most, so that new leases do not cost the process old ones.
///
/// # Errors
///
/// - Before anything is sent: an error whose name begins with `Invalid` for a bad key, ttl or option;
///   [`Error::Closed`]; [`Error::NoRuntime`] outside a tokio runtime; and [`Error::RuntimeEnded`].
/// - [`Error::TooManyHolders`] if no holder conflicts with the request, but the key has
///   [`MAX_HOLDERS`](crate::limits::MAX_HOLDERS) holders.
/// - [`Error::NotTaken`] if the lease expired before the future was polled again.
/// - [`Error::Lost`] if the lease was evicted before it was [renewed for the caller](TryAcquire::keep_alive).
/// - Otherwise the error of the store, after three tries if a retry could help. A request that is not answered within
///   the ttl, or within the [`call_timeout`](crate::LeasesBuilder::call_timeout) if that is shorter, returns
///   [`Error::TimedOut`]. A request that was sent in a batch with others is sent once more, by itself, after a second
///   without an answer.
///
/// # Cancel safety
///
/// Cancel safe: dropping the future at any point leaves no lock behind. A task waits for the answers to the requests
/// that were sent, and releases a lease that they grant. It also does so after an error. If a request is not answered
/// within the [`call_timeout`](crate::LeasesBuilder::call_timeout), or its connection broke, the server may still carry
/// out the request. So the task repeats the release for another call timeout. If the runtime ends before that, or the
/// store cannot be reached, the key is free when the ttl is over.
#[derive(Debug)]
#[must_use = "nothing is sent until it is awaited"]
pub struct TryAcquire {
    pub(crate) key: Result<Key, Error>,
    pub(crate) options: LeaseOptions,
}

lease_options!(TryAcquire);

impl IntoFuture for TryAcquire {
    type Output = Result<Attempt, Error>;
    type IntoFuture = BoxFuture<'static, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(start::acquire(self.options, self.key))
    }
}

/// A request for a key that waits until the key is granted, made by [`Leases::acquire`](crate::Leases::acquire). Await
/// it: it resolves to a [`Lease`].
///
/// | option | |
/// |---|---|
/// | [`with`](Acquire::with) | does work under the lease, and releases it |
/// | [`wait_for`](Acquire::wait_for) | bounds the wait |
/// | [`keep_alive`](Acquire::keep_alive) | renews the lease until it is released |
/// | [`shared`](Acquire::shared), [`permits`](Acquire::permits), [`reentrant`](Acquire::reentrant) | who else may hold the key |
/// | [`sticky`](Acquire::sticky) | lets the key stay with this process |
/// | [`barging`](Acquire::barging) | comes before those that wait |
/// | [`min_hold`](Acquire::min_hold), [`max_hold`](Acquire::max_hold) | the shortest and the longest time to hold the key |
/// | [`owner`](Acquire::owner), [`note`](Acquire::note) | what others see |
///
/// ```
/// use std::time::Duration;
/// use leasehold::{Leases, MemoryStore};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), leasehold::Error> {
/// let leases = Leases::new(MemoryStore::new());
/// let lease = leases
///     .acquire("index:books", Duration::from_secs(30))
///     .shared()
///     .owner("search-pod-3")
///     .note("nightly export")
///     .wait_for(Duration::from_secs(5))
///     .keep_alive()
///     .await?;
/// lease.release().await?;
/// # Ok(())
/// # }
/// ```
///
/// # Within a process
///
/// The waiters for one key of one [`Leases`](crate::Leases) and its clones stand in a queue, first in, first out. Only
/// the first waiter sends requests, so a thousand waiters load the store no more than one. (A
/// [`reentrant`](Acquire::reentrant) acquire sends requests also when it is not the first, until an answer says that
/// its owner does not have the key: those before it may wait for that owner.)
///
/// - A task that releases the key leaves it to the first waiter, which gets it without a request, under the same lease,
///   with a fence of its own. So it goes for 100 ms after the grant of the store, or for 10 ms and at most 32 waiters
///   if other processes wait. The waiter wants the same kind of lease, ttl, owner and note, and 9/10 of the ttl are
///   left. Readers of the process share one lease, and its fence, if they come within 30 ms of its grant.
/// - A waiter with an [`owner`](Acquire::owner) or a [`max_hold`](Acquire::max_hold) of its own is served so only under
///   a lease that [stays](Acquire::sticky), and one with a [`min_hold`](Acquire::min_hold) never.
/// - Otherwise the first waiter sends its request again after pauses that grow from 10 ms to 1 s while the holder is
///   the same. No pause goes past the moment at which the earliest holder expires. If the store reports freed keys
///   ([`Store::freed`](crate::Store::freed)), and the key is held for a quarter of a second, the waiter sends its
///   request when the key is reported, and otherwise about once a second.
///
/// # Between processes
///
/// The processes that wait for a key are granted it in turn. A process is a [`Leases`](crate::Leases) with its clones
/// here. A process that is refused takes a place in the document of
/// the key. All of its tasks share one place, and the process gives it up when the last of them ends its wait. If the
/// first task ends its wait without the key, the next task has the place, in its own mode. One grant ends the place.
///
/// A request is refused while a process with a conflicting request is ahead, even if the key is free. So readers queue
/// behind a writer that waits.
///
/// - While a process has the key for a moment, [as above](#within-a-process), its tasks come before the processes that
///   wait. A writer waits until all readers under the lease of a process have released it.
/// - The first process sends a request every few milliseconds while the key changes hands quickly (every 50 ms while
///   the process has the store's reports, because a key was held for a quarter of a second), and once a second while
///   one holder keeps it. The next two processes send about as many then. A process further back sends fewer, but at
///   least one every three seconds.
/// - A place expires unless its process sends a request in time. So a process that died, or is paused, delays the
///   processes behind it for 1.5 s if it had been first for a while, and otherwise for up to 3.5 s. A free key is kept
///   for 4 s at most for all processes together. If the answers of the store take seconds, the places of a key that
///   others share last longer by that time.
/// - An [upgrade](crate::Lease::upgrade) of a lease, and a [`reentrant`](Acquire::reentrant) acquire whose owner has
///   the key, come before the processes that wait.
/// - A future that is kept and not polled for half a second when its turn has come is passed over. It has its position
///   back when it is polled.
/// - A task that holds a shared lease and requests another one of the same key waits behind a writer, which waits for
///   the first lease. So does a task that has permits and requests more of them, behind a process that waits for more
///   permits than are left. This deadlock ends when a ttl or a [`wait_for`](Acquire::wait_for) is over. To avoid it use
///   one lease, or make the second request [`reentrant`](Acquire::reentrant) or [`barging`](Acquire::barging).
/// - A key has places for [`MAX_PLACES`](crate::limits::MAX_PLACES) processes. Further processes have no place, and
///   send a request at least every 30 s.
///
/// # Errors
///
/// After an error that a retry can fix, the waiter sends its request again. Such an error ends the wait once the time
/// given to [`wait_for`](Acquire::wait_for) is over. Without a bound it ends the wait when at least three requests in a
/// row have failed, and the last answer is longer ago than the [`call_timeout`](crate::LeasesBuilder::call_timeout).
///
/// The errors are those of [`TryAcquire`], and [`Error::WaitTimedOut`] if the key is still held when the time is over.
/// [`Error::TooManyHolders`] too is returned only when the time is over.
///
/// # Cancel safety
///
/// As for [`TryAcquire`]: dropping the future at any point leaves no lock behind. The waiter loses its position in the
/// queue, and a new call starts at the end.
#[derive(Clone, Debug)]
#[must_use = "nothing is sent until it is awaited"]
pub struct Acquire {
    pub(crate) key: Result<Key, Error>,
    pub(crate) options: LeaseOptions,
}

lease_options!(Acquire);

impl Acquire {
    /// Bounds the wait for the key. Without this option the wait has no bound.
    ///
    /// When the time is over, the first waiter sends a last request, unless other waiters stand behind it and the last
    /// answer is less than half a second old. If a request is under way at that moment, the acquire still waits for its
    /// answer. For a bound that holds even if the store does not answer, put `tokio::time::timeout` around the acquire,
    /// which is cancel safe. With a time of zero the acquire asks once, and does not join the queue. Only after an error
    /// that a retry can fix is the request sent again, up to three times in all.
    pub fn wait_for(mut self, time: Duration) -> Self {
        self.options.wait_policy = WaitPolicy::For(time);
        self
    }
}

impl IntoFuture for Acquire {
    type Output = Result<Lease, Error>;
    type IntoFuture = BoxFuture<'static, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move { start::acquire(self.options, self.key).await?.acquired() })
    }
}
