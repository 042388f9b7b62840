//! The calls with which people and programs look at locks and free them: inspect, list, evict, and the clean-up.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use futures::{
    StreamExt, TryStreamExt,
    stream::{self, BoxStream},
};

use super::{
    call::{self, call},
    leases::Leases,
};
use crate::{
    key::Keys,
    messages::{Eviction, Filter, ListRequest, ReleaseAnswer, ReleaseRequest},
    model::{Done, Error, Key, LeaseId, LockState},
    runtime,
    store::Store,
    telemetry,
};

/// How many documents the store reads for one page of a list.
const PAGE: usize = 500;
/// How many releases [`Leases::release_owner`] has under way at the same time.
const MAX_CONCURRENT_RELEASES: usize = 16;

impl Leases {
    /// Returns the state of a key: its holders, its fence, and the processes that wait for it. `None` if the store has
    /// no document for the key, because it was never locked or was cleaned up.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use leasehold::{Leases, MemoryStore};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), leasehold::Error> {
    /// # let leases = Leases::new(MemoryStore::new());
    /// let lease = leases.acquire("report:42", Duration::from_secs(30)).note("by hand").await?;
    /// if let Some(lock) = leases.inspect("report:42").await? {
    ///     for holder in &lock.holders {
    ///         println!("{} until {}: {:?}", holder.owner, holder.expires_at, holder.note);
    ///     }
    /// }
    /// # lease.release().await
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::InvalidKey`]; [`Error::NotALock`] and [`Error::UnsupportedSchema`] if the document is not a lock that
    /// this version can read; otherwise the error of the store, or [`Error::TimedOut`] after the
    /// [`call_timeout`](crate::LeasesBuilder::call_timeout). The request is sent once, and not repeated after an error.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: it changes nothing.
    pub async fn inspect(&self, key: impl AsRef<str>) -> Result<Option<LockState>, Error> {
        call::inspect(&self.acquires.keys, Key::new(key)?).await
    }

    /// Returns the newest done tick of a job. `None` if no tick is done, or if the store does not keep it any more: see
    /// [`RunOnce::kept_for`](crate::jobs::RunOnce::kept_for).
    ///
    /// ```
    /// # use leasehold::{Leases, MemoryStore, jobs::Tick};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let leases = Leases::new(MemoryStore::new());
    /// let report = leases.once("report", Tick::counter(7));
    /// let _ = report.run(async |_| Ok::<_, std::io::Error>(())).await?;
    /// let done = leases.last_done("report").await?;
    /// assert_eq!(done.map(|done| done.tick), Some(Tick::counter(7)));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`Leases::inspect`].
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: it changes nothing.
    pub async fn last_done(&self, key: impl AsRef<str>) -> Result<Option<Done>, Error> {
        Ok(self.inspect(key).await?.and_then(|state| state.done))
    }

