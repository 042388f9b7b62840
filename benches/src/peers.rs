//! Other crates that lock on MongoDB, each used as its documentation says, with the same client, pool and write
//! concern.
//!
//! How each one works: `mongo-lock-async` sends an upsert with a condition on the client's clock and has no token; its
//! release is a delete by the key alone. `distributed-lock-mongo` sends an upsert with a pipeline on the server's
//! clock, and a delete by its token. `mongodb-lock` inserts a document behind a unique index, without an expiry, and
//! deletes it in the background when the guard is dropped. None of them has a fence.

use std::{sync::Arc, time::Duration};

use anyhow::{Result, bail};
use async_trait::async_trait;
use distributed_lock_core::traits::{DistributedLock, LockHandle};
use distributed_lock_mongo::{
    MongoDistributedLock, MongoDistributedLockOptions, handle::MongoLockHandle,
};
use mongodb::{
    Client, Collection, Database,
    bson::{Document, doc},
};

use crate::{
    locks::{Guard, LONG, Locks, SharedLocks},
    raw::PAUSE,
};

/// `mongo-lock-async`, which uses the collection `locks` of the client's database.
pub struct MongoLockAsync {
    client: Client,
}

impl MongoLockAsync {
    pub async fn shared(client: &Client) -> Result<SharedLocks> {
        mongo_lock_async::prepare_database(client).await?;
        let client = client.clone();
        Ok(Arc::new(Self { client }))
    }
}

#[async_trait]
impl Locks for MongoLockAsync {
    fn name(&self) -> &'static str {
        "mongo-lock-async"
    }

    async fn try_acquire(&self, key: &str, ttl: Duration) -> Result<Option<Box<dyn Guard>>> {
        let lock = mongo_lock_async::Lock::try_acquire(&self.client, key, ttl).await?;
        Ok(lock.map(|lock| Box::new(MongoLockAsyncGuard(lock)) as _))
    }

    async fn acquire(&self, key: &str, ttl: Duration) -> Result<Box<dyn Guard>> {
        let lock =
            mongo_lock_async::Lock::try_acquire_with_timeout(&self.client, key, ttl, LONG, PAUSE);
        match lock.await? {
            Some(lock) => Ok(Box::new(MongoLockAsyncGuard(lock))),
            None => bail!("not acquired"),
        }
    }
}

struct MongoLockAsyncGuard(mongo_lock_async::Lock);

#[async_trait]
impl Guard for MongoLockAsyncGuard {
    async fn release(self: Box<Self>) -> Result<()> {
        // The crate cannot tell whether the lock still existed, because it deletes by the key.
        self.0.release().await?;
        Ok(())
    }

    fn leave(self: Box<Self>) {}
}

/// `distributed-lock-mongo`.
pub struct DistributedLockMongo {
    database: Database,
    collection: String,
}

impl DistributedLockMongo {
    pub fn shared(locks: &Collection<Document>, database: &Database) -> SharedLocks {
        Arc::new(Self {
            database: database.clone(),
            collection: locks.name().to_owned(),
        })
    }

    fn lock(&self, key: &str, ttl: Duration) -> MongoDistributedLock {
        let options = MongoDistributedLockOptions {
            expiry: ttl,
            min_busy_wait_sleep_time: PAUSE,
            ..MongoDistributedLockOptions::default()
        };
        let collection = Some(self.collection.clone());
        MongoDistributedLock::new(
            key.to_owned(),
            self.database.clone(),
            collection,
            Some(options),
        )
    }
}

#[async_trait]
impl Locks for DistributedLockMongo {
    fn name(&self) -> &'static str {
        "distributed-lock-mongo"
    }

    async fn try_acquire(&self, key: &str, ttl: Duration) -> Result<Option<Box<dyn Guard>>> {
        let handle = self.lock(key, ttl).try_acquire().await?;
        Ok(handle.map(|handle| Box::new(DistributedGuard(handle)) as _))
    }

    async fn acquire(&self, key: &str, ttl: Duration) -> Result<Box<dyn Guard>> {
        let handle = self.lock(key, ttl).acquire(None).await?;
        Ok(Box::new(DistributedGuard(handle)))
    }
}

struct DistributedGuard(MongoLockHandle);

#[async_trait]
impl Guard for DistributedGuard {
    async fn release(self: Box<Self>) -> Result<()> {
        Ok(self.0.release().await?)
    }

    fn leave(self: Box<Self>) {}
}

/// The mutex of `mongodb-lock`.
pub struct MongodbLock {
    mutex: &'static mongodb_lock::Mutex<String>,
    locks: Collection<Document>,
}

impl MongodbLock {
    pub async fn shared(locks: &Collection<Document>, database: &Database) -> Result<SharedLocks> {
        let mutex = mongodb_lock::Mutex::new(database, locks.name()).await?;
        Ok(Arc::new(Self {
            // The guards borrow the mutex, and it is needed until the end of the program.
            mutex: Box::leak(Box::new(mutex)),
            locks: locks.clone(),
        }))
    }
}

#[async_trait]
impl Locks for MongodbLock {
    fn name(&self) -> &'static str {
        "mongodb-lock"
    }

    /// The crate cannot try without waiting, so this is only for free keys.
    async fn try_acquire(&self, key: &str, ttl: Duration) -> Result<Option<Box<dyn Guard>>> {
        self.acquire(key, ttl).await.map(Some)
    }

    async fn acquire(&self, key: &str, _: Duration) -> Result<Box<dyn Guard>> {
        let guard = self.mutex.lock(LONG, PAUSE, key.to_owned()).await?;
        Ok(Box::new(MongodbLockGuard(guard)))
    }

    /// The releases end in the background.
    async fn settle(&self) -> Result<()> {
        while self.locks.count_documents(doc! {}).await? > 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        Ok(())
    }
}

struct MongodbLockGuard(mongodb_lock::MutexGuard<'static, String>);

#[async_trait]
impl Guard for MongodbLockGuard {
    async fn release(self: Box<Self>) -> Result<()> {
        drop(self.0);
        Ok(())
    }

    fn leave(self: Box<Self>) {
        std::mem::forget(self.0);
    }
}
