//! Two processes that hand a key to each other.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use anyhow::Result;
use async_trait::async_trait;
use tokio::sync::Mutex;

use crate::{
    cli::ChildOptions,
    engines::Mongo,
    handoffs::between_processes,
    processes::{Contender, contend_all},
    results::CaseResult,
    rounds::{Plan, Sample, Side, compare},
};

const TASKS: usize = 4;
const PROCESSES: usize = 2;
/// How many times longer a turn is. A process that waits for another one may pause for up to a second, which a short
/// turn would not show.
const SLOWER: u32 = 3;

pub const ABOUT: &str = "Two processes with 4 tasks each want one key: each task waits for it, holds it, releases it \
    and asks again. A handoff is a grant to another task than the one before. The smaller share \
    is that of the process with fewer grants. The longest run is the number of grants in a row \
    to one process. Raw is a fair mutex in each process, and asks again after 10 ms while the \
    other process has the key.";

pub async fn measure(mongo: &Mongo, plan: Plan) -> Result<CaseResult> {
    let mut result = CaseResult::default();
    for hold_millis in [0, 5] {
        let sides = [("raw", hold_millis), ("leasehold", hold_millis)];
        let sides = sides.map(|(side, hold)| Processes::start(mongo, side, hold));
        let sides = sides.into_iter().collect::<Result<Vec<_>>>()?;
        let name = match hold_millis {
            0 => "released at once".to_owned(),
            millis => format!("held for {millis} ms"),
        };
        result.add(name, compare(plan.slower(SLOWER), &sides).await?);
    }
    Ok(result)
}

struct Processes {
    side: &'static str,
    contenders: Mutex<Vec<Contender>>,
    turns: AtomicU64,
}

impl Processes {
    fn start(mongo: &Mongo, side: &'static str, hold_millis: u64) -> Result<Box<dyn Side>> {
        let options = ChildOptions {
            uri: mongo.uri.clone(),
            database: mongo.database.name().to_owned(),
            side: side.to_owned(),
            collection: mongo.collection(side).name().to_owned(),
            tasks: TASKS,
            hold_millis,
            hold_most_millis: None,
            pause_millis: 0,
            shared: false,
        };
        let contenders = (0..PROCESSES).map(|number| Contender::start(number, &options));
        Ok(Box::new(Self {
            side,
            contenders: Mutex::new(contenders.collect::<Result<_>>()?),
            turns: AtomicU64::new(0),
        }))
    }
}

#[async_trait]
impl Side for Processes {
    fn name(&self) -> &'static str {
        self.side
    }

    async fn turn(&self, time: Duration) -> Result<Sample> {
        let mut contenders = self.contenders.lock().await;
        let key = format!("hot-{}", self.turns.fetch_add(1, Ordering::Relaxed));
        let (granted, span) = contend_all(&mut contenders, &key, time).await?;
        between_processes(&granted, span)
    }
}
