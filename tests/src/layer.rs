//! Stores around another store.

use std::{any::Any, fmt, time::Duration};

use async_trait::async_trait;
use leasehold::{
    Error, Key, LockState, PermitsLeft, Store,
    store::{
        AcquireAnswer, AcquireRequest, AwaitedKeys, BatchAnswers, BatchRequest, ConvertAnswer,
        ConvertRequest, Eviction, FreedKeys, GiveBackRequest, LeaseId, ListRequest, LookAnswer,
        LookRequest, Page, PermitAnswer, PermitRequest, Quota, ReleaseAnswer, ReleaseRequest,
        RenewAnswers, RenewRequest,
    },
};

/// The methods in which a store around another one differs. The rest goes to the inner store.
#[async_trait]
pub trait Layer: fmt::Debug + Send + Sync + 'static {
    fn inner(&self) -> &dyn Store;

    async fn acquire(&self, request: &AcquireRequest) -> Result<AcquireAnswer, Error> {
        self.inner().acquire(request).await
    }

    async fn renew(&self, requests: &[RenewRequest]) -> Result<RenewAnswers, Error> {
        self.inner().renew(requests).await
    }

    async fn convert(&self, request: &ConvertRequest) -> Result<ConvertAnswer, Error> {
        self.inner().convert(request).await
    }

    async fn release(&self, request: &ReleaseRequest) -> Result<ReleaseAnswer, Error> {
        self.inner().release(request).await
    }

    async fn batch(&self, requests: &[BatchRequest]) -> Result<BatchAnswers, Error> {
        self.inner().batch(requests).await
    }

    async fn permit(&self, request: &PermitRequest) -> Result<PermitAnswer, Error> {
        self.inner().permit(request).await
    }

    async fn freed(&self) -> Result<Option<FreedKeys>, Error> {
        self.inner().freed().await
    }

    async fn awaited(&self) -> Result<Option<AwaitedKeys>, Error> {
        self.inner().awaited().await
    }

    async fn look(&self, leases: &[LookRequest]) -> Result<Vec<LookAnswer>, Error> {
        self.inner().look(leases).await
    }
}

/// The store that a layer makes of its inner store.
#[derive(Clone, Debug)]
pub struct Layered<L>(pub L);

#[async_trait]
impl<L: Layer> Store for Layered<L> {
    fn clock_margin(&self) -> Duration {
        self.0.inner().clock_margin()
    }

    fn max_concurrent(&self) -> usize {
        self.0.inner().max_concurrent()
    }

    fn has_cheap_undoable_releases(&self) -> bool {
        self.0.inner().has_cheap_undoable_releases()
    }

    fn name(&self) -> String {
        self.0.inner().name()
    }

    fn as_any(&self) -> Option<&dyn Any> {
        self.0.inner().as_any()
    }

    async fn acquire(&self, request: &AcquireRequest) -> Result<AcquireAnswer, Error> {
        self.0.acquire(request).await
    }

    async fn leave(&self, key: &Key, waiter: LeaseId) -> Result<(), Error> {
        self.0.inner().leave(key, waiter).await
    }

    async fn renew(&self, requests: &[RenewRequest]) -> Result<RenewAnswers, Error> {
        self.0.renew(requests).await
    }

    async fn convert(&self, request: &ConvertRequest) -> Result<ConvertAnswer, Error> {
        self.0.convert(request).await
    }

    async fn release(&self, request: &ReleaseRequest) -> Result<ReleaseAnswer, Error> {
        self.0.release(request).await
    }

    async fn batch(&self, requests: &[BatchRequest]) -> Result<BatchAnswers, Error> {
        self.0.batch(requests).await
    }

    async fn permit(&self, request: &PermitRequest) -> Result<PermitAnswer, Error> {
        self.0.permit(request).await
    }

    async fn inspect(&self, key: &Key) -> Result<Option<LockState>, Error> {
        self.0.inner().inspect(key).await
    }

    async fn look(&self, leases: &[LookRequest]) -> Result<Vec<LookAnswer>, Error> {
        self.0.look(leases).await
    }

    async fn list(&self, request: &ListRequest) -> Result<Page, Error> {
        self.0.inner().list(request).await
    }

    async fn evict(&self, key: &Key) -> Result<Option<Eviction>, Error> {
        self.0.inner().evict(key).await
    }

    async fn remove_expired(&self, key: &Key) -> Result<bool, Error> {
        self.0.inner().remove_expired(key).await
    }

    async fn peek(&self, key: &Key, quota: &Quota) -> Result<PermitsLeft, Error> {
        self.0.inner().peek(key, quota).await
    }

    async fn give_back(&self, request: &GiveBackRequest) -> Result<(), Error> {
        self.0.inner().give_back(request).await
    }

    async fn purge(&self, retention: Duration) -> Result<u64, Error> {
        self.0.inner().purge(retention).await
    }

    async fn freed(&self) -> Result<Option<FreedKeys>, Error> {
        self.0.freed().await
    }

    async fn awaited(&self) -> Result<Option<AwaitedKeys>, Error> {
        self.0.awaited().await
    }
}
