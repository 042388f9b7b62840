//! An attempt on a held key.

use std::sync::Arc;

use anyhow::{Context, Result};
use leasehold::Leases;

use super::sides;
use crate::{
    engines::Mongo,
    locks::{Guard, LONG, SharedLocks, held},
    loops::{Loops, Work},
    ours::{Bare, Whole},
    results::CaseResult,
    rounds::{Plan, Side, compare},
};

pub const TASKS: usize = 8;

pub const ABOUT: &str = "Attempts on a held key, by 8 tasks. Another handle holds the keys of `leasehold`, because a process \
    refuses from memory what a task of its own has. `mongodb-lock` is left out, because each of its attempts \
    waits.";

pub async fn measure(mongo: &Mongo, plan: Plan) -> Result<CaseResult> {
    let store = sides::store(mongo, "leasehold").await?;
    let holder = Bare::shared(store.clone());
    let mut locks = sides::expiring(mongo).await?;
    for locks in locks.iter_mut().filter(|it| it.name() == "leasehold") {
        *locks = Whole::shared(&Leases::new(store.clone()));
    }
    let mut result = CaseResult::default();
    attempts(&mut result, plan, &locks, &holder).await?;
    Ok(result)
}

/// Measures two variants: each task tries a held key of its own, or all tasks try the same key. `holder` has the keys of
/// the side `leasehold`.
pub async fn attempts(
    result: &mut CaseResult,
    plan: Plan,
    locks: &[SharedLocks],
    holder: &SharedLocks,
) -> Result<()> {
    // The guards are dropped at the end of the case.
    let mut guards: Vec<Box<dyn Guard>> = Vec::new();
    for locks in locks {
        let holder = match locks.name() {
            "leasehold" => holder,
            _ => locks,
        };
        for task in 0..TASKS {
            let guard = holder.try_acquire(&key(task), LONG).await?;
            guards.push(guard.context("a free key is held")?);
        }
    }
    let own = compare(plan, &attempt(locks, key)).await?;
    let same = compare(plan, &attempt(locks, |_| key(0))).await?;
    result.add("held, own keys", own);
    result.add("held, one key", same);
    for guard in guards {
        guard.release().await?;
    }
    Ok(())
}

fn key(task: usize) -> String {
    format!("held-{task}")
}

fn attempt(locks: &[SharedLocks], key: fn(usize) -> String) -> Vec<Box<dyn Side>> {
    let side = |locks: &SharedLocks| {
        let shared = locks.clone();
        let work: Work = Arc::new(move |task, _| {
            let locks = shared.clone();
            Box::pin(async move { held(&*locks, &key(task)).await })
        });
        Loops::new(locks.name(), "attempts/s", TASKS, work).boxed()
    };
    locks.iter().map(side).collect()
}
