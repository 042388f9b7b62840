//! Counts allocations. The store is in memory, so whatever the store does not allocate belongs to the client.
//!
//! It is a program of its own because the counting allocator would slow all the others.

use std::{alloc::System, env, sync::Arc, time::Duration};

use anyhow::{Context, Result, bail, ensure};
use leasehold::{
    Attempt, Key, Leases, MemoryStore, Store,
    store::{AcquireAnswer, AcquireRequest, LeaseId, ReleaseRequest},
};
use leasehold_benches::results::{CaseResult, SideResult, grouped};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, Stats, StatsAlloc};
use tokio::{sync::Notify, task::JoinSet};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

const LEASES: usize = 10_000;
/// As many keys as stay with a process at most.
const STAYING: usize = 4_096;
const WAITERS: usize = 1_000;
const CYCLES: usize = 1_000;
const TTL: Duration = Duration::from_secs(3_600);

// On a single thread, no allocation of another task is counted.
#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let result = match env::args().nth(1).as_deref() {
        Some("memory") => memory().await?,
        Some("allocations") => allocations().await?,
        _ => bail!("say what to count: memory or allocations"),
    };
    println!("{}", serde_json::to_string(&result)?);
    Ok(())
}

async fn memory() -> Result<CaseResult> {
    let mut result = CaseResult::default();
    let store = held_in_store(LEASES).await?;
    let plain = held(false).await?;
    let kept = held(true).await?;
    let sides = [
        ("leasehold-store", store),
        ("leasehold", plain),
        ("leasehold, kept alive", kept),
    ];
    let sides = sides.map(|(name, bytes)| SideResult::once(name, &[("bytes/lease", bytes)]));
    result.add(format!("{} leases", grouped(LEASES as f64)), sides.into());
    let sides = [
        ("tokio-task", tasks().await),
        ("leasehold", waiters().await?),
    ];
    let sides = sides.map(|(name, bytes)| SideResult::once(name, &[("bytes/waiter", bytes)]));
    result.add(format!("{} waiters", grouped(WAITERS as f64)), sides.into());
    let sides = [
        ("leasehold-store", held_in_store(STAYING).await?),
        ("leasehold-sticky", staying().await?),
    ];
    let sides = sides.map(|(name, bytes)| SideResult::once(name, &[("bytes/key", bytes)]));
    let name = format!("{} keys that stay idle", grouped(STAYING as f64));
    result.add(name, sides.into());
    Ok(result)
}

fn left(region: &Region<'_, System>, count: usize) -> f64 {
    let change = region.change();
    (change.bytes_allocated as f64 - change.bytes_deallocated as f64) / count as f64
}

fn keys(count: usize) -> Vec<String> {
    (0..count)
        .map(|number| format!("key-{number:06}"))
        .collect()
}

async fn held_in_store(count: usize) -> Result<f64> {
    let (store, keys) = (MemoryStore::new(), keys(count));
    let region = Region::new(ALLOCATOR);
    for key in &keys {
        grant(&store, Key::new(key)?, LeaseId::random()).await?;
    }
    Ok(left(&region, count))
}

async fn staying() -> Result<f64> {
    let builder = Leases::builder(MemoryStore::new());
    let (leases, keys) = (builder.sticky(TTL).build(), keys(STAYING));
    let region = Region::new(ALLOCATOR);
    for key in &keys {
        leases.acquire(key, TTL).await?.release().await?;
    }
    calm().await;
    let bytes = left(&region, STAYING);
    leases.close().await;
    drop(leases);
    calm().await;
    Ok(bytes)
}

async fn held(kept: bool) -> Result<f64> {
    let (leases, keys) = (Leases::new(MemoryStore::new()), keys(LEASES));
    let mut held = Vec::with_capacity(LEASES);
    let region = Region::new(ALLOCATOR);
    for key in &keys {
        let asked = leases.acquire(key, TTL);
        let asked = if kept { asked.keep_alive() } else { asked };
        held.push(asked.await?);
    }
    calm().await;
    let bytes = left(&region, LEASES);
    drop(held);
    leases.close().await;
    drop(leases);
    calm().await;
    Ok(bytes)
}

