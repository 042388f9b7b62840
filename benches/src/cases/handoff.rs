//! Tasks of one process that hand a key to each other.

use std::time::Duration;

use anyhow::Result;
use async_trait::async_trait;

use super::sides;
use crate::{
    engines::Mongo,
    handoffs::{Span, Work, between_tasks, contend},
    locks::SharedLocks,
    results::CaseResult,
    rounds::{Plan, Sample, Side, compare},
};

const TASKS: usize = 8;

pub const ABOUT: &str = "8 tasks of one process want one key: each waits for it, releases it at once, and asks again. \
    A handoff is a grant to another task than the one before. A streak is the number of grants \
    in a row to one task. Raw is a fair mutex in the process (first in, first out) around an \
    acquire and a release. The other crates ask again after 10 ms.";

pub async fn measure(mongo: &Mongo, plan: Plan) -> Result<CaseResult> {
    let locks = [
        sides::raw(mongo),
        sides::whole(mongo).await?,
        sides::mongo_lock_async(mongo).await?,
        sides::distributed_lock_mongo(mongo),
        sides::mongodb_lock(mongo).await?,
    ];
    let mut result = CaseResult::default();
    let side = |locks: &SharedLocks| -> Box<dyn Side> { Box::new(Handoffs(locks.clone())) };
    let sides: Vec<_> = locks.iter().map(side).collect();
    result.add("8 tasks", compare(plan, &sides).await?);
    Ok(result)
}

struct Handoffs(SharedLocks);

#[async_trait]
impl Side for Handoffs {
    fn name(&self) -> &'static str {
        self.0.name()
    }

    async fn turn(&self, time: Duration) -> Result<Sample> {
        let span = Span::from_now(time);
        let granted = contend(&self.0, "hot", 0, TASKS, Work::default(), span).await?;
        between_tasks(&granted, span)
    }
}
