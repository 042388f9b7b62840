//! A store with another stream of freed keys.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering::Relaxed},
};

use async_trait::async_trait;
use futures::{StreamExt, TryStreamExt, stream};
use leasehold::{
    Error, Key, Store,
    store::{AcquireAnswer, AcquireRequest, Cause, FreedKeys},
};
use leasehold_tests::layer::Layer;

#[derive(Clone, Copy, Debug)]
pub enum Listening {
    /// There is no stream.
    Deaf,
    /// The stream never tells anything.
    Silent,
    /// The first stream breaks off at once.
    BreaksOnce,
    /// The stream of the store itself.
    Open,
}

/// An event of the store.
#[derive(Clone, Copy, Debug)]
pub enum Event<'a> {
    /// The stream is open.
    Opened,
    /// The stream says that this key became free.
    Heard(&'a Key),
    /// The store is asked for this key.
    Asked(&'a Key),
    /// That request was answered.
    Answered(&'a Key),
}

#[derive(Clone, Debug)]
pub struct ListeningStore {
    store: Arc<dyn Store>,
    ears: Listening,
    opened: Arc<AtomicUsize>,
    tell: fn(Event<'_>),
}

impl ListeningStore {
    pub fn new(store: impl Store, ears: Listening) -> Self {
        Self {
            store: Arc::new(store),
            ears,
            opened: Arc::default(),
            tell: |_| {},
        }
    }

    /// Calls this function with each event.
    pub fn telling(mut self, tell: fn(Event<'_>)) -> Self {
        self.tell = tell;
        self
    }

    /// How often the store was asked for a stream.
    pub fn opened(&self) -> usize {
        self.opened.load(Relaxed)
    }
}

#[async_trait]
impl Layer for ListeningStore {
    fn inner(&self) -> &dyn Store {
        &self.store
    }

    async fn freed(&self) -> Result<Option<FreedKeys>, Error> {
        let first = self.opened.fetch_add(1, Relaxed) == 0;
        let broken = Error::Interrupted {
            store: "the eared store",
            source: Cause::text("a fate"),
        };
        match self.ears {
            Listening::Deaf => Ok(None),
            Listening::Silent => Ok(Some(stream::pending().boxed())),
            Listening::BreaksOnce if first => Ok(Some(stream::iter([Err(broken)]).boxed())),
            Listening::BreaksOnce | Listening::Open => {
                let Some(keys) = self.store.freed().await? else {
                    return Ok(None);
                };
                let tell = self.tell;
                tell(Event::Opened);
                let told = keys.inspect_ok(move |keys| {
                    keys.iter().for_each(|freed| tell(Event::Heard(&freed.key)));
                });
                Ok(Some(told.boxed()))
            }
        }
    }

    async fn acquire(&self, request: &AcquireRequest) -> Result<AcquireAnswer, Error> {
        (self.tell)(Event::Asked(&request.key));
        let answer = self.store.acquire(request).await;
        (self.tell)(Event::Answered(&request.key));
        answer
    }
}
