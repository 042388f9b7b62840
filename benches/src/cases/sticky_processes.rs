//! Two processes that share a key. A key that stays with one of them must not slow them down.

use std::time::{Duration, Instant};

use anyhow::Result;
use async_trait::async_trait;
use leasehold::Leases;
use tokio::try_join;

use super::sticky::{IDLE, STICKY, TTL};
use crate::{
    engines::Mongo,
    handoffs::{Span, Work, between_processes, contend, inside},
    locks::SharedLocks,
    ours::{Whole, mongo_store},
    results::CaseResult,
    rounds::{Plan, Sample, Side, compare},
};

const KEY: &str = "key";
/// The number of rounds. A round takes more than a minute.
const ROUNDS: usize = 5;
/// A little longer than the time for which a recalled key does not stay. So each turn of the sticky side begins with
/// recalls, while the other side works for as long as the time is.
const TURN: Duration = Duration::from_secs(33);
/// The recalls at the beginning of a turn are over by this time.
const SETTLED: Duration = Duration::from_secs(20);
/// A wait that is longer is that for a recall.
const RECALL: Duration = Duration::from_millis(500);
const HOLD: Duration = Duration::from_millis(5);

pub async fn measure(mongo: &Mongo, plan: Plan) -> Result<CaseResult> {
    let about = "Two handles, each with a client and an owner of its own, share one key. In strict \
                 turns: each takes the key when the other has released it, without a pause. A turn \
                 of `leasehold-sticky` lasts from one recall to the next, about 30 s, so its \
                 figure is that of a longer run. The other side works for 33 s. `in recalls` is \
                 the part of the time that a process waits for a recall. Both at once: each has \
                 one task that wants the key all the time, and holds it for 5 ms, for 33 s.";
    let mut result = CaseResult::new("sticky-processes", mongo.engine.name(), about);
    let plan = Plan {
        rounds: ROUNDS,
        turn: TURN,
        ..plan
    };
    let mut turns: Vec<Box<dyn Side>> = Vec::new();
    for (name, idle) in [("leasehold", Duration::ZERO), (STICKY, IDLE)] {
        let handles = handles(mongo, name, idle).await?;
        turns.push(Box::new(InTurns { name, handles }));
    }
    result.add("strict turns", compare(plan, &turns).await?);
    let mut both: Vec<Box<dyn Side>> = Vec::new();
    for (name, idle) in [("leasehold", Duration::ZERO), (STICKY, IDLE)] {
        let handles = handles(mongo, name, idle).await?;
        let locks = handles.map(|leases| Whole::named(name, &leases));
        both.push(Box::new(AtOnce { name, locks }));
    }
    result.add("both at once", compare(plan, &both).await?);
    Ok(result)
}

/// Two handles of the same collection, like those of two processes.
pub(super) async fn handles(mongo: &Mongo, side: &str, idle: Duration) -> Result<[Leases; 2]> {
    let collection = mongo.collection(side).name().to_owned();
    let handle = async |owner: &'static str| {
        let (database, _) = mongo.counting().await?;
        let store = mongo_store(&database.collection(&collection)).await?;
        anyhow::Ok(Leases::builder(store).owner(owner).sticky(idle).build())
    };
    Ok([handle("one").await?, handle("other").await?])
}

struct InTurns {
    name: &'static str,
    handles: [Leases; 2],
}

#[async_trait]
impl Side for InTurns {
    fn name(&self) -> &'static str {
        self.name
    }

    async fn turn(&self, time: Duration) -> Result<Sample> {
        let begin = Instant::now();
        let (mut grants, mut recalls) = (0_u64, Vec::new());
        let all = 'turn: loop {
            for leases in &self.handles {
                let asked = begin.elapsed();
                if asked >= time && recalls.is_empty() || asked >= 2 * time {
                    break 'turn asked;
                }
                let lease = leases.acquire(KEY, TTL).await?;
                let waited = begin.elapsed() - asked;
                lease.release().await?;
                if waited >= RECALL {
                    // The next period begins with this wait.
                    if asked >= SETTLED {
                        break 'turn asked;
                    }
                    recalls.push(waited.as_secs_f64());
                }
                grants += 1;
            }
        };
        let (count, all) = (recalls.len() as f64, all.as_secs_f64());
        let waited: f64 = recalls.iter().sum();
        let mut figures = vec![
            ("grants/s", grants as f64 / all),
            ("recalls", count),
            ("in recalls, %", 100.0 * waited / all),
        ];
        if count > 0.0 {
            figures.push(("recall, ms", 1e3 * waited / count));
        }
        Ok(Sample {
            figures,
            operations: Some(grants),
            ..Sample::default()
        })
    }
}

struct AtOnce {
    name: &'static str,
    locks: [SharedLocks; 2],
}

#[async_trait]
impl Side for AtOnce {
    fn name(&self) -> &'static str {
        self.name
    }

    async fn turn(&self, time: Duration) -> Result<Sample> {
        let span = Span::from_now(time);
        let [one, other] = &self.locks;
        let work = Work::holding(HOLD);
        let (mut granted, others) = try_join!(
            contend(one, KEY, 0, 1, work, span),
            contend(other, KEY, 1, 1, work, span),
        )?;
        granted.extend(others);
        let rate = inside(&granted, span).len() as f64 / time.as_secs_f64();
        let longest = granted.iter().map(|it| it.waited).max().unwrap_or_default();
        let mut figures = vec![("grants/s", rate)];
        let shown = ["smaller share, %", "wait p99, ms"];
        let between = between_processes(&granted, span)?.figures.into_iter();
        figures.extend(between.filter(|figure| shown.contains(&figure.0)));
        figures.push(("longest wait, ms", longest.as_secs_f64() * 1e3));
        Ok(Sample {
            figures,
            operations: Some(granted.len() as u64),
            ..Sample::default()
        })
    }
}
