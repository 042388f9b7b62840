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
use futures::{StreamExt, TryStreamExt, stream};
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
    /// It can.
    Open,
}

/// What goes through a store.
#[derive(Clone, Copy, Debug)]
pub enum Event<'a> {
    /// Its stream is there.
    Opened,
    /// The stream says that this key became free.
    Heard(&'a Key),
    /// This key is asked for.
    Asked(&'a Key),
    /// That was answered.
    Answered(&'a Key),
}

#[derive(Clone, Debug)]
pub struct Eared {
    store: Arc<dyn Store>,
    ears: Ears,
    opened: Arc<AtomicUsize>,
    tell: fn(Event<'_>),
}

impl Eared {
    pub fn new(store: impl Store, ears: Ears) -> Self {
        Self {
            store: Arc::new(store),
            ears,
            opened: Arc::default(),
            tell: |_| {},
        }
    }

    /// Tells what goes through it.
    pub fn telling(mut self, tell: fn(Event<'_>)) -> Self {
        self.tell = tell;
        self
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
            Ears::BreaksOnce | Ears::Open => {
                let Some(keys) = self.store.freed().await? else {
                    return Ok(None);
                };
                let tell = self.tell;
                tell(Event::Opened);
                let told = keys.inspect_ok(move |keys| {
                    keys.iter().for_each(|key| tell(Event::Heard(key)));
                });
                Ok(Some(told.boxed()))
            }
        }
    }

    fn as_any(&self) -> Option<&dyn Any> {
        self.store.as_any()
    }

    fn clock_margin(&self) -> Duration {
        self.store.clock_margin()
    }

    async fn acquire(&self, request: &AcquireRequest) -> Result<AcquireAnswer, Error> {
        (self.tell)(Event::Asked(&request.key));
        let answer = self.store.acquire(request).await;
        (self.tell)(Event::Answered(&request.key));
        answer
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
