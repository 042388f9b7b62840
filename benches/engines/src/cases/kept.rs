//! What it costs to keep very many leases alive.

use std::{
    sync::atomic::Ordering,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use futures::{StreamExt, TryStreamExt, stream};
use leasehold::{Lease, Leases};

use crate::{
    cpu,
    engines::Mongo,
    ours::mongo_store,
    results::{CaseResult, SideResult, grouped},
    rounds::Plan,
};

const LEASES: usize = 10_000;
const TTL: Duration = Duration::from_secs(30);
/// A third of the ttl.
const PERIOD: Duration = Duration::from_secs(10);
const PERIODS: u32 = 3;

pub async fn measure(mongo: &Mongo, _: Plan) -> Result<CaseResult> {
    let about = "10,000 leases that are kept alive, with a ttl of 30 s: what the client sends, and what it \
                 has of the processors, over three periods of renewals (of 10 s each).";
    let (database, commands) = mongo.counting().await?;
    let collection = database.collection(mongo.collection("leasehold").name());
    let leases = Leases::new(mongo_store(&collection).await?);
    let asked = (0..LEASES).map(|number| {
        let leases = leases.clone();
        async move {
            leases
                .acquire(format!("kept-{number}"), TTL)
                .keep_alive()
                .await
        }
    });
    let kept: Vec<Lease> = stream::iter(asked)
        .buffer_unordered(64)
        .try_collect()
        .await?;
    // Until each has been renewed once.
    tokio::time::sleep(PERIOD + Duration::from_secs(2)).await;

    let (begin, used, sent) = (
        Instant::now(),
        cpu::used(),
        commands.load(Ordering::Relaxed),
    );
    tokio::time::sleep(PERIOD * PERIODS).await;
    let seconds = begin.elapsed().as_secs_f64();
    let sent = (commands.load(Ordering::Relaxed) - sent) as f64;
    let used = (cpu::used() - used).as_secs_f64();
    let live = kept.iter().filter(|lease| lease.is_live()).count();
    ensure!(live == LEASES, "only {live} of {LEASES} leases are alive");

    let per_period = sent / seconds * PERIOD.as_secs_f64();
    let mut result = CaseResult::new("kept", mongo.engine.name(), about);
    let figures = [
        ("commands/s", sent / seconds),
        ("commands/period", per_period),
        ("leases/command", LEASES as f64 / per_period),
        ("CPU s/s", used / seconds),
    ];
    let side = SideResult::once("leasehold", &figures);
    result.add(format!("{} leases", grouped(LEASES as f64)), vec![side]);
    drop(kept);
    leases.close().await;
    Ok(result)
}
