//! The trait of a store, and what an author of one needs: the requests, their answers, and the names in them.
//!
//! A store carries out the [rules](crate::rules) on one document a key, each operation atomic, on the clock of its
//! server, and in one round trip (a batch of several may take two). It never sleeps, never retries (but for a race
//! that the database reports instead of resolving), and knows nothing of guards.

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

use std::{any::Any, fmt, sync::Arc, time::Duration};

use async_trait::async_trait;
use futures::{future::join_all, stream::BoxStream};

use crate::model::{Error, Key, LockState};
pub use crate::{
    messages::{
        AcquireAnswer, AcquireRequest, BatchAnswer, BatchAnswers, BatchRequest, ConvertAnswer,
        ConvertRequest, Eviction, Grant, KnownGrant, ListRequest, MAX_BATCH, MAX_RENEWALS, MinHold,
        Page, PermitAnswer, PermitRequest, ReleaseAnswer, ReleaseRequest, RenewAnswer,
        RenewAnswers, RenewRequest,
    },
    model::{
        Access, Cause, Conversion, LeaseId, LimiterRecord, LockRecord, PermitId, Quota, SCHEMA,
    },
};

/// A place that keeps locks and limiters.
///
/// A lock and a limiter of the same key have nothing to do with each other.
///
/// The conformance suite (the crate `leasehold-conformance`) tells whether an implementation keeps the rules. Until
/// version 1.0 methods may be added.
///
/// # Cancel safety
///
/// The futures need not be cancel safe: [`Leases`](crate::Leases) runs each of them to its end, if need be
/// in a task of its own.
#[async_trait]
pub trait Store: fmt::Debug + Send + Sync + 'static {
    /// How far the clock that decides expiry may jump forward, when another server takes over for
    /// example. A holder stops counting on its lease this much before the expiry.
    fn clock_margin(&self) -> Duration;

    /// Grants the key if no live holder conflicts and it has a place for one more
    /// ([`rules::acquire`](crate::rules::acquire)); otherwise writes nothing. A request
    /// [in the place of](AcquireRequest::in_place_of) a lease drops that one in the same step.
    async fn acquire(&self, request: &AcquireRequest) -> Result<AcquireAnswer, Error>;

    /// Gives each of these leases its ttl anew, counted from now, if it is live. One that lives for longer
    /// than that keeps its expiry, so that two renewals may be carried out in any order.
    ///
    /// The answers stand in the order of the requests; one that fails stops no other. An error of the
    /// whole call says nothing about any of them. There are at most [`MAX_RENEWALS`](MAX_RENEWALS) requests; two of
    /// them may be of the same lease.
    async fn renew(&self, requests: &[RenewRequest]) -> Result<RenewAnswers, Error>;

    /// Makes a live lease shared, or exclusive if no other holder is live. An upgrade has a new fence,
    /// greater than those of the holders that were beside it; a downgrade keeps its own.
    async fn convert(&self, request: &ConvertRequest) -> Result<ConvertAnswer, Error>;

    /// Drops this lease, and no other, from the holders of its key. If it is live and a minimum
    /// hold is not over, it stays until then under the name that the request says.
    async fn release(&self, request: &ReleaseRequest) -> Result<ReleaseAnswer, Error>;

    /// The state of a key; `None` if it was never locked or has been cleaned up.
    async fn inspect(&self, key: &Key) -> Result<Option<LockState>, Error>;

    /// A page of the locks that [match](crate::rules::matches) a filter, in the order of their keys.
    ///
    /// Locks that come and go meanwhile may be missed or shown, but none is shown twice, and one
    /// that stays is not missed.
    async fn list(&self, request: &ListRequest) -> Result<Page, Error>;

    /// Ends every live lease on the key and raises its fence; `None` if it has no document. The leases are
    /// not among the holders any more, so that nothing renews or releases them, whatever the clock says.
    async fn evict(&self, key: &Key) -> Result<Option<Eviction>, Error>;

    /// Removes the document of this key if no holder is live and the clock has passed its fence. Returns
    /// whether it did.
    ///
    /// The check and the removal are one step on the server's clock, so this can never remove a
    /// lock that was just taken over.
    async fn remove_expired(&self, key: &Key) -> Result<bool, Error>;

    /// Grants permits of a limiter, as far as its quota has room
    /// ([`rules::permit`](crate::rules::permit)); otherwise writes nothing.
    ///
    /// Limiters of one key with windows of another length, or of the other kind, count for themselves.
    async fn permit(&self, request: &PermitRequest) -> Result<PermitAnswer, Error>;

    /// Removes every lock that had no live holder for this long, and whose fence the clock passed this long
    /// ago ([`rules::remove_expired`](crate::rules::remove_expired)), and every limiter that means nothing
    /// any more since this long. Returns how many it removed.
    async fn purge(&self, retention: Duration) -> Result<u64, Error>;

    /// How many acquires and releases should be under way at once, for a database that carries out many in
    /// one call at less than their sum. What comes beyond that waits until one of them ends, and goes in a
    /// [`batch`](Store::batch) if there is enough of it.
    ///
    /// The provided method sets no bound, so that each goes at once and alone.
    fn max_concurrent(&self) -> usize {
        usize::MAX
    }

    /// Whether releases that [may be undone](ReleaseRequest::undoable) cost less than others, if they go in batches of
    /// their own.
    ///
    /// The provided method says no, so that they go together with what has to last.
    fn has_cheap_undoable_releases(&self) -> bool {
        false
    }

    /// Carries out several acquires and releases, each as if it were alone: atomic, and by its own rules.
    /// Nothing is said about their order.
    ///
    /// The answers stand in the order of the requests, each of the kind of its request; one that fails
    /// stops no other. An error of the whole call says nothing about any of them. There are at most
    /// [`MAX_BATCH`](MAX_BATCH) requests, each of another key.
    ///
    /// The provided method sends each alone.
    async fn batch(&self, requests: &[BatchRequest]) -> Result<BatchAnswers, Error> {
        let alone = async |request: &BatchRequest| match request {
            BatchRequest::Acquire(request) => self.acquire(request).await.map(BatchAnswer::Acquire),
            BatchRequest::Release(request) => self.release(request).await.map(BatchAnswer::Release),
        };
        Ok(join_all(requests.iter().map(alone)).await)
    }

    /// Opens a stream of the keys whose lock is freed from now on, or left by one of several holders, or
    /// downgraded (not of those that expire), for a database that can tell as it happens.
    ///
    /// `None`, which is what the provided method says, where it cannot: those who wait then only ask from
    /// time to time. A key that is told is a hint: someone else may have it by now, and one that is freed
    /// need not be told.
    ///
    /// Each item is what came since the one before; as long as the server answers there is one at least
    /// every few seconds, empty if need be, so that its reader can stop between two items
    /// without cutting a request. After an error, or its end, the stream is of no use any more; another
    /// one may be opened.
    async fn freed(&self) -> Result<Option<FreedKeys>, Error> {
        Ok(None)
    }

    /// The store itself, for what only one kind of store can do, such as `Lease::enforce` on MongoDB. A
    /// store that wraps another gives what that one gives.
    ///
    /// `None`, which is what the provided method says, for a store that has nothing of the kind.
    fn as_any(&self) -> Option<&dyn Any> {
        None
    }
}

