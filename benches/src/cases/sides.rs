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

/// What a side is, and what it promises. The report shows them.
pub struct Description {
    pub name: &'static str,
    pub what: &'static str,
    pub promises: &'static str,
}

const fn side(name: &'static str, what: &'static str, promises: &'static str) -> Description {
    Description {
        name,
        what,
        promises,
    }
}

const AS_LEASEHOLD: &str = "as `leasehold`";

/// The sides whose names occur in several cases.
pub const SIDES: &[Description] = &[
    side(
        "raw",
        "the lower bound: the bare client and the smallest document. On MongoDB one \
         `findOneAndUpdate` and one `updateOne` on `_id`; on search engines two scripted updates",
        "a fence; expiry on the server's clock; only the holder releases; grants and releases survive a kill \
         of the server, and on a replica set a failover",
    ),
    side(
        "raw-release-w1",
        "`raw`, with releases that the primary alone acknowledges",
        "as `raw`, but a failover may undo a release",
    ),
    side(
        "raw-ttl-index",
        "`raw`, with the index by which MongoDB removes dead locks",
        "as `raw`",
    ),
    side(
        "leasehold-store",
        "the calls of the `Store` trait, without the client: what the document and its rules cost",
        "as `leasehold`, for one request at a time; nobody waits",
    ),
    side(
        "leasehold",
        "`try_acquire` or `acquire`, and `release`",
        "as `raw-release-w1`; also an owner, turns among all that wait, repeated requests, and a refusal of \
         documents that are no locks",
    ),
    side(
        "leasehold-durable",
        "`leasehold`, with `durable_releases(true)`",
        "as `leasehold`; a failover undoes no release",
    ),
    side(
        "leasehold-dropped",
        "`leasehold`, with guards that are dropped: they are released in the background, as those of \
         `mongodb-lock`",
        AS_LEASEHOLD,
    ),
    side(
        "leasehold-classic",
        "`leasehold`, without pipelines in the statements",
        AS_LEASEHOLD,
    ),
    side(
        "leasehold-barging",
        "`acquire` with `.barging()`",
        "as `leasehold`, without turns among processes",
    ),
    side(
        "leasehold-sticky",
        "`leasehold`, with `.sticky(…)`: the lease stays with its process",
        AS_LEASEHOLD,
    ),
    side(
        "leasehold-polling",
        "`try_acquire` every 10 ms, where `raw` has no shared lock",
        "as `leasehold`, without turns",
    ),
    side(
        "mongo-lock-async",
        "the crate of that name, 0.4: an upsert",
        "expiry on the client's clock; no fence; whoever knows the key releases",
    ),
    side(
        "distributed-lock-mongo",
        "the crate of that name, 0.2: an upsert",
        "expiry on the server's clock; no fence; only the holder releases",
    ),
    side(
        "mongodb-lock",
        "the crate of that name, 0.3: an insert with a unique index; its releases run in the background",
        "no expiry; no fence",
    ),
];

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
