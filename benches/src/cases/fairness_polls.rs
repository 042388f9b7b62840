//! How often processes that wait for the same key send requests.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use leasehold::Leases;
use tokio::task::JoinSet;

use crate::{
    counted::{self, Count},
    engines::{Mongo, connect},
    locks::LONG,
    ours::{Bare, mongo_store},
    results::{CaseResult, SideResult},
    rounds::Plan,
    waiting::Way,
};

/// The number of handles that share a client. A client has ten connections, and a change stream occupies one of them,
/// so that each handle has a second one for its requests.
const HANDLES: usize = 5;
const KEY: &str = "wanted";

/// How long each process that is granted the key holds it, before it releases it and waits again.
const HOLD: Duration = Duration::from_millis(5);

pub const ABOUT: &str = "The commands of 10 and 100 handles that wait for one key. Each handle has a queue and a \
    place of its own, as a process has. Another client holds the key all the time, or each \
    handle that is granted the key holds it for 5 ms, releases it, and waits again. Acquires and \
    releases are counted. Commands that read change streams are not; the column `of streams/s` \
    has them. `leasehold` waits in turn, and `leasehold-barging` with `.barging()`.";

pub async fn measure(mongo: &Mongo, _: Plan) -> Result<CaseResult> {
    let mut result = CaseResult::default();
    for (held, name) in [(true, "held"), (false, "5 ms")] {
        for handles in [10, 100] {
            let mut sides = Vec::new();
            for way in [Way::Barging, Way::InTurn] {
                sides.push(side(mongo, way, handles, held).await?);
            }
            result.add(format!("{handles}, {name}"), sides);
        }
    }
    Ok(result)
}

/// Measures handles that wait for a key that another client holds, or that hold it one after the other.
async fn side(mongo: &Mongo, way: Way, handles: usize, held: bool) -> Result<SideResult> {
    let collection = mongo.collection(way.side()).name().to_owned();
    let holder = Bare::shared(mongo_store(&mongo.database.collection(&collection)).await?);
    let guard = holder.try_acquire(KEY, LONG).await?;
    let guard = guard.context("a free key is held")?;

    let mut counts = Vec::new();
    let mut all = Vec::new();
    for number in 0..handles {
        if number % HANDLES == 0 {
            let (handler, commands, streams) = counted::commands_and_streams();
            let client = connect(&mongo.uri, mongo.database.name(), Some(handler)).await?;
            counts.push((client, commands, streams));
        }
        let (client, ..) = counts.last().context("no client")?;
        let locks = client
            .database(mongo.database.name())
            .collection(&collection);
        all.push(Leases::new(mongo_store(&locks).await?));
    }
    let (grants, is_over) = (Count::default(), Arc::new(AtomicBool::new(false)));
    let mut tasks = JoinSet::new();
    for leases in &all {
        let (leases, grants, is_over) = (leases.clone(), grants.clone(), is_over.clone());
        tasks.spawn(async move {
            while !is_over.load(Ordering::Relaxed) {
                let lease = way.acquire_as(&leases, KEY, LONG, false).await?;
                grants.fetch_add(1, Ordering::Relaxed);
                tokio::time::sleep(HOLD).await;
                lease.release().await?;
            }
            anyhow::Ok(())
        });
    }
    let (settles, time) = match held {
        // The warm-up is long enough for the pauses to reach their full length.
        true => (6, 5),
        // All handles begin at the same time, and a busy server answers the first requests of many late.
        false if handles > 10 => (8, 8),
        false => (3, 6),
    };
    let mut kept = Some(guard);
    if !held && let Some(guard) = kept.take() {
        guard.release().await?;
    }
    tokio::time::sleep(Duration::from_secs(settles)).await;
    let so_far = || {
        let sum = |of: fn(&(mongodb::Client, Count, Count)) -> &AtomicU64| {
            counts
                .iter()
                .map(|it| of(it).load(Ordering::Relaxed))
                .sum::<u64>()
        };
        (
            sum(|it| &it.1),
            sum(|it| &it.2),
            grants.load(Ordering::Relaxed),
        )
    };
    let (begin, before) = (Instant::now(), so_far());
    tokio::time::sleep(Duration::from_secs(time)).await;
    let (seconds, after) = (begin.elapsed().as_secs_f64(), so_far());
    let per_second = |before: u64, after: u64| (after - before) as f64 / seconds;
    let streams = per_second(before.1, after.1);
    let commands = per_second(before.0, after.0) - streams;
    let granted = per_second(before.2, after.2);
    let mut figures = vec![("commands/s", commands), ("of streams/s", streams)];
    if !held {
        figures.extend([
            ("grants/s", granted),
            ("commands/grant", commands / granted),
        ]);
    }
    is_over.store(true, Ordering::Relaxed);
    if let Some(guard) = kept {
        tasks.shutdown().await;
        guard.release().await?;
    }
    while let Some(done) = tasks.join_next().await {
        done??;
    }
    for leases in all {
        leases.close().await;
    }
    Ok(SideResult::once(way.side(), &figures))
}
