//! How often waiters send requests.

use std::{
    sync::atomic::Ordering,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use leasehold::Leases;
use tokio::task::JoinSet;

use crate::{
    engines::Mongo,
    locks::LONG,
    ours::{Bare, mongo_store},
    results::{CaseResult, SideResult},
    rounds::Plan,
};

/// Longer than the longest pause between two requests.
const TIME: Duration = Duration::from_secs(10);

pub const ABOUT: &str = "The commands that tasks of one process send in 10 s while they wait for a key that another \
    client holds. The commands of a change stream are included.";

pub async fn measure(mongo: &Mongo, _: Plan) -> Result<CaseResult> {
    let mut result = CaseResult::default();
    for waiters in [1, 100, 1_000] {
        let name = mongo.collection("leasehold").name().to_owned();
        let holder = Bare::shared(mongo_store(&mongo.database.collection(&name)).await?);
        let guard = holder.try_acquire("wanted", LONG).await?;
        let guard = guard.context("a free key is held")?;

        let (database, commands) = mongo.counting().await?;
        let leases = Leases::new(mongo_store(&database.collection(&name)).await?);
        let mut tasks = JoinSet::new();
        for _ in 0..waiters {
            let leases = leases.clone();
            tasks.spawn(async move { leases.acquire("wanted", LONG).await.map(drop) });
        }
        // The pauses reach their full length in this time.
        tokio::time::sleep(Duration::from_secs(3)).await;
        let (begin, before) = (Instant::now(), commands.load(Ordering::Relaxed));
        tokio::time::sleep(TIME).await;
        let sent = (commands.load(Ordering::Relaxed) - before) as f64;
        let rate = sent / begin.elapsed().as_secs_f64();
        let side = SideResult::once("leasehold", &[("commands/s", rate)]);
        result.add_at(waiters, "waiters", vec![side]);

        tasks.shutdown().await;
        leases.close().await;
        guard.release().await?;
    }
    Ok(result)
}
