//! The operations of the store. Each of them asks once for the [dialect](Dialect), and is carried out in that.
//!
//! No file uses this one. So it may use the files of both dialects, which use the store.

use std::{any::Any, time::Duration};

use async_trait::async_trait;

use super::{MongoStore, classic::Classic, dialect::Dialect, pipelines::Pipelines};
use crate::{
    messages::{
        AcquireAnswer, AcquireRequest, BatchAnswers, BatchRequest, ConvertAnswer, ConvertRequest,
        Eviction, ListRequest, Page, PermitAnswer, PermitRequest, ReleaseAnswer, ReleaseRequest,
        RenewAnswers, RenewRequest,
    },
    model::{Error, Key, LockState, WaiterId},
    store::{AwaitedKeys, FreedKeys, Store},
};

/// The largest difference that this store assumes between the clocks of two members of a replica set.
const CLOCK_MARGIN: Duration = Duration::from_millis(100);
/// How many acquires and releases are sent at the same time. Further requests wait until one of those is answered, and
/// may then be sent together in a batch.
const MAX_CONCURRENT: usize = 16;

#[async_trait]
impl Store for MongoStore {
    fn clock_margin(&self) -> Duration {
        CLOCK_MARGIN
    }

    async fn acquire(&self, request: &AcquireRequest) -> Result<AcquireAnswer, Error> {
        match self.ask_dialect().await? {
            Dialect::Pipelines(clock) => Pipelines::new(self, clock).acquire(request).await,
            Dialect::Classic => Classic(self).acquire(request).await,
        }
    }

    async fn leave(&self, key: &Key, waiter: WaiterId) -> Result<(), Error> {
        match self.ask_dialect().await? {
            Dialect::Pipelines(clock) => Pipelines::new(self, clock).leave(key, waiter).await,
            Dialect::Classic => Classic(self).leave(key, waiter).await,
        }
    }

    async fn renew(&self, requests: &[RenewRequest]) -> Result<RenewAnswers, Error> {
        match self.ask_dialect().await? {
            Dialect::Pipelines(clock) => Pipelines::new(self, clock).renew(requests).await,
            Dialect::Classic => Classic(self).renew(requests).await,
        }
    }

    async fn convert(&self, request: &ConvertRequest) -> Result<ConvertAnswer, Error> {
        match self.ask_dialect().await? {
            Dialect::Pipelines(clock) => Pipelines::new(self, clock).convert(request).await,
            Dialect::Classic => Classic(self).convert(request).await,
        }
    }

    async fn release(&self, request: &ReleaseRequest) -> Result<ReleaseAnswer, Error> {
        match self.ask_dialect().await? {
            Dialect::Pipelines(clock) => Pipelines::new(self, clock).release(request).await,
            Dialect::Classic => Classic(self).release(request).await,
        }
    }

    async fn inspect(&self, key: &Key) -> Result<Option<LockState>, Error> {
        match self.ask_dialect().await? {
            Dialect::Pipelines(clock) => Pipelines::new(self, clock).inspect(key).await,
            Dialect::Classic => Classic(self).inspect(key).await,
        }
    }

    async fn waited_for(&self, keys: &[Key]) -> Result<Vec<Key>, Error> {
        match self.ask_dialect().await? {
            Dialect::Pipelines(clock) => Pipelines::new(self, clock).waited_for(keys).await,
            Dialect::Classic => Classic(self).waited_for(keys).await,
        }
    }

    async fn list(&self, request: &ListRequest) -> Result<Page, Error> {
        match self.ask_dialect().await? {
            Dialect::Pipelines(clock) => Pipelines::new(self, clock).list(request).await,
            Dialect::Classic => Classic(self).list(request).await,
        }
    }

    async fn evict(&self, key: &Key) -> Result<Option<Eviction>, Error> {
        match self.ask_dialect().await? {
            Dialect::Pipelines(clock) => Pipelines::new(self, clock).evict(key).await,
            Dialect::Classic => Classic(self).evict(key).await,
        }
    }

    async fn remove_expired(&self, key: &Key) -> Result<bool, Error> {
        match self.ask_dialect().await? {
            Dialect::Pipelines(clock) => Pipelines::new(self, clock).remove_expired(key).await,
            Dialect::Classic => Classic(self).remove_expired(key).await,
        }
    }

    async fn permit(&self, request: &PermitRequest) -> Result<PermitAnswer, Error> {
        match self.ask_dialect().await? {
            Dialect::Pipelines(clock) => Pipelines::new(self, clock).permit(request).await,
            Dialect::Classic => Classic(self).permit(request).await,
        }
    }

    async fn purge(&self, retention: Duration) -> Result<u64, Error> {
        match self.ask_dialect().await? {
            Dialect::Pipelines(clock) => Pipelines::new(self, clock).purge(retention).await,
            Dialect::Classic => Classic(self).purge(retention).await,
        }
    }

    fn max_concurrent(&self) -> usize {
        MAX_CONCURRENT
    }

    fn has_cheap_undoable_releases(&self) -> bool {
        !self.durable_releases
    }

    async fn batch(&self, requests: &[BatchRequest]) -> Result<BatchAnswers, Error> {
        match self.ask_dialect().await? {
            Dialect::Pipelines(clock) => Pipelines::new(self, clock).batch(requests).await,
            Dialect::Classic => Classic(self).batch(requests).await,
        }
    }

    async fn freed(&self) -> Result<Option<FreedKeys>, Error> {
        match self.ask_dialect().await? {
            Dialect::Pipelines(_) => self.watch_freed().await,
            Dialect::Classic => Ok(None),
        }
    }

    async fn awaited(&self) -> Result<Option<AwaitedKeys>, Error> {
        match self.ask_dialect().await? {
            Dialect::Pipelines(_) => self.watch_awaited().await,
            Dialect::Classic => Ok(None),
        }
    }

    fn as_any(&self) -> Option<&dyn Any> {
        Some(self)
    }
}
