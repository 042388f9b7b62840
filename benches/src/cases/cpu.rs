//! The processor time of a cycle. Each part is the difference between two sides.

use anyhow::Result;

use super::sides;
use crate::{
    engines::Mongo,
    forms::{Form, FormLocks},
    loops::Loops,
    results::CaseResult,
    rounds::{Plan, Rounds},
};

/// The bare driver, which sends the same commands.
const DRIVER: &str = "driver, same commands";
const TIMED: &str = "driver, with timers";

pub async fn measure(mongo: &Mongo, plan: Plan) -> Result<CaseResult> {
    let about = "Acquires of a free key, each with its release, on the same 1,000 keys again and \
                 again. Differences are between sides of the same round. A cycle has two \
                 operations.";
    let mut result = CaseResult::new("cpu", mongo.engine.name(), about);
    for tasks in [1, 64] {
        let form = Form::whole();
        let timed = Form {
            timer: true,
            ..form
        };
        let locks = [
            sides::raw(mongo),
            FormLocks::shared(DRIVER, form, &mongo.collection("driver")),
            FormLocks::shared(TIMED, timed, &mongo.collection("timed")),
            sides::bare(mongo).await?,
            sides::whole(mongo).await?,
        ];
        let sides = locks
            .iter()
            .map(|locks| Loops::existing(locks, tasks).boxed());
        let rounds = Rounds::run(plan.slower(2), &sides.collect::<Vec<_>>()).await?;
        let rounds = rounds
            .with_difference("leasehold", "leasehold-store")
            .with_difference("leasehold", DRIVER)
            .with_difference(TIMED, DRIVER);
        result.add_at(tasks, "tasks", rounds.figures()?);
    }
    Ok(result)
}
