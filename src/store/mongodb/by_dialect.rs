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
        Eviction, ListRequest, LookAnswer, LookRequest, Page, PermitAnswer, PermitRequest,
        ReleaseAnswer, ReleaseRequest, RenewAnswers, RenewRequest,
    },
    model::{Error, Key, LeaseId, LockState},
    store::{AwaitedKeys, FreedKeys, Store},
};

/// The largest difference that this store assumes between the clocks of two members of a replica set.
const CLOCK_MARGIN: Duration = Duration::from_millis(100);
/// How many acquires and releases are sent at the same time. Further requests wait until one of those is answered, and
/// may then be sent together in a batch.
const MAX_CONCURRENT: usize = 16;

/// Carries out an operation in the dialect of the engine. Both dialects have a method of its name.
macro_rules! in_dialect {
    ($store:expr, $operation:ident($($argument:expr),*)) => {{
        let outcome = async {
            carry_out!($store, $store.ask_dialect().await?, $operation($($argument),*))
        };
        $store.locks.answered(outcome.await)
    }};
}

/// As `in_dialect`, for an operation that may give its caller a lock or a permit: the collection is looked at before the
/// first one. The others only keep, show or end what is there.
macro_rules! on_a_fit_collection {
    ($store:expr, $operation:ident($($argument:expr),*)) => {{
        let outcome = async {
            let dialect = $store.ask_dialect().await?;
            $store.first_look.ensure_fit(&$store.locks, |facts| FOR_LOCKS.judge(facts)).await?;
            carry_out!($store, dialect, $operation($($argument),*))
        };
        $store.locks.answered(outcome.await)
    }};
}

macro_rules! carry_out {
    ($store:expr, $dialect:expr, $operation:ident($($argument:expr),*)) => {
        match $dialect {
            Dialect::Pipelines(clock) => {
                Pipelines::new($store, clock).$operation($($argument),*).await
            }
            Dialect::Classic => Classic($store).$operation($($argument),*).await,
        }
    };
}

impl MongoStore {
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
        on_a_fit_collection!(self, acquire(request))
    }

    async fn leave(&self, key: &Key, waiter: LeaseId) -> Result<(), Error> {
        in_dialect!(self, leave(key, waiter))
    }

    async fn renew(&self, requests: &[RenewRequest]) -> Result<RenewAnswers, Error> {
        let answers = in_dialect!(self, renew(requests))?;
        Ok(self.each_answered(answers))
    }

    async fn convert(&self, request: &ConvertRequest) -> Result<ConvertAnswer, Error> {
        on_a_fit_collection!(self, convert(request))
    }

    async fn release(&self, request: &ReleaseRequest) -> Result<ReleaseAnswer, Error> {
        in_dialect!(self, release(request))
    }

    async fn inspect(&self, key: &Key) -> Result<Option<LockState>, Error> {
        in_dialect!(self, inspect(key))
    }

    async fn look(&self, leases: &[LookRequest]) -> Result<Vec<LookAnswer>, Error> {
        in_dialect!(self, look(leases))
    }

    async fn list(&self, request: &ListRequest) -> Result<Page, Error> {
        in_dialect!(self, list(request))
    }

    async fn evict(&self, key: &Key) -> Result<Option<Eviction>, Error> {
        in_dialect!(self, evict(key))
    }

    async fn remove_expired(&self, key: &Key) -> Result<bool, Error> {
        in_dialect!(self, remove_expired(key))
    }

    async fn permit(&self, request: &PermitRequest) -> Result<PermitAnswer, Error> {
        on_a_fit_collection!(self, permit(request))
    }

    async fn purge(&self, retention: Duration) -> Result<u64, Error> {
        in_dialect!(self, purge(retention))
    }

    fn max_concurrent(&self) -> usize {
        MAX_CONCURRENT
    }

    fn has_cheap_undoable_releases(&self) -> bool {
        !self.durable_releases
    }

    async fn batch(&self, requests: &[BatchRequest]) -> Result<BatchAnswers, Error> {
        let answers = on_a_fit_collection!(self, batch(requests))?;
        Ok(self.each_answered(answers))
    }

    async fn freed(&self) -> Result<Option<FreedKeys>, Error> {
        let outcome = async {
            match self.ask_dialect().await? {
                Dialect::Pipelines(_) => self.watch_freed().await,
                Dialect::Classic => Ok(None),
            }
        };
        self.locks.answered(outcome.await)
    }

    async fn awaited(&self) -> Result<Option<AwaitedKeys>, Error> {
        let outcome = async {
            match self.ask_dialect().await? {
                Dialect::Pipelines(_) => self.watch_awaited().await,
                Dialect::Classic => Ok(None),
            }
        };
        self.locks.answered(outcome.await)
    }

    fn name(&self) -> String {
        self.locks.name()
    }

    fn as_any(&self) -> Option<&dyn Any> {
        Some(self)
    }
}
