//! The trait of a store, and the types that an author of a store needs: requests, answers and ids.
//!
//! A store keeps one document for each key, and carries out the [rules] on it. [`Store`] says what an
//! implementation has to do.

mod arc;
#[cfg(any(feature = "mongodb", feature = "elasticsearch", feature = "opensearch"))]
pub(crate) mod clock;
#[cfg(any(feature = "elasticsearch", feature = "opensearch"))]
pub(crate) mod elasticsearch;
#[cfg(test)]
#[cfg(any(feature = "mongodb", feature = "elasticsearch", feature = "opensearch"))]
mod hostile_texts;
#[cfg(any(feature = "elasticsearch", feature = "opensearch", feature = "sqlite"))]
pub(crate) mod json;
#[cfg(any(
    feature = "elasticsearch",
    feature = "mongodb",
    feature = "opensearch",
    feature = "sqlite"
))]
mod listing;
pub(crate) mod memory;
#[cfg(feature = "mongodb")]
pub(crate) mod mongodb;
#[cfg(test)]
#[cfg(any(feature = "mongodb", feature = "elasticsearch", feature = "opensearch"))]
mod protocol_pages;
#[cfg(feature = "sqlite")]
pub(crate) mod sqlite;
#[cfg(any(
    feature = "elasticsearch",
    feature = "mongodb",
    feature = "opensearch",
    feature = "sqlite"
))]
pub(crate) mod stored;

use std::{any::Any, fmt, time::Duration};

use async_trait::async_trait;
use futures::{future::join_all, stream::BoxStream};

pub use crate::{
    messages::{
        AcquireAnswer, AcquireRequest, BatchAnswer, BatchAnswers, BatchRequest, ConvertAnswer,
        ConvertRequest, DoneTick, Earlier, Eviction, GiveBackRequest, Grant, InTurn, KnownGrant,
        ListRequest, LookAnswer, LookRequest, MAX_BATCH, MAX_RENEWALS, MinHold, OwnLeases, Page,
        PermitAnswer, PermitRequest, ReleaseAnswer, ReleaseKind, ReleaseRequest, RenewAnswer,
        RenewAnswers, RenewRequest, Turn,
    },
    model::{
        Access, Cause, Conversion, LastDone, LeaseId, LimiterRecord, LockRecord, PermitId, Permits,
        Quota, SCHEMA, WindowKind,
    },
};
use crate::{
    model::{Error, Key, LockState, PermitsLeft},
    rules,
};

