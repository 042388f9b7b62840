//! A store whose stream of freed keys is another.

use std::{
    any::Any,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use async_trait::async_trait;
use futures::{StreamExt, stream};
use leasehold::{
    AcquireAnswer, AcquireRequest, Cause, ConvertAnswer, ConvertRequest, Error, Eviction,
    FreedKeys, Key, ListRequest, LockState, Page, PermitAnswer, PermitRequest, ReleaseAnswer,
    ReleaseRequest, RenewAnswers, RenewRequest, Store,
};

#[derive(Clone, Copy, Debug)]
pub enum Ears {
    /// It cannot tell.
    Deaf,
    /// It can, and never says anything.
    Silent,
    /// It breaks off at once, the first time.
    BreaksOnce,
}

#[derive(Clone, Debug)]
pub struct Eared {
    store: Arc<dyn Store>,
    ears: Ears,
    opened: Arc<AtomicUsize>,
}

impl Eared {
    pub fn new(store: impl Store, ears: Ears) -> Self {
        Self {
            store: Arc::new(store),
            ears,
            opened: Arc::default(),
        }
    }

    /// How often a stream was asked for.
    pub fn opened(&self) -> usize {
        self.opened.load(Relaxed)
    }
}

#[async_trait]
impl Store for Eared {
    async fn freed(&self) -> Result<Option<FreedKeys>, Error> {
        let first = self.opened.fetch_add(1, Relaxed) == 0;
        let broken = Error::Interrupted {
            store: "the eared store",
            source: Cause::text("a fate"),
        };
        match self.ears {
            Ears::Deaf => Ok(None),
            Ears::Silent => Ok(Some(stream::pending().boxed())),
            Ears::BreaksOnce if first => Ok(Some(stream::iter([Err(broken)]).boxed())),
            Ears::BreaksOnce => self.store.freed().await,
        }
    }

    fn as_any(&self) -> Option<&dyn Any> {
        self.store.as_any()
    }

    fn clock_margin(&self) -> Duration {
        self.store.clock_margin()
    }

    async fn acquire(&self, request: &AcquireRequest) -> Result<AcquireAnswer, Error> {
        self.store.acquire(request).await
    }

    async fn renew(&self, requests: &[RenewRequest]) -> Result<RenewAnswers, Error> {
        self.store.renew(requests).await
    }

    async fn convert(&self, request: &ConvertRequest) -> Result<ConvertAnswer, Error> {
        self.store.convert(request).await
    }

    async fn release(&self, request: &ReleaseRequest) -> Result<ReleaseAnswer, Error> {
        self.store.release(request).await
    }

    async fn inspect(&self, key: &Key) -> Result<Option<LockState>, Error> {
        self.store.inspect(key).await
    }

    async fn list(&self, request: &ListRequest) -> Result<Page, Error> {
        self.store.list(request).await
    }

    async fn evict(&self, key: &Key) -> Result<Option<Eviction>, Error> {
        self.store.evict(key).await
    }

    async fn remove_expired(&self, key: &Key) -> Result<bool, Error> {
        self.store.remove_expired(key).await
    }

    async fn permit(&self, request: &PermitRequest) -> Result<PermitAnswer, Error> {
        self.store.permit(request).await
    }

    async fn purge(&self, retention: Duration) -> Result<u64, Error> {
        self.store.purge(retention).await
    }
}
