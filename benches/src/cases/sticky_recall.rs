//! How long another process waits for a key that stays idle.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

use anyhow::Result;
use async_trait::async_trait;
use leasehold::Leases;
use tokio::time::sleep;

use super::{
    sticky::{IDLE, STICKY, TTL},
    sticky_processes::handles,
};
use crate::{
    engines::Mongo,
    results::CaseResult,
    rounds::{Plan, Sample, Side, compare},
};

/// The keys of a turn. Each is recalled once, because it does not stay for a while after that.
const KEYS: u64 = 3;

pub async fn measure(mongo: &Mongo, plan: Plan) -> Result<CaseResult> {
    let about = "From the acquire of a process to its grant: of a key that is free (`leasehold`), and \
                 of one that stays idle with another process (`leasehold-sticky`). On a replica set \
                 a change stream tells that process of the wait; elsewhere it looks twice a second.";
    let mut result = CaseResult::new("sticky-recall", mongo.engine.name(), about);
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

    /// Ignores the given time: each turn asks for a few keys.
    async fn turn(&self, _: Duration) -> Result<Sample> {
        let [here, there] = &self.handles;
        let mut waited = Duration::ZERO;
        for _ in 0..KEYS {
            let key = format!("recall-{}", self.next.fetch_add(1, Ordering::Relaxed));
            here.acquire(&key, TTL).await?.release().await?;
            // The looks come twice a second, and another process may begin to wait at any time between two of them.
            sleep(Duration::from_millis(fastrand::u64(..1_000))).await;
            let begin = Instant::now();
            let lease = there.acquire(&key, TTL).await?;
            waited += begin.elapsed();
            lease.release().await?;
        }
        Ok(Sample {
            figures: vec![("wait, ms", waited.as_secs_f64() * 1e3 / KEYS as f64)],
            ..Sample::default()
        })
    }
}