/// Keeps locks and limiters: the interface between [`Leases`](crate::Leases) and a database.
///
/// An application makes one of the stores of this crate, and gives it to [`Leases::new`](crate::Leases::new). It needs
/// the methods of this trait only for tests, or for a store of its own.
///
/// A store that is chosen when the program runs is an `Arc<dyn Store>`, which is a store too. Its clones are one store.
/// (`leasehold::address::open`, with the feature `address`, makes one by an address.)
///
/// ```
/// use std::sync::Arc;
/// use leasehold::{Leases, MemoryStore, Store};
///
/// /// Locks in memory for tests, and otherwise in the store of the application: a `MongoStore`, for example.
/// fn leases(is_test: bool, of_application: impl Store) -> Leases {
///     let store: Arc<dyn Store> = match is_test {
///         true => Arc::new(MemoryStore::new()),
///         false => Arc::new(of_application),
///     };
///     println!("the locks are in {}", store.name());
///     Leases::new(store)
/// }
/// # leases(true, MemoryStore::new());
/// ```
///
/// # What an implementation has to do
///
/// - Each operation on a key is atomic, uses the clock of the server, and takes one round trip. A
///   [`batch`](Store::batch) of several requests, a refusal that takes a place, and a release beside other holders may
///   take two.
/// - Each operation follows the function of the same name in [`rules`].
/// - A lock and a limiter with the same key do not affect each other.
/// - The store does not retry, and knows nothing of guards: `Leases` does all that. It sends a request again only after
///   a race that the database reports instead of resolving.
/// - It changes no document that is not a lock or a limiter of a version that it knows.
///
/// The crate `leasehold-conformance` has the tests that every store must pass. Until version 1.0 methods may be added.
///
/// # Errors
///
/// `Leases` decides by the error whether it has to clean up after a request:
///
/// - [`Error::Unreachable`], [`Error::Denied`] and [`Error::Overloaded`] only if nothing was changed for certain.
/// - [`Error::Interrupted`] if the request may have been carried out, and whenever that is not known.
/// - [`Error::NotALock`], [`Error::NotALimiter`] or [`Error::UnsupportedSchema`] for a document that the store must not
///   change.
/// - [`Error::Store`] for a failure that a retry cannot fix.
///
/// That a key is held is not an error but an answer, such as [`AcquireAnswer::Held`].
///
/// # Cancel safety
///
/// The futures need not be cancel safe: [`Leases`](crate::Leases) runs each of them to its end, if necessary in a task
/// of its own.
///
/// # Example
///
/// A store around another store, for a test that needs the number of requests:
///
/// ```
/// use std::{sync::atomic::{AtomicU64, Ordering}, time::Duration};
/// use async_trait::async_trait;
/// use leasehold::{Error, Key, Leases, LockState, MemoryStore, PermitsLeft, Store, store::*};
///
/// #[derive(Debug, Default)]
/// struct Counting {
///     store: MemoryStore,
///     acquires: AtomicU64,
/// }
///
/// #[async_trait]
/// impl Store for Counting {
///     fn clock_margin(&self) -> Duration {
///         self.store.clock_margin()
///     }
///
///     async fn acquire(&self, request: &AcquireRequest) -> Result<AcquireAnswer, Error> {
///         self.acquires.fetch_add(1, Ordering::Relaxed);
///         self.store.acquire(request).await
///     }
///
///     // And so on, for each method without a body in the trait.
/// #     async fn leave(&self, key: &Key, waiter: LeaseId) -> Result<(), Error> {
/// #         self.store.leave(key, waiter).await
/// #     }
/// #     async fn renew(&self, requests: &[RenewRequest]) -> Result<RenewAnswers, Error> {
/// #         self.store.renew(requests).await
/// #     }
/// #     async fn convert(&self, request: &ConvertRequest) -> Result<ConvertAnswer, Error> {
/// #         self.store.convert(request).await
/// #     }
/// #     async fn release(&self, request: &ReleaseRequest) -> Result<ReleaseAnswer, Error> {
/// #         self.store.release(request).await
/// #     }
/// #     async fn inspect(&self, key: &Key) -> Result<Option<LockState>, Error> {
/// #         self.store.inspect(key).await
/// #     }
/// #     async fn list(&self, request: &ListRequest) -> Result<Page, Error> {
/// #         self.store.list(request).await
/// #     }
/// #     async fn evict(&self, key: &Key) -> Result<Option<Eviction>, Error> {
/// #         self.store.evict(key).await
/// #     }
/// #     async fn remove_expired(&self, key: &Key) -> Result<bool, Error> {
/// #         self.store.remove_expired(key).await
/// #     }
/// #     async fn permit(&self, request: &PermitRequest) -> Result<PermitAnswer, Error> {
/// #         self.store.permit(request).await
/// #     }
/// #     async fn peek(&self, key: &Key, quota: &Quota) -> Result<PermitsLeft, Error> {
/// #         self.store.peek(key, quota).await
/// #     }
/// #     async fn give_back(&self, request: &GiveBackRequest) -> Result<(), Error> {
/// #         self.store.give_back(request).await
/// #     }
/// #     async fn purge(&self, retention: Duration) -> Result<u64, Error> {
/// #         self.store.purge(retention).await
/// #     }
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Error> {
/// let store = std::sync::Arc::new(Counting::default());
/// let lease = Leases::new(store.clone()).acquire("report:42", Duration::from_secs(30)).await?;
/// lease.release().await?;
/// assert_eq!(store.acquires.load(Ordering::Relaxed), 1);
/// # Ok(())
/// # }
/// ```
#[async_trait]
pub trait Store: fmt::Debug + Send + Sync + 'static {
    /// How far the server's clock may jump forward, for example when a failover makes another server the primary. A
    /// holder stops relying on its lease this long before the expiry.
    fn clock_margin(&self) -> Duration;

    /// Grants the key if no live holder conflicts with the request, the key has fewer holders than
    /// [`MAX_HOLDERS`](crate::limits::MAX_HOLDERS), and no process that waits for the key comes first
    /// ([`rules::acquire`]). Otherwise it writes nothing but a [place](crate::Place).
    async fn acquire(&self, request: &AcquireRequest) -> Result<AcquireAnswer, Error>;

    /// Removes the place of a process that no longer waits for this key ([`rules::leave`]).
    async fn leave(&self, key: &Key, waiter: LeaseId) -> Result<(), Error>;

    /// Renews each of these leases if it is live: it lives for its ttl from now on
    /// ([`rules::renew`]). A lease whose expiry is later already keeps it, so that two renewals
    /// may be carried out in any order.
    ///
    /// The answers are in the order of the requests. A request that fails does not stop the others. After an error of
    /// the whole call, each of the requests may or may not have been carried out. There are at most
    /// [`MAX_RENEWALS`](MAX_RENEWALS) requests. Two of them may be for the same lease.
    async fn renew(&self, requests: &[RenewRequest]) -> Result<RenewAnswers, Error>;

    /// Makes a live lease shared, or exclusive if no other holder is live ([`rules::convert`]).
    /// An upgrade gives the lease a new fence, greater than the fences of all earlier holders. A downgrade keeps its
    /// fence.
    async fn convert(&self, request: &ConvertRequest) -> Result<ConvertAnswer, Error>;

    /// Removes this lease, and no other, from the holders of its key ([`rules::release`]).
    ///
    /// If the lease is live and its minimum hold is not over, the holder stays until the minimum hold ends, under the
    /// [placeholder id](MinHold#structfield.placeholder) of the request. A release with a tick that [was
    /// done](ReleaseKind::Done) writes the tick in the same step, and only if the lease is live.
    async fn release(&self, request: &ReleaseRequest) -> Result<ReleaseAnswer, Error>;

    /// The state of a key ([`rules::inspect`]). `None` if the key was never locked, or if its
    /// document was cleaned up.
    async fn inspect(&self, key: &Key) -> Result<Option<LockState>, Error>;

    /// Whether each of these leases is among the holders of its key, and whether a process waits for that key
    /// ([`rules::look`]). A key without a document, and a document that is no lock, has neither. The
    /// answers are in the order of the requests. There are at most [`MAX_RENEWALS`](MAX_RENEWALS) of them.
    ///
    /// A client looks at the leases that stay with it although it does not need them, about twice a second. The answer is
    /// a hint, so a store may read a copy that lags behind: a client renews a lease that is not held by this answer, and
    /// that answer counts.
    ///
    /// The provided method inspects each key, all at the same time.
    async fn look(&self, leases: &[LookRequest]) -> Result<Vec<LookAnswer>, Error> {
        let looks = leases.iter().map(async |it| {
            let found = rules::found(self.inspect(&it.key).await)?;
            Ok(found.map_or_else(LookAnswer::default, |state| rules::look(&state, it.lease)))
        });
        join_all(looks).await.into_iter().collect()
    }

    /// A page of the locks that [match](crate::rules::matches) a filter, in the order of their keys.
    ///
    /// A lock that begins or ceases to match between two pages may be shown or missed. A lock that matches all the time
    /// is shown once.
    async fn list(&self, request: &ListRequest) -> Result<Page, Error>;

    /// Ends every live lease on the key, and raises its fence ([`rules::evict`]). `None` if the
    /// key has no document.
    ///
    /// The leases are removed from the holders, so that a later renewal or release does not find them, whatever the
    /// clock says.
    async fn evict(&self, key: &Key) -> Result<Option<Eviction>, Error>;

    /// Removes the document of this key if no holder is live and the clock has passed its fence
    /// ([`rules::remove_expired`], without a retention). Returns whether it removed the
    /// document.
    ///
    /// The check and the removal are one step on the server's clock, so a key that was granted a moment ago is never
    /// removed.
    async fn remove_expired(&self, key: &Key) -> Result<bool, Error>;

    /// Grants permits of a limiter, as far as its quota has room ([`rules::permit`]). Otherwise
    /// it writes nothing.
    ///
    /// Limiters of one key whose windows differ in length or kind are counted separately.
    async fn permit(&self, request: &PermitRequest) -> Result<PermitAnswer, Error>;

    /// What the limiter of this key has left for requests with this quota ([`rules::peek`]). It is one read, which takes
    /// nothing: a limiter without a document has all of its permits, and gets no document.
    ///
    /// # Errors
    ///
    /// As for [`permit`](Store::permit), [`Error::NotALimiter`] and [`Error::UnsupportedSchema`] for a document that is
    /// no limiter of a known version.
    async fn peek(&self, key: &Key, quota: &Quota) -> Result<PermitsLeft, Error>;

    /// Makes permits that were granted and not used available again, as far as they still count ([`rules::give_back`]).
    /// A limiter without a document gets none.
    ///
    /// A store sends it at most once: if it was carried out twice, more permits could be granted than the limit.
    async fn give_back(&self, request: &GiveBackRequest) -> Result<(), Error>;

    /// Removes each lock that has had no live holder for `retention`, and whose fence the clock passed that long ago
    /// ([`rules::remove_expired`]), and each limiter that has limited no request for that
    /// long. Returns how many documents it removed.
    async fn purge(&self, retention: Duration) -> Result<u64, Error>;

    /// How many acquires and releases should be under way at the same time. It is for a database to which one call with
    /// many requests costs less than as many calls. Requests beyond this number wait until a call ends, and are then
    /// sent in a [`batch`](Store::batch) if there are enough of them.
    ///
    /// The provided method sets no bound, so that each request is sent at once by a call of its own.
    fn max_concurrent(&self) -> usize {
        usize::MAX
    }

    /// Whether releases that [a failover may undo](ReleaseRequest::is_undoable) cost less if they are sent in batches
    /// of their own.
    ///
    /// The provided method says no, so that they are sent in the same batches as other requests.
    fn has_cheap_undoable_releases(&self) -> bool {
        false
    }

    /// Carries out several acquires and releases. Each of them is atomic and follows its own rule, as if it were sent
    /// alone. They may be carried out in any order.
    ///
    /// The answers are in the order of the requests, each of the same kind as its request. A request that fails does
    /// not stop the others. After an error of the whole call, each of the requests may or may not have been carried
    /// out. There are at most [`MAX_BATCH`](MAX_BATCH) requests, each for another key.
    ///
    /// If another request for the same lease is sent while the batch is under way, the batch may be answered with the
    /// grant of that request, before it is durable. The client then leaves the grant to the answer to that request.
    ///
    /// The provided method makes a call for each request, all at the same time.
    async fn batch(&self, requests: &[BatchRequest]) -> Result<BatchAnswers, Error> {
        let single = async |request: &BatchRequest| match request {
            BatchRequest::Acquire(request) => self.acquire(request).await.map(BatchAnswer::Acquire),
            BatchRequest::Release(request) => self.release(request).await.map(BatchAnswer::Release),
        };
        Ok(join_all(requests.iter().map(single)).await)
    }

    /// Opens a stream of keys that a waiter may now get, because one of their holders is released or downgraded from
    /// now on. Keys whose holder expires are not in the stream.
    ///
    /// `None`, which the provided method returns, if the database has no such stream. Waiters then poll. A key in the
    /// stream is a hint: another client may have acquired it already, and a release may be missing from the stream.
    ///
    /// A client opens the stream when one of its waiters comes soon and its key has been held for a quarter of a second,
    /// or will have been when the waiter asks next, and for each [watch](crate::jobs::Leader::watch) of a leader. It
    /// closes the stream when it has had no need of it for 30 s.
    ///
    /// Each item has the keys that became free since the previous item. While the server answers, an item, perhaps an
    /// empty one, comes at least every 10 s, so that a reader can stop between two items without dropping a request
    /// that is under way. The client takes a stream without an item for 30 s for broken, and opens another one. After
    /// an error or the end, the stream gives nothing more. Another one may then be opened.
    async fn freed(&self) -> Result<Option<FreedKeys>, Error> {
        Ok(None)
    }

    /// Opens a stream of keys for which a process begins to wait from now on: it takes a [place](crate::Place) in their queue.
    ///
    /// A client opens it while keys [stay](crate::Acquire::sticky) with it that it does not need, and gives them up
    /// when they are in the stream. `None`, which the provided method returns, if the database has no such stream. The
    /// client then learns of the processes that wait from [`look`](Store::look) alone. A key in the stream
    /// is a hint, and may be missing. Items come as in [`freed`](Store::freed).
    async fn awaited(&self) -> Result<Option<AwaitedKeys>, Error> {
        Ok(None)
    }

    /// What messages call this store: its kind and where it is, for example `SQLite (/var/lib/app/locks.db)`. It
    /// contains no credentials.
    ///
    /// It is for an error that no answer came, because the database says nothing then. The provided method returns
    /// "the store". A store that wraps another store should return what that store returns.
    fn name(&self) -> String {
        "the store".to_owned()
    }

    /// The store itself, for operations that only one kind of store has, such as `Lease::enforce` on MongoDB. A store
    /// that wraps another store should return what that store returns.
    ///
    /// `None`, which the provided method returns, for a store without such operations.
    fn as_any(&self) -> Option<&dyn Any> {
        None
    }
}

