//! The processor time of the client's own code: without pauses, and with a pause before each operation.

use std::{sync::Arc, time::Duration};

use anyhow::{Context, Result};
use leasehold::{
    Attempt, Key, Leases, MemoryStore, Store,
    store::{AcquireAnswer, AcquireRequest, LeaseId, ReleaseRequest},
};
use tokio::time::sleep;

use crate::{
    locks::LONG,
    loops::{Loops, Work},
    results::CaseResult,
    rounds::{Plan, Rounds},
};

/// About as long as an acquire and a release take on a server.
const PAUSE: Duration = Duration::from_millis(1);
const ALONE: &str = "no lock";

pub async fn measure(plan: Plan) -> Result<CaseResult> {
    let about = "A cycle on the memory store by one task: at once after the one before, and after \
                 a pause of 1 ms, which is what a server causes. The differences are to the same \
                 loop without a lock.";
    let mut result = CaseResult::new("pauses", "memory", about);
    for pause in [Duration::ZERO, PAUSE] {
        let nothing: Work = Arc::new(move |_, _| Box::pin(async move { paused(pause).await }));
        let store = MemoryStore::new();
        let bare: Work = Arc::new(move |_, _| {
            let store = store.clone();
            Box::pin(async move {
                paused(pause).await?;
                let (key, lease) = (Key::new("key")?, LeaseId::random());
                let owner = "bench".into();
                let request = AcquireRequest::exclusive(key.clone(), lease, owner, LONG);
                let answer = store.acquire(&request).await?;
                anyhow::ensure!(matches!(answer, AcquireAnswer::Granted(_)), "it is held");
                store.release(&ReleaseRequest::new(key, lease)).await?;
                Ok(())
            })
        });
        let leases = Leases::new(MemoryStore::new());
        let whole: Work = Arc::new(move |_, _| {
            let leases = leases.clone();
            Box::pin(async move {
                paused(pause).await?;
                match leases.try_acquire("key", LONG).await? {
                    Attempt::Acquired(lease) => Some(lease.release().await?),
                    Attempt::Held(_) => None,
                }
                .context("it is held")
            })
        });
        let sides = [
            Loops::new(ALONE, "cycles/s", 1, nothing).boxed(),
            Loops::new("leasehold-store", "cycles/s", 1, bare).boxed(),
            Loops::new("leasehold", "cycles/s", 1, whole).boxed(),
        ];
        let rounds = Rounds::run(plan, &sides).await?;
        let name = if pause.is_zero() {
            "at once"
        } else {
            "after 1 ms"
        };
        let rounds = rounds
            .with_difference("leasehold-store", ALONE)
            .with_difference("leasehold", ALONE);
        result.add(name, rounds.figures()?);
    }
    Ok(result)
}

async fn paused(pause: Duration) -> Result<()> {
    if !pause.is_zero() {
        sleep(pause).await;
    }
    Ok(())
}
