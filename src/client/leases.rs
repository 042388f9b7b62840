//! `Leases`, the handle of an application: what it acquires, shows and frees, and its close.

use std::{fmt, sync::Arc, time::Duration};

use futures::{
    StreamExt, TryStreamExt,
    stream::{self, BoxStream},
};
use tokio::sync::watch;
use tracing::Instrument;

use super::{
    builder::{LeasesBuilder, this_process},
    call::call,
};
use crate::{
    acquire::{Acquire, AcquireAll, AcquireContext, RefusedKeys, Resume, TryAcquire},
    coalescer::Coalescer,
    lease::{LeaseRegistry, Ticket},
    limiter::{Limiter, LimiterContext},
    messages::{Eviction, Filter, ListRequest, ReleaseAnswer, ReleaseRequest},
    model::{Error, Key, LockState, Quota},
    store::Store,
    telemetry,
};

/// How many documents a list asks for at a time.
const PAGE: usize = 500;
/// How many leases of an owner are released at the same time.
const RELEASES_AT_ONCE: usize = 16;

/// Acquires leases from a store, and shows and frees them.
///
/// Cloning is cheap and gives another handle to the same. An application makes one and keeps it.
///
/// ```
/// use std::time::Duration;
/// use leasehold::{Attempt, Leases, MemoryStore};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), leasehold::Error> {
/// let leases = Leases::new(MemoryStore::new());
/// let lease = leases.acquire("report:42", Duration::from_secs(30)).await?;
/// match leases.try_acquire("report:42", Duration::from_secs(30)).await? {
///     Attempt::Acquired(_) => unreachable!("it is held"),
///     Attempt::Held(held) => println!("held by {}, for {:?} more", held.owner(), held.expires_in()),
/// }
/// lease.release().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Leases {
    acquires: Arc<AcquireContext>,
    limiters: Arc<LimiterContext>,
}

impl Leases {
    /// Leases on this store, with the defaults of [`Leases::builder`].
    pub fn new(store: impl Store) -> Self {
        Self::builder(store).build()
    }

    /// Leases on this store, with options.
    pub fn builder(store: impl Store) -> LeasesBuilder {
        LeasesBuilder::new(store)
    }

    /// Who the leases of this handle belong to, as others see it.
    pub fn owner(&self) -> &str {
        &self.acquires.owner
    }

    /// Asks for the key once, without waiting for a holder.
    ///
    /// Await the returned builder: it gives [`Attempt::Acquired`](crate::Attempt::Acquired) or
    /// [`Attempt::Held`](crate::Attempt::Held).
    ///
    /// The key is 1 to 512 bytes of text. The ttl is cut to whole milliseconds; it is at least
    /// twice the clock margin and at most [`MAX_TTL`](crate::limits::MAX_TTL).
    pub fn try_acquire(&self, key: impl AsRef<str>, ttl: Duration) -> TryAcquire {
        TryAcquire::new(self.acquires.clone(), Key::new(key), ttl)
    }

    /// Waits until the key is free and takes it, like a mutex.
    ///
    /// Await the returned builder; [`Acquire::wait_for`] bounds the wait. Key and ttl are as for
    /// [`Leases::try_acquire`].
    pub fn acquire(&self, key: impl AsRef<str>, ttl: Duration) -> Acquire {
        Acquire::new(self.acquires.clone(), Key::new(key), ttl)
    }

