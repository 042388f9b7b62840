//! How many renewals the bare driver makes in a second. It uses the cheapest statement on the engine, which renews many
//! leases at once.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use mongodb::{
    Collection, Database,
    bson::{DateTime, Document, doc},
};
use tokio::task::JoinSet;
use uuid::Uuid;

use crate::{engines::Mongo, locks::LONG, ours::mongo_store, results::SideResult, rounds::Plan};

/// How many leases one statement renews.
const TOGETHER: usize = 1_000;
/// How many statements are in flight at once.
const UNDER_WAY: [(&str, usize); 3] = [
    ("raw, 1 under way", 1),
    ("raw, 2 under way", 2),
    ("raw, 4 under way", 4),
];

/// Measures the sides. Returns them, and the renewals per second of the best side.
pub async fn renewals(mongo: &Mongo, leases: usize, plan: Plan) -> Result<(Vec<SideResult>, f64)> {
    let collection = mongo.collection("raw");
    // This creates the indexes that each renewal must update.
    mongo_store(&collection).await?;
    let batches = fill(&collection, leases).await?;
    let batches = Arc::new(batches);
    let time = plan.turn * u32::try_from(plan.rounds)?;
    let (mut sides, mut best) = (Vec::new(), 0.0_f64);
    for (name, under_way) in UNDER_WAY {
        let (renewed, commands, seconds) = turn(
            &mongo.database,
            collection.name(),
            &batches,
            under_way,
            time,
        )
        .await?;
        let rate = renewed as f64 / seconds;
        let millis = seconds * 1e3 * under_way as f64 / commands as f64;
        eprintln!("    {name}: {rate:.0} renewals/s, {millis:.1} ms/command");
        best = best.max(rate);
        sides.push(SideResult::once(
            name,
            &[("renewals/s", rate), ("ms/command", millis)],
        ));
    }
    collection.drop().await?;
    Ok((sides, best))
}

/// The keys and leases that one statement renews.
struct Batch {
    keys: Vec<String>,
    leases: Vec<String>,
}

/// Stores live locks with one holder each.
async fn fill(collection: &Collection<Document>, leases: usize) -> Result<Vec<Batch>> {
    let now = DateTime::now();
    let until = DateTime::from_millis(now.timestamp_millis() + LONG.as_millis() as i64);
    let mut batches = Vec::new();
    // There are at least as many batches as statements in flight, so that no statement waits for another.
    let size = TOGETHER.min(leases.div_ceil(4));
    for begin in (0..leases).step_by(size) {
        let numbers = begin..leases.min(begin + size);
        let batch = Batch {
            keys: numbers.map(|number| format!("kept-{number:06}")).collect(),
            leases: Vec::new(),
        };
        let leases: Vec<_> = batch
            .keys
            .iter()
            .map(|_| Uuid::new_v4().to_string())
            .collect();
        let documents = batch.keys.iter().zip(&leases).map(|(key, lease)| {
            let fence = now.timestamp_millis();
            let holder = doc! {
                "lease": lease, "owner": "bench", "mode": "exclusive", "permits": 1_i64,
                "fence": fence, "acquired_at": now, "expires_at": until,
            };
            doc! {
                "_id": key, "schema": 1_i64, "fence": fence, "holders": [holder],
                "expires_at": until,
            }
        });
        collection.insert_many(documents).await?;
        batches.push(Batch { leases, ..batch });
    }
    Ok(batches)
}

/// Renews the batches for a while. Returns the number of renewed leases, the number of statements, and the time in
/// seconds.
async fn turn(
    database: &Database,
    collection: &str,
    batches: &Arc<Vec<Batch>>,
    under_way: usize,
    time: Duration,
) -> Result<(u64, u64, f64)> {
    let begin = Instant::now();
    let next = Arc::new(AtomicUsize::new(0));
    let (renewed, commands) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let mut tasks = JoinSet::new();
    for _ in 0..under_way {
        let (database, collection) = (database.clone(), collection.to_owned());
        let (batches, next) = (batches.clone(), next.clone());
        let (renewed, commands) = (renewed.clone(), commands.clone());
        tasks.spawn(async move {
            while begin.elapsed() < time {
                let batch = &batches[next.fetch_add(1, Ordering::Relaxed) % batches.len()];
                let answer = database.run_command(renew(&collection, batch)).await?;
                let matched = answer.get_i32("n")?;
                ensure!(
                    usize::try_from(matched) == Ok(batch.keys.len()),
                    "not all were renewed: {answer}"
                );
                renewed.fetch_add(batch.keys.len() as u64, Ordering::Relaxed);
                commands.fetch_add(1, Ordering::Relaxed);
            }
            Ok(())
        });
    }
    while let Some(ended) = tasks.join_next().await {
        ended??;
    }
    let seconds = begin.elapsed().as_secs_f64();
    let count = |number: &AtomicU64| number.load(Ordering::Relaxed);
    Ok((count(&renewed), count(&commands), seconds))
}

fn renew(collection: &str, batch: &Batch) -> Document {
    let until = doc! { "$add": ["$$NOW", LONG.as_millis() as i64] };
    let renewed = doc! { "$mergeObjects": ["$$this", { "expires_at": &until }] };
    let holder = doc! { "$cond": [
        { "$gt": ["$$this.expires_at", "$$NOW"] }, renewed, "$$this",
    ] };
    let holders = doc! { "$map": { "input": "$holders", "in": holder } };
    let set = doc! { "holders": holders, "expires_at": { "$max": ["$expires_at", &until] } };
    doc! {
        "update": collection,
        "updates": [{
            "q": { "_id": { "$in": &batch.keys }, "holders.lease": { "$in": &batch.leases } },
            "u": [{ "$set": set }],
            "multi": true,
        }],
        "writeConcern": { "w": "majority", "j": true },
    }
}
