//! A memory store behind a bad network.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use async_trait::async_trait;
use leasehold::{
    AcquireAnswer, AcquireRequest, Cause, Error, Eviction, Key, ListRequest, LockState,
    MemoryStore, Page, ReleaseAnswer, ReleaseRequest, RenewAnswers, RenewRequest, Store,
};
use parking_lot::Mutex;
use tokio::time::sleep;

use super::gates::Gates;

/// What happens to a call.
#[derive(Clone, Copy, Debug)]
pub enum Fate {
    /// It never reaches the server.
    NotSent,
    /// It is carried out, and the answer is lost.
    AnswerLost,
    /// It is carried out this much later.
    Late(Duration),
    /// It is carried out at once, and answered this much later.
    AnswerLate(Duration),
    /// It is refused for good.
    Denied,
    /// The driver panics.
    Panic,
}

/// A store whose next changes meet these fates, and all after them none.
#[derive(Clone, Debug)]
pub struct FlakyStore {
    pub memory: MemoryStore,
    fates: Arc<Mutex<VecDeque<Fate>>>,
    calls: Arc<Mutex<Vec<&'static str>>>,
    hanging: Arc<Mutex<Option<Key>>>,
    pub gates: Gates,
}

impl FlakyStore {
    pub fn new() -> Self {
        Self {
            memory: MemoryStore::new(),
            fates: Arc::default(),
            calls: Arc::default(),
            hanging: Arc::default(),
            gates: Gates::default(),
        }
    }

    /// From now on the renewals of this key are never answered, nor what is in one call with them.
    pub fn hang_on(&self, key: &str) {
        *self.hanging.lock() = Some(Key::new(key).unwrap());
    }

    pub fn next(&self, fates: impl IntoIterator<Item = Fate>) {
        self.fates.lock().extend(fates);
    }

    /// The changes that were asked for since the last time.
    pub fn calls(&self) -> Vec<&'static str> {
        std::mem::take(&mut self.calls.lock())
    }

    async fn meet<T>(
        &self,
        call: &'static str,
        work: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        self.calls.lock().push(call);
        let fate = self.fates.lock().pop_front();
        self.gates.pass().await;
        let answer = self.carry_out(fate, work).await;
        self.gates.pass().await;
        answer
    }

    async fn carry_out<T>(
        &self,
        fate: Option<Fate>,
        work: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        let store = "the flaky store";
        let source = || Cause::text("a fate");
        match fate {
            None => work.await,
            Some(Fate::NotSent) => Err(Error::Unreachable {
                store,
                source: source(),
            }),
            Some(Fate::AnswerLost) => {
                work.await?;
                Err(Error::Interrupted {
                    store,
                    source: source(),
                })
            }
            Some(Fate::Late(by)) => {
                sleep(by).await;
                work.await
            }
            Some(Fate::AnswerLate(by)) => {
                let answer = work.await;
                sleep(by).await;
                answer
            }
            Some(Fate::Denied) => Err(Error::Denied {
                store,
                source: source(),
            }),
            Some(Fate::Panic) => panic!("the driver has a bad day"),
        }
    }
}

#[async_trait]
impl Store for FlakyStore {
    fn clock_margin(&self) -> Duration {
        Duration::from_millis(100)
    }

    async fn acquire(&self, request: &AcquireRequest) -> Result<AcquireAnswer, Error> {
        self.meet("acquire", self.memory.acquire(request)).await
    }

    async fn renew(&self, requests: &[RenewRequest]) -> Result<RenewAnswers, Error> {
        let hanging = self.hanging.lock().clone();
        if requests
            .iter()
            .any(|request| Some(&request.key) == hanging.as_ref())
        {
            std::future::pending::<()>().await;
        }
        self.meet("renew", self.memory.renew(requests)).await
    }

    async fn release(&self, request: &ReleaseRequest) -> Result<ReleaseAnswer, Error> {
        self.meet("release", self.memory.release(request)).await
    }

    async fn inspect(&self, key: &Key) -> Result<Option<LockState>, Error> {
        self.memory.inspect(key).await
    }

    async fn list(&self, request: &ListRequest) -> Result<Page, Error> {
        self.memory.list(request).await
    }

    async fn evict(&self, key: &Key) -> Result<Option<Eviction>, Error> {
        self.memory.evict(key).await
    }

    async fn remove_expired(&self, key: &Key) -> Result<bool, Error> {
        self.memory.remove_expired(key).await
    }

    async fn purge(&self, retention: Duration) -> Result<u64, Error> {
        self.memory.purge(retention).await
    }
}