    /// Streams the locks that match a filter, in the order of their keys. The stream requests one page at a time from
    /// the store.
    ///
    /// A lock that matches all the time is shown once. A lock that begins or ceases to match while the stream runs may
    /// be missed. A document that cannot be read as a lock is left out, and an event at WARN names its key.
    ///
    /// ```
    /// use futures::TryStreamExt;
    /// use leasehold::{Filter, Leases, MemoryStore};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), leasehold::Error> {
    /// # let leases = Leases::new(MemoryStore::new());
    /// let mut held = leases.list(Filter::new().prefix("report:").live());
    /// while let Some(lock) = held.try_next().await? {
    ///     println!("{} for another {:?}", lock.key, lock.expires_in());
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// The error of the store, or [`Error::TimedOut`] if a page takes longer than the
    /// [`call_timeout`](crate::LeasesBuilder::call_timeout). After an error the stream ends.
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
                let page = call(&this.acquires.keys, "list", None, async move |store| {
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

    /// Releases every live lease of an owner, in all processes, and returns how many it released.
    ///
    /// A process that restarts under the same owner can free the keys that it held before it died. An operator can free
    /// the keys of a process that does not release them. The holders are not asked: as after [`Leases::evict`], each
    /// learns of the loss at its next renewal or its release. A [`min_hold`](crate::Acquire::min_hold) that keeps a
    /// released key held ends too, and counts as a lease.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use leasehold::{Leases, MemoryStore};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), leasehold::Error> {
    /// # let leases = Leases::new(MemoryStore::new());
    /// leases.acquire("report:42", Duration::from_secs(30)).owner("pod-3").await?.detach()?;
    /// assert_eq!(leases.release_owner("pod-3").await?, 1);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`Leases::list`]. Leases that were released before the error stay released. The call can be repeated.
    ///
    /// # Cancel safety
    ///
    /// After a drop no more releases are sent. Releases that were sent before are carried out. A repeated call is
    /// harmless.
    pub async fn release_owner(&self, owner: &str) -> Result<u64, Error> {
        let leases_of = |lock: LockState| {
            let owned = lock.holders.into_iter().filter(|it| &*it.owner == owner);
            let requests = owned.map(|it| Ok(ReleaseRequest::new(lock.key.clone(), it.lease)));
            stream::iter(requests.collect::<Vec<_>>())
        };
        self.list(Filter::new().owner(owner))
            .map_ok(leases_of)
            .try_flatten()
            .map_ok(async |request: ReleaseRequest| {
                let key = request.key.clone();
                let keys = Arc::downgrade(&self.acquires.keys);
                let work = async move |store: Arc<dyn Store>| {
                    let released = runtime::caught(store.release(&request)).await;
                    let ended = released.as_ref().map(|_| vec![request.lease]);
                    ended_here(&keys, &request.key, ended);
                    released
                };
                call(&self.acquires.keys, "release", Some(&key), work).await
            })
            .try_buffer_unordered(MAX_CONCURRENT_RELEASES)
            .try_fold(0, async |released, answer| {
                Ok(released + u64::from(answer == ReleaseAnswer::Released))
            })
            .await
            .inspect(|released| telemetry::released_owner(owner, *released))
    }

    /// Ends every lease on the key by force, and raises the fence of the key. `None` if the key has no document.
    ///
    /// Use this if the holder is known to be dead, and the ttl is too long to wait for. The holder is not asked. Its
    /// next renewal or its release returns [`Error::Lost`], whether or not the key was granted again meanwhile. A
    /// resource that checks the fence refuses the evicted holder's writes once the next holder has written.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use leasehold::{Leases, MemoryStore};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), leasehold::Error> {
    /// # let leases = Leases::new(MemoryStore::new());
    /// let lease = leases.acquire("report:42", Duration::from_secs(30)).await?;
    /// if let Some(eviction) = leases.evict("report:42").await? {
    ///     println!("{} holders were evicted", eviction.evicted.len());
    /// }
    /// assert!(lease.renew().await.is_err());
    /// # Ok(())
    /// # }
    /// ```
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
        let keys = Arc::downgrade(&self.acquires.keys);
        let work = async move |store: Arc<dyn Store>| {
            let evicted = runtime::caught(store.evict(&key)).await;
            let ended = evicted.as_ref().map(|eviction| {
                let holders = eviction.iter().flat_map(|it| &it.evicted);
                holders.map(|it| it.lease).collect()
            });
            ended_here(&keys, &key, ended);
            evicted
        };
        let evicted = call(&self.acquires.keys, "evict", Some(&named), work).await;
        evicted.inspect(|eviction| telemetry::evicted(&named, eviction.as_ref()))
    }

    /// Removes the document of a key that has no live holder, and returns whether it removed one. If processes wait for
    /// the key, their places are in the document: each takes a new place when it asks again.
    ///
    /// Locks work without this call, because a takeover uses the document of the expired lease. The store checks the
    /// expiry and removes the document in one step, on its own clock, so it never removes the document of a live
    /// holder. A document whose fence is ahead of the server's clock stays until the clock has passed it: without the
    /// document the next grant would take its fence from the clock, and that fence would be smaller.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use leasehold::{Leases, MemoryStore};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), leasehold::Error> {
    /// # let leases = Leases::new(MemoryStore::new());
    /// leases.acquire("upload:7", Duration::from_secs(30)).await?.release().await?;
    /// let removed = leases.remove_expired("upload:7").await?;
    /// println!("{}", if removed { "removed" } else { "held, not there, or kept for its fence" });
    /// # Ok(())
    /// # }
    /// ```
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
        let removed = call(&self.acquires.keys, "remove expired", Some(&named), work).await;
        removed.inspect(|removed| telemetry::removed(&named, *removed))
    }

    /// Removes the documents of locks and limiters that have been unused for at least `retention`, and returns how many
    /// it removed.
    ///
    /// A lock is unused while it has no live holder and its fence is not ahead of the server's clock. A limiter is
    /// unused when its count no longer limits a request. A lock that is granted or renewed during the purge stays.
    /// MongoDB removes old documents by a TTL index and does not need this call, unless the store works [without
    /// pipelines](crate::MongoStore::without_pipelines).
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use leasehold::{Leases, MemoryStore};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), leasehold::Error> {
    /// # let leases = Leases::new(MemoryStore::new());
    /// let day = Duration::from_secs(24 * 60 * 60);
    /// let removed = leases.purge(day).await?;
    /// println!("{removed} documents were removed");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// The error of the store. A purge of very many locks may take longer than the
    /// [`call_timeout`](crate::LeasesBuilder::call_timeout). This call then returns [`Error::TimedOut`] while the purge
    /// goes on. It can be repeated.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future does not stop a purge that was sent. A repeated call is harmless.
    pub async fn purge(&self, retention: Duration) -> Result<u64, Error> {
        let work = async move |store: Arc<dyn Store>| store.purge(retention).await;
        let purged = call(&self.acquires.keys, "purge", None, work).await;
        purged.inspect(|removed| telemetry::purged(*removed, retention))
    }
}

/// Sees to it that nothing is granted from memory under these leases, which this process has ended in the store, and
/// that a task that waits for the key asks at once. This belongs to the request and not to its caller, who may not wait
/// for the answer.
fn ended_here(keys: &Weak<Keys>, key: &Key, ended: Result<Vec<LeaseId>, &Error>) {
    let Some(keys) = keys.upgrade() else {
        return;
    };
    match ended {
        Ok(leases) => {
            let ended = |lease| keys.ended_here(key, Some(lease));
            leases.into_iter().for_each(ended);
        }
        Err(error) if error.leaves_doubt() => keys.ended_here(key, None),
        Err(_) => return,
    }
    keys.freed_here(key);
}
