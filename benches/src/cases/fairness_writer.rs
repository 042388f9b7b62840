//! A writer process that contends with processes that read without a break.

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
    fairness::{Longest, Waits},
    handoffs::{Granted, inside},
    processes::{Contender, contend_all},
    results::CaseResult,
    rounds::{Plan, Sample, Side, compare},
    waiting::Way,
};

const READERS: usize = 2;
const TASKS: usize = 4;
const READ_MILLIS: u64 = 20;
/// The index of the writer among the processes.
const WRITER: usize = 0;
const LONGER: u32 = 6;

pub const ABOUT: &str = "One process takes the key exclusively for 1 to 5 ms, again and again. Two processes with 4 \
    tasks each share the key for 20 ms, again and again. In the first half of each round the \
    readers are alone; the column `reads over alone` compares their reads beside the writer with \
    that. If the writer is not granted the key before the end, its wait counts until the end. \
    The longest wait of all is over all rounds. `leasehold` waits in turn, `leasehold-barging` \
    with `.barging()`, and `leasehold-polling` calls `try_acquire` every 10 ms.";

pub async fn measure(mongo: &Mongo, plan: Plan) -> Result<CaseResult> {
    let mut result = CaseResult::default();
    for (name, pause) in [("writes every 100 ms", 100), ("writes all the time", 0)] {
        let longest = Arc::new(Longest::default());
        let start = |way| Readers::start(mongo, way, pause, &longest);
        let ways = [Way::Barging, Way::InTurn, Way::Polling];
        let sides = ways.into_iter().map(start).collect::<Result<Vec<_>>>()?;
        let mut figures = compare(plan.long(LONGER), &sides).await?;
        longest.add_to(&mut figures);
        result.add(name, figures);
    }
    Ok(result)
}

struct Readers {
    side: &'static str,
    /// The writer first, then the readers.
    contenders: Mutex<Vec<Contender>>,
    turns: AtomicU64,
    longest: Arc<Longest>,
}

impl Readers {
    fn start(
        mongo: &Mongo,
        way: Way,
        pause_millis: u64,
        longest: &Arc<Longest>,
    ) -> Result<Box<dyn Side>> {
        let side = way.side();
        let reads = ChildOptions {
            uri: mongo.uri.clone(),
            database: mongo.database.name().to_owned(),
            side: side.to_owned(),
            collection: mongo.collection(side).name().to_owned(),
            tasks: TASKS,
            hold_millis: READ_MILLIS,
            hold_most_millis: None,
            pause_millis: 0,
            shared: true,
        };
        let writes = ChildOptions {
            tasks: 1,
            hold_millis: 1,
            hold_most_millis: Some(5),
            pause_millis,
            shared: false,
            ..reads.clone()
        };
        let start = |number| match number {
            WRITER => Contender::start(number, &writes),
            _ => Contender::start(number, &reads),
        };
        let contenders = (0..=READERS).map(start).collect::<Result<_>>()?;
        Ok(Box::new(Self {
            side,
            contenders: Mutex::new(contenders),
            turns: AtomicU64::new(0),
            longest: longest.clone(),
        }))
    }
}

#[async_trait]
impl Side for Readers {
    fn name(&self) -> &'static str {
        self.side
    }

    async fn turn(&self, time: Duration) -> Result<Sample> {
        let mut contenders = self.contenders.lock().await;
        let turn = self.turns.fetch_add(1, Ordering::Relaxed);
        let half = time / 2;
        let rate = |grants: &[Granted]| grants.len() as f64 / half.as_secs_f64();

        let readers = &mut contenders[WRITER + 1..];
        let (granted, span) = contend_all(readers, &format!("read-{turn}"), half).await?;
        let alone = rate(&inside(&granted, span));

        let (granted, span) = contend_all(&mut contenders, &format!("both-{turn}"), half).await?;
        let is_write = |grant: &Granted| grant.process == WRITER;
        let (writes, reads): (Vec<_>, Vec<_>) =
            inside(&granted, span).into_iter().partition(is_write);
        let all: Vec<_> = granted.into_iter().filter(is_write).collect();
        // The first turn is a warm-up.
        if turn > 0 {
            self.longest.record(self.side, &all);
        }
        let mut figures = vec![
            ("writes/s", rate(&writes)),
            ("reads/s", rate(&reads)),
            ("alone, reads/s", alone),
            ("reads over alone", rate(&reads) / alone),
        ];
        if let Some(waits) = Waits::of(&all) {
            figures.extend([
                ("write p50, ms", waits.p50),
                ("write p99, ms", waits.p99),
                ("longest, ms", waits.longest),
            ]);
        }
        Ok(Sample {
            figures,
            ..Sample::default()
        })
    }
}
