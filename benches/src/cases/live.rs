//! An acquire of a free key and its release, while very many live locks are in the same collection.

use std::sync::Arc;

use anyhow::{Context, Result};
use mongodb::{
    Collection,
    bson::{Document, doc},
};
use uuid::Uuid;

use crate::{
    engines::Mongo,
    locks::{LONG, SharedLocks},
    loops::Loops,
    ours::{Bare, Whole, mongo_store},
    raw::RawLocks,
    results::CaseResult,
    rounds::{Plan, compare},
};

const TASKS: usize = 8;
const BATCH: usize = 2_000;

pub const ABOUT: &str = "Acquires of a free key, each with its release, on new keys by 8 tasks, with the given number \
    of live locks in the collection.";

pub async fn measure(mongo: &Mongo, plan: Plan) -> Result<CaseResult> {
    let mut places: Vec<(Collection<Document>, SharedLocks, usize)> = Vec::new();
    let raw = mongo.collection("raw");
    let locks = Arc::new(RawLocks::new("raw", &raw));
    places.push((raw, locks, 0));
    let bare = mongo.collection("leasehold-store");
    let locks = Bare::shared(mongo_store(&bare).await?);
    places.push((bare, locks, 0));
    let whole = mongo.collection("leasehold");
    let leases = leasehold::Leases::new(mongo_store(&whole).await?);
    places.push((whole, Whole::shared(&leases), 0));

    let mut result = CaseResult::default();
    for live in [1, 100, 10_000, 100_000] {
        for (collection, locks, there) in &mut places {
            fill(collection, locks, live - *there).await?;
            *there = live;
        }
        let sides = places
            .iter()
            .map(|place| Loops::fresh(&place.1, TASKS).boxed());
        let sides: Vec<_> = sides.collect();
        result.add_at(live, "live locks", compare(plan, &sides).await?);
    }
    Ok(result)
}

/// Adds live locks. They are copies of a lock that the side itself has acquired, so they have the same form.
async fn fill(collection: &Collection<Document>, locks: &SharedLocks, more: usize) -> Result<()> {
    let key = Uuid::new_v4().to_string();
    let guard = locks.try_acquire(&key, LONG).await?;
    let guard = guard.context("a free key is held")?;
    let pattern = collection.find_one(doc! { "_id": &key }).await?;
    let pattern = pattern.context("a held lock has no document")?;
    for begin in (0..more).step_by(BATCH) {
        let copies = (begin..more.min(begin + BATCH)).map(|_| {
            let mut copy = pattern.clone();
            copy.insert("_id", Uuid::new_v4().to_string());
            copy
        });
        collection.insert_many(copies).await?;
    }
    guard.release().await
}
