//! An acquire of a free key and its release, without contention.

use anyhow::Result;

use super::sides;
use crate::{
    engines::Mongo,
    locks::SharedLocks,
    loops::Loops,
    results::CaseResult,
    rounds::{Plan, compare},
};

/// The numbers of tasks for leasehold and the bare driver.
const TASKS: [usize; 7] = [1, 2, 4, 8, 16, 64, 256];
/// The numbers of tasks for the other sides.
const TASKS_OF_ALL: [usize; 3] = [1, 8, 64];

pub const FRESH: &str = "Acquires of a free key, each with its release. Every key is new. With 256 tasks, tasks wait \
    for one of the client's 100 connections.";

pub async fn fresh(mongo: &Mongo, plan: Plan) -> Result<CaseResult> {
    measure(mongo, plan, Loops::fresh).await
}

pub const EXISTING: &str = "Acquires of a free key, each with its release. Each task has 16 keys, which it acquires \
    again and again. With 256 tasks, tasks wait for one of the client's 100 connections.";

pub async fn existing(mongo: &Mongo, plan: Plan) -> Result<CaseResult> {
    measure(mongo, plan, Loops::existing).await
}

async fn measure(
    mongo: &Mongo,
    plan: Plan,
    looping: fn(&SharedLocks, usize) -> Loops,
) -> Result<CaseResult> {
    let mut result = CaseResult::default();
    for tasks in TASKS {
        // The variant gets new collections, so it does not see the documents of the previous variant.
        let locks = if TASKS_OF_ALL.contains(&tasks) {
            sides::all(mongo).await?
        } else {
            vec![sides::raw(mongo), sides::whole(mongo).await?]
        };
        let sides: Vec<_> = locks
            .iter()
            .map(|locks| looping(locks, tasks).boxed())
            .collect();
        result.add_at(tasks, "tasks", compare(plan, &sides).await?);
    }
    Ok(result)
}
