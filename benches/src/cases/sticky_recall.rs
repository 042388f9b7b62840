//! How long another process waits for a key that stays idle.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

use anyhow::Result;
use async_trait::async_trait;
use leasehold::Leases;
use tokio::time::sleep;

use super::sticky::{IDLE, STICKY, TTL};
use crate::{
    engines::Mongo,
    ours::mongo_store,
    results::CaseResult,
    rounds::{Plan, Sample, Side, compare},
};

pub const ABOUT: &str = "From the acquire of a process to its grant: of a key that is free (`leasehold`), and of one \
    that stays idle with another process (`leasehold-sticky`). On a replica set a change stream \
    tells that process of the wait; elsewhere it looks twice a second.";

pub async fn measure(mongo: &Mongo, plan: Plan) -> Result<CaseResult> {
    let mut result = CaseResult::default();
    let mut sides: Vec<Box<dyn Side>> = Vec::new();
    for (name, idle) in [("leasehold", Duration::ZERO), (STICKY, IDLE)] {
        let handles = handles(mongo, name, idle).await?;
        let next = AtomicU64::new(0);
        sides.push(Box::new(Waits {
            name,
            handles,
            next,
        }));
    }
    result.add("an idle key", compare(plan, &sides).await?);
    Ok(result)
}

/// Two handles of the same collection, like those of two processes.
async fn handles(mongo: &Mongo, side: &str, idle: Duration) -> Result<[Leases; 2]> {
    let collection = mongo.collection(side).name().to_owned();
    let handle = async |owner: &'static str| {
        let (database, _) = mongo.counting().await?;
        let store = mongo_store(&database.collection(&collection)).await?;
        anyhow::Ok(Leases::builder(store).owner(owner).sticky(idle).build())
    };
    Ok([handle("one").await?, handle("other").await?])
}

struct Waits {
    name: &'static str,
    handles: [Leases; 2],
    next: AtomicU64,
}

#[async_trait]
impl Side for Waits {
    fn name(&self) -> &'static str {
        self.name
    }

    /// Ignores the given time: each turn asks for one key, a new one, because a key that was recalled does not stay for a
    /// while.
    async fn turn(&self, _: Duration) -> Result<Sample> {
        let [here, there] = &self.handles;
        let key = format!("recall-{}", self.next.fetch_add(1, Ordering::Relaxed));
        here.acquire(&key, TTL).await?.release().await?;
        // The looks come twice a second, and another process may begin to wait at any time between two of them.
        sleep(Duration::from_millis(fastrand::u64(..1_000))).await;
        let begin = Instant::now();
        let lease = there.acquire(&key, TTL).await?;
        let waited = begin.elapsed();
        lease.release().await?;
        Ok(Sample {
            figures: vec![("wait, ms", waited.as_secs_f64() * 1e3)],
            ..Sample::default()
        })
    }
}
