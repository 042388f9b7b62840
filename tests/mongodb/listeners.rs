//! A store whose stream of freed keys is another.

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