/// Keys that became free, as [`Store::freed`] tells of them: one item for each look, which may be
/// empty.
pub type FreedKeys = BoxStream<'static, Result<Vec<Key>, Error>>;

#[async_trait]
impl<S: Store + ?Sized> Store for Arc<S> {
    fn clock_margin(&self) -> Duration {
        (**self).clock_margin()
    }

    async fn acquire(&self, request: &AcquireRequest) -> Result<AcquireAnswer, Error> {
        (**self).acquire(request).await
    }

    async fn renew(&self, requests: &[RenewRequest]) -> Result<RenewAnswers, Error> {
        (**self).renew(requests).await
    }

    async fn convert(&self, request: &ConvertRequest) -> Result<ConvertAnswer, Error> {
        (**self).convert(request).await
    }

    async fn release(&self, request: &ReleaseRequest) -> Result<ReleaseAnswer, Error> {
        (**self).release(request).await
    }

    async fn inspect(&self, key: &Key) -> Result<Option<LockState>, Error> {
        (**self).inspect(key).await
    }

    async fn list(&self, request: &ListRequest) -> Result<Page, Error> {
        (**self).list(request).await
    }

    async fn evict(&self, key: &Key) -> Result<Option<Eviction>, Error> {
        (**self).evict(key).await
    }

    async fn remove_expired(&self, key: &Key) -> Result<bool, Error> {
        (**self).remove_expired(key).await
    }

    async fn permit(&self, request: &PermitRequest) -> Result<PermitAnswer, Error> {
        (**self).permit(request).await
    }

    async fn purge(&self, retention: Duration) -> Result<u64, Error> {
        (**self).purge(retention).await
    }

    fn max_concurrent(&self) -> usize {
        (**self).max_concurrent()
    }

    fn has_cheap_undoable_releases(&self) -> bool {
        (**self).has_cheap_undoable_releases()
    }

    async fn batch(&self, requests: &[BatchRequest]) -> Result<BatchAnswers, Error> {
        (**self).batch(requests).await
    }

    async fn freed(&self) -> Result<Option<FreedKeys>, Error> {
        (**self).freed().await
    }

    fn as_any(&self) -> Option<&dyn Any> {
        (**self).as_any()
    }
}

/// What a look after a refused change says of the document. The refusal is an answer by itself: a look that
/// fails takes nothing away from it, and is not to make it one that is unclear.
#[cfg(any(feature = "mongodb", feature = "elasticsearch", feature = "opensearch"))]
pub(crate) fn explained(look: Result<(), Error>) -> Result<(), Error> {
    match look {
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