    /// Takes several keys, all or none of them, as one.
    ///
    /// Await the returned builder: it gives a [`LeaseSet`](crate::LeaseSet). A key that stands there
    /// twice is taken once. Keys and ttl are as for [`Leases::try_acquire`].
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use leasehold::{Leases, MemoryStore};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), leasehold::Error> {
    /// # let leases = Leases::new(MemoryStore::new());
    /// let both = leases.acquire_all(["account:7", "account:3"], Duration::from_secs(30)).await?;
    /// // Move money from one to the other.
    /// both.release().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn acquire_all<K: AsRef<str>>(
        &self,
        keys: impl IntoIterator<Item = K>,
        ttl: Duration,
    ) -> AcquireAll {
        let keys = keys.into_iter().map(Key::new);
        AcquireAll::new(self.acquires.clone(), keys, ttl)
    }

    /// Goes on with a lease that another process, or this one, has let go of by
    /// [`Lease::into_ticket`](crate::Lease::into_ticket).
    ///
    /// Await the returned builder: it gives [`Resumed::Live`](crate::Resumed::Live), with the same
    /// fence and a whole ttl, or [`Resumed::Gone`](crate::Resumed::Gone).
    pub fn resume(&self, ticket: &Ticket) -> Resume {
        Resume::new(self.acquires.clone(), ticket.clone())
    }

    /// A limiter that lets through at most so many calls a window, on the database's clock.
    ///
    /// Its windows are fixed unless [`Limiter::smooth`] says otherwise. Nothing is sent, and bad input is
    /// refused, when a permit is asked for: a limit of 0 ([`Error::InvalidLimit`]), a window below a
    /// millisecond or above [`MAX_WINDOW`](crate::limits::MAX_WINDOW) ([`Error::InvalidWindow`]). The window is cut
    /// to whole milliseconds. The key is 1 to 512 bytes of text; locks of the same key do not matter.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use leasehold::{Leases, MemoryStore};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), leasehold::Error> {
    /// # let leases = Leases::new(MemoryStore::new());
    /// let limiter = leases.limiter("partner-api", 10, Duration::from_secs(1));
    /// limiter.permit().await?;
    /// // Call the partner.
    /// # Ok(())
    /// # }
    /// ```
    pub fn limiter(&self, key: impl AsRef<str>, limit: u32, window: Duration) -> Limiter {
        let quota = Quota::fixed(limit, window);
        Limiter::new(self.limiters.clone(), Key::new(key), quota)
    }

    /// Who holds the key now; `None` if it has no document, because it was never locked or has
    /// been cleaned up.
    ///
    /// # Errors
    ///
    /// As [`Error`] says: a bad key, a store that cannot be reached or refuses, a document that is
    /// not a lock.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: it changes nothing.
    pub async fn inspect(&self, key: impl AsRef<str>) -> Result<Option<LockState>, Error> {
        let key = Key::new(key)?;
        let named = key.clone();
        let work = async move |store: Arc<dyn Store>| store.inspect(&key).await;
        call(&self.acquires.registry, "inspect", Some(&named), work).await
    }

    /// The locks that a filter lets through, in the order of their keys, page by page.
    ///
    /// Locks that come and go meanwhile may be missed or shown, but none is shown twice, and one
    /// that stays is not missed.
    ///
    /// ```
    /// use futures::TryStreamExt;
    /// use leasehold::{Filter, Leases, MemoryStore};
    ///
    /// # async fn example(leases: Leases) -> Result<(), leasehold::Error> {
    /// let mut held = leases.list(Filter::new().prefix("report:").live());
    /// while let Some(lock) = held.try_next().await? {
    ///     println!("{} for {:?} more", lock.key, lock.expires_in());
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`Leases::inspect`]; after an error the stream ends.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: it changes nothing.
    pub fn list(&self, filter: Filter) -> BoxStream<'static, Result<LockState, Error>> {
        let first = Some(ListRequest::new(filter, None, PAGE));
        let this = self.clone();
        let pages = stream::try_unfold(first, move |request| {
            let this = this.clone();
            async move {
                let Some(request) = request else {
                    return Ok(None);
                };
                let filter = request.filter.clone();
                let page = call(&this.acquires.registry, "list", None, async move |store| {
                    store.list(&request).await
                })
                .await?;
                let next = page
                    .next
                    .map(|key| ListRequest::new(filter, Some(key), PAGE));
                Ok(Some((stream::iter(page.locks).map(Ok), next)))
            }
        });
        pages.try_flatten().boxed()
    }

    /// Releases every live lease of an owner, whichever process holds it, and says how many.
    ///
    /// For a process that starts again under the name of one that died, and for shutting down one
    /// that does not do it itself. The holders are not asked: see [`Leases::evict`].
    ///
    /// # Errors
    ///
    /// As for [`Leases::inspect`]. What was released before the error stays released, and the call
    /// can be repeated.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future does not stop the releases that were sent. A repeated call is harmless.
    pub async fn release_owner(&self, owner: &str) -> Result<u64, Error> {
        let leases_of = |lock: LockState| {
            let key = lock.key;
            let owned = lock
                .holders
                .into_iter()
                .filter(|holder| &*holder.owner == owner);
            let requests: Vec<_> = owned
                .map(|holder| ReleaseRequest::new(key.clone(), holder.lease))
                .collect();
            stream::iter(requests).map(Ok)
        };
        self.list(Filter::new().owner(owner))
            .map_ok(leases_of)
            .try_flatten()
            .map_ok(async |request: ReleaseRequest| {
                let key = request.key.clone();
                let work = async move |store: Arc<dyn Store>| store.release(&request).await;
                let answer = call(&self.acquires.registry, "release", Some(&key), work).await;
                answer.inspect(|_| self.acquires.registry.queues.opened(&key))
            })
            .try_buffer_unordered(RELEASES_AT_ONCE)
            .try_fold(0, async |released, answer| {
                Ok(released + u64::from(answer == ReleaseAnswer::Released))
            })
            .await
            .inspect(|released| telemetry::released_owner(owner, *released))
    }

    /// Frees the key by force and raises its fence: for an operator who knows that the holder is
    /// gone, and cannot wait for the ttl. `None` if the key has no document.
    ///
    /// The evicted holder is not asked. It finds out at its next renewal, or when it releases: both are told
    /// that the lease is lost, whether or not another was granted the key. And a resource that checks the fence refuses it as soon as the
    /// next holder has written.
    ///
    /// # Errors
    ///
    /// As for [`Leases::inspect`]. After an error that
    /// [is ambiguous](Error::is_ambiguous), look before you evict again: a new holder may be there.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future does not stop an eviction that was sent.
    pub async fn evict(&self, key: impl AsRef<str>) -> Result<Option<Eviction>, Error> {
        let key = Key::new(key)?;
        let named = key.clone();
        let work = async move |store: Arc<dyn Store>| store.evict(&key).await;
        let evicted = call(&self.acquires.registry, "evict", Some(&named), work).await;
        evicted.inspect(|eviction| {
            telemetry::evicted(&named, eviction.as_ref());
            self.acquires.registry.queues.opened(&named);
        })
    }

    /// Removes the document of a key that nobody holds, and says whether it did.
    ///
    /// Locking never needs this: an expired lease is taken over in place. It can never remove a
    /// lock that was just taken over, because expiry is checked in the same step, on the server's
    /// clock (the bounded delete of `MongoDistributedLock`). A document whose fence runs ahead of
    /// the server's clock stays until the clock has passed it, so that the next fence is greater.
    ///
    /// # Errors
    ///
    /// As for [`Leases::inspect`].
    ///
    /// # Cancel safety
    ///
    /// Dropping the future does not stop a removal that was sent. A repeated one is harmless.
    pub async fn remove_expired(&self, key: impl AsRef<str>) -> Result<bool, Error> {
        let key = Key::new(key)?;
        let named = key.clone();
        let work = async move |store: Arc<dyn Store>| store.remove_expired(&key).await;
        let removed = call(
            &self.acquires.registry,
            "remove expired",
            Some(&named),
            work,
        )
        .await;
        removed.inspect(|removed| telemetry::removed(&named, *removed))
    }

    /// Removes every lock without a live holder since this long, and every limiter that means nothing any
    /// more since this long, and says how many.
    ///
    /// It never removes a lock that is live, or that was taken or renewed meanwhile. A store that
    /// cleans up by itself, as MongoDB does by a TTL index, does not need it. Elasticsearch and
    /// OpenSearch count the retention in whole seconds.
    ///
    /// # Errors
    ///
    /// As for [`Leases::inspect`]. A purge of very many locks may take longer than the call timeout;
    /// it then goes on after [`Error::TimedOut`], and can be repeated.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future does not stop a purge that was sent. A repeated one is harmless.
    pub async fn purge(&self, retention: Duration) -> Result<u64, Error> {
        let work = async move |store: Arc<dyn Store>| store.purge(retention).await;
        let purged = call(&self.acquires.registry, "purge", None, work).await;
        purged.inspect(|removed| telemetry::purged(*removed, retention))
    }

    /// Releases every lease of this handle and its clones, and waits until that is done: for the end
    /// of a program.
    ///
    /// From now on an acquire answers [`Error::Closed`], also one that waits. Guards that still
    /// live are lost ([`LossReason::Closed`](crate::LossReason::Closed)). What was dropped before
    /// and is still to be released is waited for too, and so are requests under way, but for those of
    /// limiters, after which nothing has to be released. If the store
    /// does not answer, that takes as long as the longest ttl and the
    /// [`call_timeout`](LeasesBuilder::call_timeout) at the worst, so put `tokio::time::timeout` around
    /// it where the end must not take that long.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use leasehold::{Error, Leases, MemoryStore};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Error> {
    /// # let leases = Leases::new(MemoryStore::new());
    /// let lease = leases.acquire("leader", Duration::from_secs(10)).keep_alive().await?;
    /// leases.close().await;
    /// assert!(!lease.is_live());
    /// let late = leases.try_acquire("leader", Duration::from_secs(10)).await;
    /// assert!(matches!(late, Err(Error::Closed)));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Cancel safety
    ///
    /// Dropping the future only stops the waiting. It can be called again, to wait again.
    pub async fn close(&self) {
        let close = self.acquires.registry.close();
        close.instrument(telemetry::close()).await;
    }

    /// Whether [`close`](Leases::close) was called.
    pub fn is_closed(&self) -> bool {
        self.limiters.lifecycle.is_closing()
    }
}

impl LeasesBuilder {
    /// The leases. Nothing is sent or spawned yet.
    pub fn build(self) -> Leases {
        let late = Arc::new(watch::Sender::new(false));
        let coalescer = Coalescer::new(self.store.clone(), late.subscribe());
        let (store, limit) = (self.store, self.call_timeout);
        let registry = LeaseRegistry::new(store.clone(), coalescer.clone(), limit, late);
        let lifecycle = registry.lifecycle.clone();
        Leases {
            acquires: Arc::new(AcquireContext {
                registry: Arc::new(registry),
                coalescer,
                owner: self.owner.unwrap_or_else(this_process),
                clock_margin: self.clock_margin,
                refused: RefusedKeys::default(),
            }),
            limiters: Arc::new(LimiterContext::new(store, limit, lifecycle)),
        }
    }
}

impl fmt::Debug for Leases {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Leases")
            .field("store", &self.limiters.store)
            .field("owner", &self.acquires.owner)
            .finish_non_exhaustive()
    }
}
