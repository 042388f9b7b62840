//! How many commands each operation takes.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use anyhow::{Result, bail};
use futures::future::try_join_all;
use leasehold::{Attempt, Leases};

use crate::{
    engines::Mongo,
    locks::LONG,
    loops::Work,
    ours::mongo_store,
    results::{CaseResult, SideResult},
    rounds::Plan,
};

/// How often each operation is performed.
const TIMES: u64 = 200;
/// Tasks that want one key.
const TASKS: u64 = 8;
const HELD: &str = "held";

pub const ABOUT: &str = "The commands that a client sends for one operation, by one task and on new keys unless \
     another number is given: the mean of 200. A cycle is an acquire and its release. In a \
     hand-over 8 tasks of the process want one key all the time.";

pub async fn measure(mongo: &Mongo, _: Plan) -> Result<CaseResult> {
    let (database, count) = mongo.counting().await?;
    let collection = database.collection(mongo.collection("leasehold").name());
    let leases = Leases::new(mongo_store(&collection).await?);
    let other = Leases::new(mongo_store(&mongo.database.collection(collection.name())).await?);
    let held = other.acquire(HELD, LONG).await?;
    // The first request of a client has commands of its own: a look at the collection, for example.
    cycle(&leases, "first").await?;

    let mut result = CaseResult::default();
    for (name, operations, work) in operations(&leases) {
        let before = count.load(Ordering::Relaxed);
        for turn in 0..operations {
            work(0, turn).await?;
        }
        let sent = count.load(Ordering::Relaxed) - before;
        let each = sent as f64 / TIMES as f64;
        let side = SideResult::once("leasehold", &[("commands", each)]);
        result.add(name, vec![side]);
    }
    held.release().await?;
    Ok(result)
}

/// The operations, each with how often its work is done. The work of the hand-over is all of them.
fn operations(leases: &Leases) -> Vec<(&'static str, u64, Work)> {
    let set = |size: u64| -> Work {
        let leases = leases.clone();
        Arc::new(move |_, turn| {
            let leases = leases.clone();
            let keys = (0..size).map(move |key| format!("set-{turn}-{size}-{key:02}"));
            Box::pin(async move { Ok(leases.acquire_all(keys, LONG).await?.release().await?) })
        })
    };
    let handle = leases.clone();
    let free: Work = Arc::new(move |_, turn| {
        let leases = handle.clone();
        Box::pin(async move { cycle(&leases, &format!("free-{turn}")).await })
    });
    let handle = leases.clone();
    let held: Work = Arc::new(move |_, _| {
        let leases = handle.clone();
        Box::pin(async move {
            match leases.try_acquire(HELD, LONG).await? {
                Attempt::Held(_) => Ok(()),
                Attempt::Acquired(_) => bail!("a held key was granted"),
            }
        })
    });
    let handle = leases.clone();
    let wanted: Work = Arc::new(move |_, _| Box::pin(hand_over(handle.clone())));
    let limiter = leases.limiter("api", 1_000_000, Duration::from_secs(1));
    let permit: Work = Arc::new(move |_, _| {
        let limiter = limiter.clone();
        Box::pin(async move {
            limiter.permit().await?;
            Ok(())
        })
    });
    vec![
        ("a cycle", TIMES, free),
        ("an attempt on a held key", TIMES, held),
        ("a hand-over in the process", 1, wanted),
        ("a set of 8 keys", TIMES, set(8)),
        ("a set of 32 keys", TIMES, set(32)),
        ("a permit", TIMES, permit),
    ]
}

async fn cycle(leases: &Leases, key: &str) -> Result<()> {
    match leases.try_acquire(key, LONG).await? {
        Attempt::Acquired(lease) => Ok(lease.release().await?),
        Attempt::Held(_) => bail!("a free key is held"),
    }
}

/// Lets the tasks acquire and release one key, each as often as the others.
async fn hand_over(leases: Leases) -> Result<()> {
    let tasks = (0..TASKS).map(|_| {
        let leases = leases.clone();
        tokio::spawn(async move {
            for _ in 0..TIMES / TASKS {
                leases.acquire("wanted", LONG).await?.release().await?;
            }
            anyhow::Ok(())
        })
    });
    for done in try_join_all(tasks.collect::<Vec<_>>()).await? {
        done?;
    }
    Ok(())
}