/// Waits until the background work has ended. Otherwise the next measurement would count the memory that this work
/// frees.
async fn calm() {
    tokio::time::sleep(Duration::from_millis(50)).await;
}

async fn waiters() -> Result<f64> {
    let leases = Leases::new(MemoryStore::new());
    let first = leases.acquire("wanted", TTL).await?;
    let mut tasks = JoinSet::new();
    let region = Region::new(ALLOCATOR);
    for _ in 0..WAITERS {
        let leases = leases.clone();
        tasks.spawn(async move { leases.acquire("wanted", TTL).await.map(drop) });
    }
    calm().await;
    let bytes = left(&region, WAITERS);
    ensure!(tasks.try_join_next().is_none(), "one of them did not wait");
    tasks.shutdown().await;
    first.release().await?;
    calm().await;
    Ok(bytes)
}

async fn tasks() -> f64 {
    let never = Arc::new(Notify::new());
    let mut tasks = JoinSet::new();
    let region = Region::new(ALLOCATOR);
    for _ in 0..WAITERS {
        let never = never.clone();
        tasks.spawn(async move { never.notified().await });
    }
    calm().await;
    let bytes = left(&region, WAITERS);
    tasks.shutdown().await;
    bytes
}

async fn allocations() -> Result<CaseResult> {
    let mut result = CaseResult::default();
    let (store, key) = (MemoryStore::new(), Key::new("key")?);
    let leases = Leases::new(store.clone());

    let mut bare = None;
    let mut whole = None;
    // The first round allocates memory that is kept, so only the second round counts.
    for _ in 0..2 {
        let region = Region::new(ALLOCATOR);
        for _ in 0..CYCLES {
            let lease = LeaseId::random();
            grant(&store, key.clone(), lease).await?;
            store
                .release(&ReleaseRequest::new(key.clone(), lease))
                .await?;
        }
        bare = Some(region.change());
        let region = Region::new(ALLOCATOR);
        for _ in 0..CYCLES {
            match leases.try_acquire("key", TTL).await? {
                Attempt::Acquired(lease) => lease.release().await?,
                Attempt::Held(_) => bail!("a free key is held"),
            }
        }
        whole = Some(region.change());
    }
    result.add("acquire and release", sides(bare, whole)?);

    let holder = leases.acquire("key", TTL).await?;
    for _ in 0..2 {
        let region = Region::new(ALLOCATOR);
        for _ in 0..CYCLES {
            let lease = LeaseId::random();
            let request = AcquireRequest::exclusive(key.clone(), lease, "bench".into(), TTL);
            let answer = store.acquire(&request).await?;
            ensure!(matches!(answer, AcquireAnswer::Held(_)), "{answer:?}");
        }
        bare = Some(region.change());
        let region = Region::new(ALLOCATOR);
        for _ in 0..CYCLES {
            let attempt = leases.try_acquire("key", TTL).await?;
            ensure!(matches!(attempt, Attempt::Held(_)), "{attempt:?}");
        }
        whole = Some(region.change());
    }
    result.add("attempt on a held key", sides(bare, whole)?);
    holder.release().await?;
    Ok(result)
}

fn sides(bare: Option<Stats>, whole: Option<Stats>) -> Result<Vec<SideResult>> {
    let side = |name, stats: Option<Stats>| {
        let stats = stats.context("nothing was counted")?;
        let each = |count: usize| count as f64 / CYCLES as f64;
        let calls = each(stats.allocations + stats.reallocations);
        let figures = [
            ("allocations", calls),
            ("bytes", each(stats.bytes_allocated)),
        ];
        anyhow::Ok(SideResult::once(name, &figures))
    };
    Ok(vec![
        side("leasehold-store", bare)?,
        side("leasehold", whole)?,
    ])
}

async fn grant(store: &MemoryStore, key: Key, lease: LeaseId) -> Result<()> {
    let request = AcquireRequest::exclusive(key, lease, "bench".into(), TTL);
    let answer = store.acquire(&request).await?;
    ensure!(matches!(answer, AcquireAnswer::Granted(_)), "{answer:?}");
    Ok(())
}
