//! Eight processes that contend for the same key without a break.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use anyhow::Result;
use async_trait::async_trait;
use tokio::sync::Mutex;

use crate::{
    cli::ChildOptions,
    engines::Mongo,
    fairness::{Longest, of_equals},
    processes::{Contender, contend_all},
    results::CaseResult,
    rounds::{Plan, Sample, Side, compare},
};

const PROCESSES: usize = 8;
const HOLD_MILLIS: u64 = 5;
/// The other sides are compared with the first one.
const SIDES: [&str; 3] = ["leasehold-barging", "leasehold", "raw"];
/// How many times longer a turn is. Each process must be granted the key often enough for its share to be accurate to a
/// few percent.
const LONGER: u32 = 6;

pub const ABOUT: &str = "8 processes with one task each want one key: each waits for it, holds it for 5 ms, releases \
    it and asks again. A perfect turn is 8 times the mean time between two grants of that side. \
    A share is the grants of one process over the mean of all. The longest wait of all is over \
    all rounds. `leasehold` waits in turn, and `leasehold-barging` with `.barging()`; raw asks \
    every 10 ms.";

pub async fn measure(mongo: &Mongo, plan: Plan) -> Result<CaseResult> {
    let mut result = CaseResult::default();
    let longest = Arc::new(Longest::default());
    let start = |side| Crowd::start(mongo, side, &longest);
    let sides = SIDES.into_iter().map(start).collect::<Result<Vec<_>>>()?;
    let mut figures = compare(plan.long(LONGER), &sides).await?;
    longest.add_to(&mut figures);
    result.add("8 processes", figures);
    Ok(result)
}

struct Crowd {
    side: &'static str,
    contenders: Mutex<Vec<Contender>>,
    turns: AtomicU64,
    longest: Arc<Longest>,
}

impl Crowd {
    fn start(mongo: &Mongo, side: &'static str, longest: &Arc<Longest>) -> Result<Box<dyn Side>> {
        let options = ChildOptions {
            uri: mongo.uri.clone(),
            database: mongo.database.name().to_owned(),
            side: side.to_owned(),
            collection: mongo.collection(side).name().to_owned(),
            tasks: 1,
            hold_millis: HOLD_MILLIS,
            hold_most_millis: None,
            pause_millis: 0,
            shared: false,
        };
        let contenders = (0..PROCESSES).map(|number| Contender::start(number, &options));
        Ok(Box::new(Self {
            side,
            contenders: Mutex::new(contenders.collect::<Result<_>>()?),
            turns: AtomicU64::new(0),
            longest: longest.clone(),
        }))
    }
}

#[async_trait]
impl Side for Crowd {
    fn name(&self) -> &'static str {
        self.side
    }

    async fn turn(&self, time: Duration) -> Result<Sample> {
        let mut contenders = self.contenders.lock().await;
        let turn = self.turns.fetch_add(1, Ordering::Relaxed);
        let key = format!("wanted-{turn}");
        let (granted, span) = contend_all(&mut contenders, &key, time).await?;
        // The first turn is a warm-up.
        if turn > 0 {
            self.longest.record(self.side, &granted);
        }
        of_equals(&granted, PROCESSES, span)
    }
}
