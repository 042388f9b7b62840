//! What a cycle takes of the client's processors.

use anyhow::Result;

use super::sides;
use crate::{
    engines::Mongo,
    loops::Loops,
    results::CaseResult,
    rounds::{Plan, Rounds},
};

pub async fn measure(mongo: &Mongo, plan: Plan) -> Result<CaseResult> {
    let about = "The time, user and system, that this process has of the processors for a free acquire and \
                 its release on existing keys. The server is another process. The differences are those of \
                 the same round.";
    let mut result = CaseResult::new("cpu", mongo.engine.name(), about);
    for tasks in [1, 64] {
        let locks = [
            sides::raw(mongo),
            sides::bare(mongo).await?,
            sides::whole(mongo).await?,
        ];
        let sides = locks
            .iter()
            .map(|locks| Loops::existing(locks, tasks).counting_cpu().boxed());
        let rounds = Rounds::run(plan, &sides.collect::<Vec<_>>()).await?;
        let rounds = rounds
            .with_difference("leasehold", "leasehold-store")
            .with_difference("leasehold", "raw");
        result.add_at(tasks, "tasks", rounds.figures());
    }
    Ok(result)
}
