//! The sides on MongoDB. Each has its own collection.

use std::sync::Arc;

use anyhow::Result;
use leasehold::{Leases, MongoStore};

use crate::{
    engines::Mongo,
    locks::SharedLocks,
    ours::{Bare, Dropped, Whole, mongo_store},
    peers::{DistributedLockMongo, MongoLockAsync, MongodbLock},
    raw::RawLocks,
};

pub fn raw(mongo: &Mongo) -> SharedLocks {
    Arc::new(RawLocks::new("raw", &mongo.collection("raw")))
}

pub fn raw_released_by_the_primary(mongo: &Mongo) -> SharedLocks {
    let name = "raw-release-w1";
    Arc::new(RawLocks::new(name, &mongo.collection(name)).released_by_the_primary())
}

pub async fn raw_with_ttl_index(mongo: &Mongo) -> Result<SharedLocks> {
    let collection = mongo.collection("raw-ttl-index");
    let locks = RawLocks::with_ttl_index("raw-ttl-index", &collection).await?;
    Ok(Arc::new(locks))
}

pub async fn store(mongo: &Mongo, side: &str) -> Result<MongoStore> {
    mongo_store(&mongo.collection(side)).await
}

pub async fn bare(mongo: &Mongo) -> Result<SharedLocks> {
    Ok(Bare::shared(store(mongo, "leasehold-store").await?))
}

pub async fn leases(mongo: &Mongo) -> Result<Leases> {
    Ok(Leases::new(store(mongo, "leasehold").await?))
}

pub async fn whole(mongo: &Mongo) -> Result<SharedLocks> {
    Ok(Whole::shared(&leases(mongo).await?))
}

/// leasehold, with releases that are as durable as grants.
pub async fn durable(mongo: &Mongo) -> Result<SharedLocks> {
    let name = "leasehold-durable";
    let store = store(mongo, name).await?.durable_releases(true);
    Ok(Whole::named(name, &Leases::new(store)))
}

/// leasehold, with guards that are dropped, so that they are released in the background.
pub async fn dropped(mongo: &Mongo) -> Result<SharedLocks> {
    let name = "leasehold-dropped";
    let leases = Leases::new(store(mongo, name).await?);
    Ok(Arc::new(Dropped(Whole::of(name, &leases))))
}

pub async fn mongo_lock_async(mongo: &Mongo) -> Result<SharedLocks> {
    MongoLockAsync::shared(&mongo.client).await
}

pub fn distributed_lock_mongo(mongo: &Mongo) -> SharedLocks {
    let collection = mongo.collection("distributed-lock-mongo");
    DistributedLockMongo::shared(&collection, &mongo.database)
}

pub async fn mongodb_lock(mongo: &Mongo) -> Result<SharedLocks> {
    MongodbLock::shared(&mongo.collection("mongodb-lock"), &mongo.database).await
}

/// All sides that can acquire and release.
pub async fn all(mongo: &Mongo) -> Result<Vec<SharedLocks>> {
    Ok(vec![
        raw(mongo),
        raw_released_by_the_primary(mongo),
        raw_with_ttl_index(mongo).await?,
        bare(mongo).await?,
        whole(mongo).await?,
        durable(mongo).await?,
        dropped(mongo).await?,
        mongo_lock_async(mongo).await?,
        distributed_lock_mongo(mongo),
        mongodb_lock(mongo).await?,
    ])
}

/// All sides whose locks expire, and which can try to acquire a key without waiting.
pub async fn expiring(mongo: &Mongo) -> Result<Vec<SharedLocks>> {
    Ok(vec![
        raw(mongo),
        bare(mongo).await?,
        whole(mongo).await?,
        mongo_lock_async(mongo).await?,
        distributed_lock_mongo(mongo),
    ])
}
