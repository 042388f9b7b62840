//! A lock that is taken and released to see that the server lets a client do that.

use std::time::Duration;

use super::{
    MongoStore,
    error::{STORE, classify},
    statements,
};
use crate::{
    messages::{AcquireAnswer, AcquireRequest, ReleaseAnswer, ReleaseRequest},
    model::{Cause, Error, Key, LeaseId},
    store::Store as _,
};

/// The ttl of the lock. The trial ends sooner, unless this process ends in the middle of it.
const TTL: Duration = Duration::from_secs(60);
/// The beginning of the key, and the owner.
const NAME: &str = "leasehold prepare";

impl MongoStore {
    /// Takes a lock that nobody else uses, releases it, and removes its document, also if one of these steps fails.
    ///
    /// # Errors
    ///
    /// The error of the first step that failed: the collection may have a validator, for example, or this user may only
    /// read.
    pub(super) async fn try_a_lock(&self) -> Result<(), Error> {
        let lease = LeaseId::random();
        let key = Key::new(format!("{NAME} {lease}"))?;
        let tried = self.take_and_release(&key, lease).await;
        let locks = self.locks.durable_writes().await?;
        let removed = locks.delete_one(statements::filter(&key)).await;
        tried?;
        removed.map(drop).map_err(classify)
    }

    async fn take_and_release(&self, key: &Key, lease: LeaseId) -> Result<(), Error> {
        let acquire = AcquireRequest::exclusive(key.clone(), lease, NAME.into(), TTL).fresh();
        if !matches!(self.acquire(&acquire).await?, AcquireAnswer::Granted(_)) {
            return Err(odd("a lock on a new key was refused"));
        }
        match self
            .release(&ReleaseRequest::new(key.clone(), lease))
            .await?
        {
            ReleaseAnswer::Released => Ok(()),
            ReleaseAnswer::NotHeld => Err(odd("a lock was gone before its release")),
        }
    }
}

fn odd(what: &str) -> Error {
    Error::Store {
        store: STORE,
        source: Cause::text(what),
    }
}
