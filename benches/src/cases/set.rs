//! Several keys that are acquired together.

use std::sync::Arc;

use anyhow::{Context, Result};
use futures::future::try_join_all;
use uuid::Uuid;

use super::sides;
use crate::{
    engines::Mongo,
    locks::LONG,
    loops::{Loops, Work},
    results::{CaseResult, SideResult},
    rounds::{Plan, compare},
};

/// How many sets of the same keys each side uses in turn.
const SETS: u64 = 16;

pub const ABOUT: &str = "`acquire_all` of new keys, or of keys that exist, and the release of all of them, by one \
    task. Raw acquires one key after the other and releases all at once. It does not keep the \
    first lease alive until the last is granted.";

pub async fn measure(mongo: &Mongo, plan: Plan) -> Result<CaseResult> {
    let mut result = CaseResult::default();
    for keys in [2, 8, 32] {
        let figures = sets(mongo, plan, move |_| fresh(keys)).await?;
        result.add_at(keys, "keys", figures);
    }
    for keys in [8, 32] {
        let figures = sets(mongo, plan, move |turn| existing(keys, turn)).await?;
        result.add(format!("{keys} keys that exist"), figures);
    }
    Ok(result)
}

async fn sets(
    mongo: &Mongo,
    plan: Plan,
    keys: impl Fn(u64) -> Vec<String> + Copy + Send + Sync + 'static,
) -> Result<Vec<SideResult>> {
    let raw = sides::raw(mongo);
    let one_by_one: Work = Arc::new(move |_, turn| {
        let locks = raw.clone();
        Box::pin(async move {
            let mut guards = Vec::new();
            for key in keys(turn) {
                let guard = locks.try_acquire(&key, LONG).await?;
                guards.push(guard.context("a free key is held")?);
            }
            try_join_all(guards.into_iter().map(|guard| guard.release())).await?;
            Ok(())
        })
    });
    let leases = sides::leases(mongo).await?;
    let all: Work = Arc::new(move |_, turn| {
        let leases = leases.clone();
        Box::pin(async move {
            let set = leases.acquire_all(keys(turn), LONG).await?;
            Ok(set.release().await?)
        })
    });
    let sides = [
        Loops::new("raw", "sets/s", 1, one_by_one).boxed(),
        Loops::new("leasehold", "sets/s", 1, all).boxed(),
    ];
    compare(plan, &sides).await
}

fn fresh(keys: usize) -> Vec<String> {
    let mut keys: Vec<_> = (0..keys).map(|_| Uuid::new_v4().to_string()).collect();
    // All tasks use the same order. Otherwise two sets could deadlock.
    keys.sort();
    keys
}

fn existing(keys: usize, turn: u64) -> Vec<String> {
    let set = turn % SETS;
    (0..keys).map(|key| format!("key-{set}-{key:02}")).collect()
}
