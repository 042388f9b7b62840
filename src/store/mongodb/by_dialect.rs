//! The operations of the store. Each of them asks once for the [dialect](Dialect), and is carried out in that.
//!
//! The files of both dialects use `MongoStore`. Only this file uses both dialects, so that no two files use each other.

use std::{any::Any, time::Duration};

use async_trait::async_trait;

use super::{
    MongoStore, classic::Classic, dialect::Dialect, fitness::FOR_LOCKS, pipelines::Pipelines,
};
use crate::{
    messages::{
        AcquireAnswer, AcquireRequest, BatchAnswers, BatchRequest, ConvertAnswer, ConvertRequest,
        Eviction, GiveBackRequest, ListRequest, LookAnswer, LookRequest, Page, PermitAnswer,
        PermitRequest, ReleaseAnswer, ReleaseRequest, RenewAnswers, RenewRequest,
    },
    model::{Error, Key, LeaseId, LockState, PermitsLeft, Quota},
    store::{AwaitedKeys, FreedKeys, Store},
};

/// The largest difference that this store assumes between the clocks of two members of a replica set.
const CLOCK_MARGIN: Duration = Duration::from_millis(100);
/// How many acquires and releases are sent at the same time. Further requests wait until one of those is answered, and
/// may then be sent together in a batch.
const MAX_CONCURRENT: usize = 16;

/// Carries out an operation in the dialect that this method asks for. Both dialects have a method of its name.
macro_rules! in_dialect {
    ($store:expr, $ask:ident, $operation:ident($($argument:expr),*)) => {{
        let outcome = async {
            match $store.$ask().await? {
                Dialect::Pipelines(statement_clock) => {
                    let store = $store;
                    Pipelines { store, statement_clock }.$operation($($argument),*).await
                }
                Dialect::Classic => Classic($store).$operation($($argument),*).await,
            }
        };
        $store.locks.answered(outcome.await)
    }};
}

impl MongoStore {
    /// The dialect for an operation that may give its caller a lock or a permit: the collection is looked at before the
    /// first one. The others only keep, show or end what is there.
    async fn dialect_if_fit(&self) -> Result<Dialect, Error> {
        let dialect = self.ask_dialect().await?;
        let judge = |facts: &_| FOR_LOCKS.judge(facts);
        self.first_look.ensure_fit(&self.locks, judge).await?;
        Ok(dialect)
    }

    /// The outcomes of many operations.
    fn each_answered<R>(&self, outcomes: Vec<Result<R, Error>>) -> Vec<Result<R, Error>> {
        let outcomes = outcomes.into_iter();
        outcomes.map(|it| self.locks.answered(it)).collect()
    }
}

#[async_trait]
impl Store for MongoStore {
    fn clock_margin(&self) -> Duration {
        CLOCK_MARGIN
    }

    async fn acquire(&self, request: &AcquireRequest) -> Result<AcquireAnswer, Error> {
        in_dialect!(self, dialect_if_fit, acquire(request))
    }

    async fn leave(&self, key: &Key, waiter: LeaseId) -> Result<(), Error> {
        in_dialect!(self, ask_dialect, leave(key, waiter))
    }

    async fn renew(&self, requests: &[RenewRequest]) -> Result<RenewAnswers, Error> {
        let answers = in_dialect!(self, ask_dialect, renew(requests))?;
        Ok(self.each_answered(answers))
    }

    async fn convert(&self, request: &ConvertRequest) -> Result<ConvertAnswer, Error> {
        in_dialect!(self, dialect_if_fit, convert(request))
    }

    async fn release(&self, request: &ReleaseRequest) -> Result<ReleaseAnswer, Error> {
        in_dialect!(self, ask_dialect, release(request))
    }

    async fn inspect(&self, key: &Key) -> Result<Option<LockState>, Error> {
        in_dialect!(self, ask_dialect, inspect(key))
    }

    async fn look(&self, leases: &[LookRequest]) -> Result<Vec<LookAnswer>, Error> {
        in_dialect!(self, ask_dialect, look(leases))
    }

    async fn list(&self, request: &ListRequest) -> Result<Page, Error> {
        in_dialect!(self, ask_dialect, list(request))
    }

    async fn evict(&self, key: &Key) -> Result<Option<Eviction>, Error> {
        in_dialect!(self, ask_dialect, evict(key))
    }

    async fn remove_expired(&self, key: &Key) -> Result<bool, Error> {
        in_dialect!(self, ask_dialect, remove_expired(key))
    }

    async fn permit(&self, request: &PermitRequest) -> Result<PermitAnswer, Error> {
        in_dialect!(self, dialect_if_fit, permit(request))
    }

    async fn peek(&self, key: &Key, quota: &Quota) -> Result<PermitsLeft, Error> {
        in_dialect!(self, ask_dialect, peek(key, quota))
    }

    async fn give_back(&self, request: &GiveBackRequest) -> Result<(), Error> {
        in_dialect!(self, ask_dialect, give_back(request))
    }

    async fn purge(&self, retention: Duration) -> Result<u64, Error> {
        in_dialect!(self, ask_dialect, purge(retention))
    }

    fn max_concurrent(&self) -> usize {
        MAX_CONCURRENT
    }

    fn has_cheap_undoable_releases(&self) -> bool {
        !self.durable_releases
    }

    async fn batch(&self, requests: &[BatchRequest]) -> Result<BatchAnswers, Error> {
        let answers = in_dialect!(self, dialect_if_fit, batch(requests))?;
        Ok(self.each_answered(answers))
    }

    async fn freed(&self) -> Result<Option<FreedKeys>, Error> {
        self.locks.answered(self.watch_freed().await)
    }

    async fn awaited(&self) -> Result<Option<AwaitedKeys>, Error> {
        self.locks.answered(self.watch_awaited().await)
    }

    fn name(&self) -> String {
        self.locks.name()
    }

    fn as_any(&self) -> Option<&dyn Any> {
        Some(self)
    }
}
