//! `Leases`, the handle of an application: it acquires, shows and frees locks, and is closed at the end.

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
    leader::Leader,
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

/// How many documents the store reads for one page of a list.
const PAGE: usize = 500;
/// How many releases [`Leases::release_owner`] has under way at the same time.
const MAX_CONCURRENT_RELEASES: usize = 16;

/// Acquires leases from a store, and shows and frees them.
///
/// A clone is cheap, and shares the leases, the waiters and the close. An application makes one and keeps it.
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
    pub(super) acquires: Arc<AcquireContext>,
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

    /// The owner that other processes see on a held key, unless an acquire has an owner of its own.
    pub fn owner(&self) -> &str {
        &self.acquires.owner
    }

    /// Asks for the key once, without waiting for a holder.
    ///
    /// Await the returned builder: it gives [`Attempt::Acquired`](crate::Attempt::Acquired) or
    /// [`Attempt::Held`](crate::Attempt::Held).
    ///
    /// The key is 1 to 512 bytes of text. The ttl is cut to whole milliseconds. It is at least
    /// 1 ms and twice the clock margin, and at most [`MAX_TTL`](crate::limits::MAX_TTL).
    pub fn try_acquire(&self, key: impl AsRef<str>, ttl: Duration) -> TryAcquire {
        TryAcquire::new(self.acquires.clone(), Key::new(key), ttl)
    }

    /// Waits until the key is free and acquires it, like a mutex.
    ///
    /// Await the returned builder; [`Acquire::wait_for`] bounds the wait. Key and ttl are as for
    /// [`Leases::try_acquire`].
    pub fn acquire(&self, key: impl AsRef<str>, ttl: Duration) -> Acquire {
        Acquire::new(self.acquires.clone(), Key::new(key), ttl)
    }

    /// Waits for several keys, and acquires all of them or none.
    ///
    /// Await the returned builder: it gives a [`LeaseSet`](crate::LeaseSet). A key that is named
    /// twice is acquired once. Keys and ttl are as for [`Leases::try_acquire`].
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

    /// Makes a candidate for the lead: of all that [run](Leader::run) with this key, one leads, and the others wait.
    ///
    /// This call sends nothing and checks nothing; [`Leader::run`] does. Key and ttl are as for
    /// [`Leases::try_acquire`]. The ttl is how long the others are without a leader if it dies.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use leasehold::{Error, Leases, Term};
    /// # async fn lead(term: &Term) -> std::io::Result<()> { Ok(()) }
    /// # async fn example(leases: Leases) -> Result<(), Error> {
    /// let leader = leases.leader("scheduler", Duration::from_secs(10));
    /// leader.run(async |term| lead(term).await).await
    /// # }
    /// ```
    pub fn leader(&self, key: impl AsRef<str>, ttl: Duration) -> Leader {
        Leader::new(self.acquires.clone(), key.as_ref(), ttl)
    }

    /// Continues a lease that this process or another one turned into a ticket, by
    /// [`Lease::into_ticket`](crate::Lease::into_ticket).
    ///
    /// Await the returned builder: it gives [`Resumed::Live`](crate::Resumed::Live), with the same
    /// fence and a new ttl from now, or [`Resumed::Gone`](crate::Resumed::Gone) if the lease is over.
    pub fn resume(&self, ticket: &Ticket) -> Resume {
        Resume::new(self.acquires.clone(), ticket.clone())
    }

    /// Makes a limiter that grants at most `limit` permits per window, on the server's clock.
    ///
    /// Its windows are fixed unless [`Limiter::smooth`] says otherwise. This call sends nothing and checks
    /// nothing. The first request for a permit refuses a limit of 0 ([`Error::InvalidLimit`]), and a window below
    /// a millisecond or above [`MAX_WINDOW`](crate::limits::MAX_WINDOW) ([`Error::InvalidWindow`]). The window is cut
    /// to whole milliseconds. The key is 1 to 512 bytes of text. A lock and a limiter may have the same key.
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

    /// Gives the holders of the key. `None` if the store has no document for it, because it was never locked
    /// or was cleaned up.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidKey`]; [`Error::NotALock`] and [`Error::UnsupportedSchema`] if the document is not a lock
    /// that this version can read; otherwise the error of the store, [`Error::TimedOut`] after the
    /// [`call_timeout`](LeasesBuilder::call_timeout). The call is sent once.
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

    /// Streams the locks that match a filter, in the order of their keys. The stream asks the store for one page
    /// at a time.
    ///
    /// A lock that begins or ceases to match while the stream runs may be shown or missed. A lock that matches all
    /// the time is shown once. A document that cannot be read as a lock is left out, and an event at WARN names its
    /// key.
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
    /// The error of the store, or [`Error::TimedOut`] if a page takes longer than the
    /// [`call_timeout`](LeasesBuilder::call_timeout). After an error the stream ends.
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

    /// Releases every live lease of an owner, in whichever process its holder is, and gives how many.
    ///
    /// A process that starts again with the owner of a dead process can free the keys of that process, and an
    /// operator can free the keys of a process that does not release them. The holders are not asked: as after
    /// [`Leases::evict`], each learns of the loss at its next renewal or its release. A
    /// [`min_hold`](Acquire::min_hold) that keeps a released key held ends too, and counts as a lease.
    ///
    /// # Errors
    ///
    /// As for [`Leases::list`]. The leases that were released before the error stay released, and the call
    /// can be repeated.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future does not stop the releases that were sent, and sends no more. A repeated call is
    /// harmless.
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
                answer.inspect(|_| self.acquires.registry.queues.wake_first(&key))
            })
            .try_buffer_unordered(MAX_CONCURRENT_RELEASES)
            .try_fold(0, async |released, answer| {
                Ok(released + u64::from(answer == ReleaseAnswer::Released))
            })
            .await
            .inspect(|released| telemetry::released_owner(owner, *released))
    }

    /// Ends every lease on the key by force and raises its fence. `None` if the key has no document.
    ///
    /// Use it if the holder is known to be dead, and the ttl is too long to wait for. The holder is not asked. Its
    /// next renewal or its release gives [`Error::Lost`], whether or not the key was granted again meanwhile. A
    /// resource that checks the fence refuses the evicted holder's writes once the next holder has written.
    ///
    /// # Errors
    ///
    /// As for [`Leases::inspect`]. After an error that [is ambiguous](Error::is_ambiguous), inspect the key before
    /// you evict again: the eviction may have been carried out, and the key granted to a new holder.
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
            self.acquires.registry.queues.wake_first(&named);
        })
    }

    /// Removes the document of a key that has no live holder, and returns whether it removed one.
    ///
    /// Locks work without this call: a takeover uses the document of the expired lease. The store checks
    /// the expiry and removes the document in one step, on its own clock, so it never removes the document of a
    /// live holder. A document whose fence is ahead of the server's clock stays until the clock has passed it.
    /// The next grant takes its fence from the clock, and would otherwise have a smaller fence.
    ///
    /// # Errors
    ///
    /// As for [`Leases::inspect`].
    ///
    /// # Cancel safety
    ///
    /// Dropping the future does not stop a removal that was sent. A repeated call is harmless.
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

    /// Removes the documents of locks and limiters that have been unused for at least `retention`, and gives how many
    /// it removed.
    ///
    /// A lock is unused while it has no live holder and its fence is not ahead of the server's clock. A limiter is
    /// unused when its count no longer limits a request. A lock that is granted or renewed during the purge stays.
    /// MongoDB removes old documents by a TTL index, and does not need this call, unless its store does [without
    /// pipelines](crate::MongoStore::without_pipelines). Elasticsearch and OpenSearch round
    /// the retention up to whole seconds.
    ///
    /// # Errors
    ///
    /// The error of the store. A purge of very many locks may take longer than the
    /// [`call_timeout`](LeasesBuilder::call_timeout): then this gives [`Error::TimedOut`] while the purge goes
    /// on, and the call can be repeated.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future does not stop a purge that was sent. A repeated call is harmless.
    pub async fn purge(&self, retention: Duration) -> Result<u64, Error> {
        let work = async move |store: Arc<dyn Store>| store.purge(retention).await;
        let purged = call(&self.acquires.registry, "purge", None, work).await;
        purged.inspect(|removed| telemetry::purged(*removed, retention))
    }

    /// Releases every lease of this handle and its clones, and waits until that is done. Call it at the end
    /// of a program.
    ///
    /// From now on an acquire gives [`Error::Closed`], also one that waits already. The leases of guards that still
    /// exist are lost ([`LossReason::Closed`](crate::LossReason::Closed)). The close also waits for the releases of
    /// guards that were dropped before, and for acquires that are under way. It does not wait for other requests,
    /// because nothing has to be released after them.
    ///
    /// If the store does not answer, the close gives up after the longest ttl and a few
    /// [`call_timeout`](LeasesBuilder::call_timeout)s; with more than a thousand leases it takes longer. Put
    /// `tokio::time::timeout` around it if the program must end sooner.
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
    /// Dropping the future only stops the waiting: the releases go on. Another call waits again.
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
    /// Makes the handle. It sends nothing and spawns no task.
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
