//! The cost of statements without pipelines.

use std::sync::Arc;

use anyhow::Result;
use leasehold::Leases;

use super::sides;
use crate::{
    engines::Mongo,
    locks::{LONG, SharedLocks},
    loops::{Loops, Work},
    ours::{Whole, mongo_store},
    results::CaseResult,
    rounds::{Plan, Side, compare},
};

pub const ABOUT: &str = "A cycle acquires a free key and releases it. Both dialects are measured, without and with a \
    renewal in between, on keys that were locked before. The ratio of a cycle with a renewal is \
    to the dialect with pipelines.";

pub async fn measure(mongo: &Mongo, plan: Plan) -> Result<CaseResult> {
    let mut result = CaseResult::default();
    let pipelines = sides::leases(mongo).await?;
    let classic = mongo_store(&mongo.collection("leasehold-classic")).await?;
    let classic = Leases::new(classic.without_pipelines());
    for tasks in [1, 8] {
        let cycles: Vec<Box<dyn Side>> = [
            sides::raw(mongo),
            Whole::named("leasehold", &pipelines),
            Whole::named("leasehold-classic", &classic),
        ]
        .map(|locks| Loops::new(locks.name(), "cycles/s", tasks, cycle(locks.clone())).boxed())
        .into();
        let name = |what: &str| match tasks {
            1 => format!("{what}, 1 task"),
            tasks => format!("{what}, {tasks} tasks"),
        };
        result.add(name("a cycle"), compare(plan, &cycles).await?);
        let renewed: Vec<Box<dyn Side>> = [
            ("leasehold", pipelines.clone()),
            ("leasehold-classic", classic.clone()),
        ]
        .map(|(side, leases)| Loops::new(side, "cycles/s", tasks, renewed(leases)).boxed())
        .into();
        result.add(name("with a renewal"), compare(plan, &renewed).await?);
    }
    Ok(result)
}

fn cycle(locks: SharedLocks) -> Work {
    Arc::new(move |task, _| {
        let locks = locks.clone();
        Box::pin(async move {
            let guard = locks.acquire(&format!("key-{task}"), LONG).await?;
            guard.release().await
        })
    })
}

fn renewed(leases: Leases) -> Work {
    Arc::new(move |task, _| {
        let leases = leases.clone();
        Box::pin(async move {
            let lease = leases.acquire(format!("renewed-{task}"), LONG).await?;
            lease.renew().await?;
            Ok(lease.release().await?)
        })
    })
}
