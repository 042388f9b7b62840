//! A store behind an [`Arc`] is a store.

use std::{any::Any, sync::Arc, time::Duration};

use async_trait::async_trait;

use super::{AwaitedKeys, FreedKeys, Store};
use crate::{
    messages::{
        AcquireAnswer, AcquireRequest, BatchAnswers, BatchRequest, ConvertAnswer, ConvertRequest,
        Eviction, GiveBackRequest, ListRequest, LookAnswer, LookRequest, Page, PermitAnswer,
        PermitRequest, ReleaseAnswer, ReleaseRequest, RenewAnswers, RenewRequest,
    },
    model::{Error, Key, LeaseId, LockState, PermitsLeft, Quota},
};

#[async_trait]
impl<S: Store + ?Sized> Store for Arc<S> {
    fn clock_margin(&self) -> Duration {
        (**self).clock_margin()
    }

    async fn acquire(&self, request: &AcquireRequest) -> Result<AcquireAnswer, Error> {
        (**self).acquire(request).await
    }

    async fn leave(&self, key: &Key, waiter: LeaseId) -> Result<(), Error> {
        (**self).leave(key, waiter).await
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

    async fn look(&self, leases: &[LookRequest]) -> Result<Vec<LookAnswer>, Error> {
        (**self).look(leases).await
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

    async fn peek(&self, key: &Key, quota: &Quota) -> Result<PermitsLeft, Error> {
        (**self).peek(key, quota).await
    }

    async fn give_back(&self, request: &GiveBackRequest) -> Result<(), Error> {
        (**self).give_back(request).await
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

    async fn awaited(&self) -> Result<Option<AwaitedKeys>, Error> {
        (**self).awaited().await
    }

    fn name(&self) -> String {
        (**self).name()
    }

    fn as_any(&self) -> Option<&dyn Any> {
        (**self).as_any()
    }
}
