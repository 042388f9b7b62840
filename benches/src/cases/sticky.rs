//! Keys that stay with their process: a cycle, and a lock on an index that each worker shares before it takes one on a
//! document.

use std::{sync::Arc, time::Duration};

use anyhow::{Context, Result};
use futures::future::BoxFuture;
use leasehold::Leases;

use super::sides;
use crate::{
    engines::Mongo,
    locks::SharedLocks,
    loops::{Loops, Work},
    ours::Whole,
    results::CaseResult,
    rounds::{Plan, Side, compare},
};

pub const STICKY: &str = "leasehold-sticky";
/// The usual ttl, so that the renewals of the lease that stays are in the figures.
pub const TTL: Duration = Duration::from_secs(30);
/// Longer than the turns of all other sides of a round.
pub const IDLE: Duration = Duration::from_secs(600);
const KEY: &str = "key";
const TASKS: [usize; 2] = [1, 8];

pub const CYCLES: &str = "Acquires of one key, each with its release, by tasks that share the key. One task tries, as \
    in `cycle`. Eight tasks wait for each other, and raw is a fair mutex in the process around \
    an acquire and a release, as in `handoff`. `leasehold-sticky` asks the store for 4,096 \
    fences at once.";

pub async fn cycles(mongo: &Mongo, plan: Plan) -> Result<CaseResult> {
    let mut result = CaseResult::default();
    for tasks in TASKS {
        let locks = [
            sides::raw(mongo),
            sides::whole(mongo).await?,
            Whole::named(STICKY, &sticky(mongo).await?),
        ];
        let sides: Vec<_> = locks.iter().map(|locks| sharing(locks, tasks)).collect();
        result.add_at(tasks, "tasks", compare(plan, &sides).await?);
    }
    Ok(result)
}

pub const INDEX: &str = "Workers that each take a shared lock on the same index, then a lock on a document of their \
    own 1,000, and release both. `leasehold` takes the first with `shared`, `leasehold-sticky` \
    with `.shared().sticky(…)`. Raw has no shared lock.";

pub async fn index(mongo: &Mongo, plan: Plan) -> Result<CaseResult> {
    let mut result = CaseResult::default();
    for tasks in TASKS {
        let each = 1_000 / tasks as u64;
        let leases = sides::leases(mongo).await?;
        let plain = working(tasks, "leasehold", move |task, turn| {
            let (leases, document) = (leases.clone(), format!("doc-{task}-{}", turn % each));
            Box::pin(async move {
                let index = leases.acquire("index", TTL).shared().await?;
                leases.acquire(document, TTL).await?.release().await?;
                Ok(index.release().await?)
            })
        });
        let leases = Leases::new(sides::store(mongo, STICKY).await?);
        let sticky = working(tasks, STICKY, move |task, turn| {
            let (leases, document) = (leases.clone(), format!("doc-{task}-{}", turn % each));
            Box::pin(async move {
                let index = leases.acquire("index", TTL).shared().sticky(IDLE).await?;
                leases.acquire(document, TTL).await?.release().await?;
                Ok(index.release().await?)
            })
        });
        result.add_at(tasks, "tasks", compare(plan, &[plain, sticky]).await?);
    }
    Ok(result)
}

/// A handle whose keys stay, with a collection of its own.
async fn sticky(mongo: &Mongo) -> Result<Leases> {
    let store = sides::store(mongo, STICKY).await?;
    Ok(Leases::builder(store).sticky(IDLE).build())
}

fn sharing(locks: &SharedLocks, tasks: usize) -> Box<dyn Side> {
    let shared = locks.clone();
    let work: Work = Arc::new(move |_, _| {
        let locks = shared.clone();
        Box::pin(async move {
            let guard = match tasks {
                1 => locks.try_acquire(KEY, TTL).await?,
                _ => Some(locks.acquire(KEY, TTL).await?),
            };
            guard.context("a free key is held")?.release().await
        })
    });
    Loops::new(locks.name(), "cycles/s", tasks, work).boxed()
}

fn working(
    tasks: usize,
    name: &'static str,
    work: impl Fn(usize, u64) -> BoxFuture<'static, Result<()>> + Send + Sync + 'static,
) -> Box<dyn Side> {
    Loops::new(name, "documents/s", tasks, Arc::new(work)).boxed()
}
