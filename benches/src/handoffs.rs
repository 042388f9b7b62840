//! Tasks that contend for the same key: the order of the grants, and how long each task waited.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use futures::future::try_join_all;
use hdrhistogram::Histogram;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::{
    cpu,
    locks::{LONG, SharedLocks},
    rounds::Sample,
};

/// A grant of the key.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Granted {
    /// The time by the clock that all processes share. The task reads it before the release, so these times have the
    /// order of the grants.
    pub at: Duration,
    pub process: usize,
    pub task: usize,
    pub waited: Duration,
}

/// How long each task holds the key, and how long it pauses.
#[derive(Clone, Copy, Debug, Default)]
pub struct Work {
    /// The task holds the key for a random time between the first value and the second.
    pub hold: (Duration, Duration),
    /// How long the task pauses after the release.
    pub pause: Duration,
}

impl Work {
    /// Holds the key for this long, and acquires it again at once.
    pub fn holding(time: Duration) -> Self {
        Self {
            hold: (time, time),
            pause: Duration::ZERO,
        }
    }

    fn time(self) -> Duration {
        let (least, most) = self.hold;
        least + most.saturating_sub(least).mul_f64(fastrand::f64())
    }
}

/// The time in which tasks contend.
#[derive(Clone, Copy, Debug)]
pub struct Span {
    pub begin: Duration,
    pub time: Duration,
}

impl Span {
    pub fn from_now(time: Duration) -> Self {
        Self {
            begin: cpu::monotonic(),
            time,
        }
    }

    pub fn end(self) -> Duration {
        self.begin + self.time
    }
}

/// Lets tasks acquire the key, hold it for a while and release it, until the time is over. Tasks that wait at that time
/// still get the key.
pub async fn contend(
    locks: &SharedLocks,
    key: &str,
    process: usize,
    tasks: usize,
    work: Work,
    span: Span,
) -> Result<Vec<Granted>> {
    tokio::time::sleep(span.begin.saturating_sub(cpu::monotonic())).await;
    let log = Arc::new(Mutex::new(Vec::new()));
    let tasks = (0..tasks).map(|task| {
        let (locks, key, log) = (locks.clone(), key.to_owned(), log.clone());
        tokio::spawn(async move {
            while cpu::monotonic() < span.end() {
                let asked = Instant::now();
                let guard = locks.acquire(&key, LONG).await?;
                log.lock().push(Granted {
                    at: cpu::monotonic(),
                    process,
                    task,
                    waited: asked.elapsed(),
                });
                let time = work.time();
                if !time.is_zero() {
                    tokio::time::sleep(time).await;
                }
                guard.release().await?;
                if !work.pause.is_zero() {
                    tokio::time::sleep(work.pause).await;
                }
            }
            anyhow::Ok(())
        })
    });
    for done in try_join_all(tasks.collect::<Vec<_>>()).await? {
        done?;
    }
    locks.settle().await?;
    let granted = std::mem::take(&mut *log.lock());
    Ok(granted)
}

/// The figures of the tasks of one process.
pub fn between_tasks(granted: &[Granted], span: Span) -> Result<Sample> {
    let inside = inside(granted, span);
    let same = |a: &Granted, b: &Granted| a.task == b.task;
    let (p50, p99) = waits(granted.iter().map(|it| it.waited))?;
    let figures = vec![
        (
            "handoffs/s",
            changes(&inside, same) / span.time.as_secs_f64(),
        ),
        ("wait p50, ms", p50),
        ("wait p99, ms", p99),
        ("longest streak", longest(&inside, same)),
    ];
    Ok(Sample {
        figures,
        ..Sample::default()
    })
}

/// The figures of two processes.
pub fn between_processes(granted: &[Granted], span: Span) -> Result<Sample> {
    let inside = inside(granted, span);
    let same_task = |a: &Granted, b: &Granted| (a.process, a.task) == (b.process, b.task);
    let same = |a: &Granted, b: &Granted| a.process == b.process;
    let first = inside.iter().filter(|grant| grant.process == 0).count();
    let smaller = first.min(inside.len() - first) as f64;
    let (p50, p99) = waits(granted.iter().map(|it| it.waited))?;
    let seconds = span.time.as_secs_f64();
    let figures = vec![
        ("handoffs/s", changes(&inside, same_task) / seconds),
        ("between processes/s", changes(&inside, same) / seconds),
        (
            "smaller share, %",
            100.0 * smaller / inside.len().max(1) as f64,
        ),
        ("longest run", longest(&inside, same)),
        ("wait p50, ms", p50),
        ("wait p99, ms", p99),
    ];
    Ok(Sample {
        figures,
        ..Sample::default()
    })
}

/// The grants within the time, in order. Later grants are those of the tasks that still waited at its end.
pub fn inside(granted: &[Granted], span: Span) -> Vec<Granted> {
    let mut inside: Vec<Granted> = granted
        .iter()
        .filter(|grant| grant.at < span.end())
        .copied()
        .collect();
    inside.sort_by_key(|grant| grant.at);
    inside
}

fn changes(granted: &[Granted], same: impl Fn(&Granted, &Granted) -> bool) -> f64 {
    let pairs = granted.windows(2);
    pairs.filter(|pair| !same(&pair[0], &pair[1])).count() as f64
}

fn longest(granted: &[Granted], same: impl Fn(&Granted, &Granted) -> bool) -> f64 {
    let streaks = granted.chunk_by(same).map(<[Granted]>::len);
    streaks.max().unwrap_or(0) as f64
}

/// The median and the 99th percentile of these times, in milliseconds.
pub fn waits(times: impl Iterator<Item = Duration>) -> Result<(f64, f64)> {
    let mut waits = Histogram::<u64>::new(3).context("no histogram")?;
    for time in times {
        waits.record(u64::try_from(time.as_micros())?)?;
    }
    let at = |quantile| waits.value_at_quantile(quantile) as f64 / 1e3;
    Ok((at(0.5), at(0.99)))
}