/// The stream of [`Store::freed`]. Each item is a list of keys, which may be empty.
pub type FreedKeys = BoxStream<'static, Result<Vec<FreedKey>, Error>>;

/// The stream of [`Store::awaited`]. Each item is a list of keys, which may be empty.
pub type AwaitedKeys = BoxStream<'static, Result<Vec<Key>, Error>>;

/// A key that a waiter may now get.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FreedKey {
    /// The key.
    pub key: Key,
    /// The processes that come next: one, or several that can hold the key together. `None` if the store does not tell,
    /// for example because no process waits in turn, or because the same processes come next as after the last change.
    pub next: Option<Vec<LeaseId>>,
}

impl FreedKey {
    /// A freed key, if the store does not tell which process comes next.
    pub fn new(key: Key) -> Self {
        Self { key, next: None }
    }

    /// The same key, with the processes that come next.
    pub fn next(mut self, next: Vec<LeaseId>) -> Self {
        self.next = Some(next);
        self
    }
}

/// What a read that follows a refused change says about the document: an error only if the document is not a lock. If
/// the read fails, the refusal stands.
#[cfg(any(feature = "mongodb", feature = "elasticsearch", feature = "opensearch"))]
pub(crate) fn explained(read: Result<(), Error>) -> Result<(), Error> {
    match read {
        Err(error @ (Error::NotALock { .. } | Error::UnsupportedSchema { .. })) => Err(error),
        Ok(()) | Err(_) => Ok(()),
    }
}

#[cfg(all(test, feature = "mongodb"))]
mod tests {
    use super::*;
    use crate::model::Cause;

    #[test]
    fn only_what_the_document_is_comes_after_a_refusal() {
        let failed = Error::Interrupted {
            store: "the store",
            source: Cause::text("no answer"),
        };
        assert!(explained(Err(failed)).is_ok() && explained(Ok(())).is_ok());
        let key = Key::new("key");
        let other = key.map(|key| Error::UnsupportedSchema {
            key,
            found: "leasehold.lock.2".to_owned(),
        });
        assert!(explained(Err(other.unwrap())).is_err());
    }
}
