//! The usual kind of side: some tasks that repeat one operation.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::Result;
use async_trait::async_trait;
use futures::future::{BoxFuture, try_join_all};
use uuid::Uuid;

use crate::{
    locks::{self, SharedLocks},
    rounds::{Sample, Side},
    times::Times,
};

/// Performs the operation once. It gets the number of the task, and how often the task has performed it before.
pub type Work = Arc<dyn Fn(usize, u64) -> BoxFuture<'static, Result<()>> + Send + Sync>;

/// What the tasks repeat.
#[derive(Clone)]
enum Job {
    /// All of it is timed.
    Work(Work),
    /// Acquires a free key and releases it. The acquire alone is timed.
    Cycle(SharedLocks, NextKey),
}

/// The key for the number of a task, and for how often the task has had one before.
type NextKey = Arc<dyn Fn(usize, u64) -> String + Send + Sync>;

impl Job {
    async fn perform(&self, task: usize, turn: u64) -> Result<Duration> {
        match self {
            Self::Work(work) => {
                let begin = Instant::now();
                work(task, turn).await?;
                Ok(begin.elapsed())
            }
            Self::Cycle(locks, key) => locks::cycle(&**locks, &key(task, turn)).await,
        }
    }

    fn times(&self) -> Result<Times> {
        match self {
            Self::Work(_) => Times::new("p50, ms", "p99, ms"),
            Self::Cycle(..) => Times::new("acquire p50, ms", "acquire p99, ms"),
        }
    }
}

/// How many keys each task has that acquires the same keys again and again.
const KEYS_OF_TASK: u64 = 16;

pub struct Loops {
    name: &'static str,
    metric: &'static str,
    tasks: usize,
    job: Job,
    /// How often each task has performed the operation, so that the keys of a turn continue where the last turn ended.
    done: Arc<Vec<AtomicU64>>,
}

impl Loops {
    pub fn new(name: &'static str, metric: &'static str, tasks: usize, work: Work) -> Self {
        Self::of(name, metric, tasks, Job::Work(work))
    }

    fn of(name: &'static str, metric: &'static str, tasks: usize, job: Job) -> Self {
        Self {
            name,
            metric,
            tasks,
            job,
            done: Arc::new((0..tasks).map(|_| AtomicU64::new(0)).collect()),
        }
    }

    /// Acquires and releases keys that are new each time.
    pub fn fresh(locks: &SharedLocks, tasks: usize) -> Self {
        Self::cycles(locks, tasks, |_, _| Uuid::new_v4().to_string())
    }

    /// Acquires and releases the same few keys, so that all of them exist after the first round.
    pub fn existing(locks: &SharedLocks, tasks: usize) -> Self {
        Self::cycles(locks, tasks, |task, turn| {
            format!("key-{task}-{}", turn % KEYS_OF_TASK)
        })
    }

    fn cycles(
        locks: &SharedLocks,
        tasks: usize,
        key: impl Fn(usize, u64) -> String + Send + Sync + 'static,
    ) -> Self {
        let job = Job::Cycle(locks.clone(), Arc::new(key));
        Self::of(locks.name(), "cycles/s", tasks, job)
    }

    pub fn boxed(self) -> Box<dyn Side> {
        Box::new(self)
    }
}

#[async_trait]
impl Side for Loops {
    fn name(&self) -> &'static str {
        self.name
    }

    async fn turn(&self, time: Duration) -> Result<Sample> {
        let begin = Instant::now();
        let tasks = (0..self.tasks).map(|task| {
            let (job, done) = (self.job.clone(), self.done.clone());
            tokio::spawn(async move {
                let mut took = Vec::new();
                while begin.elapsed() < time {
                    let turn = done[task].fetch_add(1, Ordering::Relaxed);
                    took.push(job.perform(task, turn).await?);
                }
                anyhow::Ok(took)
            })
        });
        let took = try_join_all(tasks.collect::<Vec<_>>()).await?;
        if let Job::Cycle(locks, _) = &self.job {
            locks.settle().await?;
        }
        let seconds = begin.elapsed().as_secs_f64();
        let mut times = self.job.times()?;
        for of_task in took {
            for time in of_task? {
                times.record(time)?;
            }
        }
        let count = times.count();
        Ok(Sample {
            figures: vec![(self.metric, count as f64 / seconds)],
            times: Some(times),
            operations: Some(count),
        })
    }
}
