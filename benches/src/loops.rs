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
};

/// Performs the operation once. It gets the number of the task, and how often the task has performed it before.
pub type Work = Arc<dyn Fn(usize, u64) -> BoxFuture<'static, Result<()>> + Send + Sync>;

pub struct Loops {
    name: &'static str,
    metric: &'static str,
    tasks: usize,
    work: Work,
    /// How often each task has performed the operation, so that the keys of a turn continue where the last turn ended.
    done: Arc<Vec<AtomicU64>>,
    settle: Option<SharedLocks>,
}

impl Loops {
    pub fn new(name: &'static str, metric: &'static str, tasks: usize, work: Work) -> Self {
        Self {
            name,
            metric,
            tasks,
            work,
            done: Arc::new((0..tasks).map(|_| AtomicU64::new(0)).collect()),
            settle: None,
        }
    }

    /// Acquires and releases keys that are new each time.
    pub fn fresh(locks: &SharedLocks, tasks: usize) -> Self {
        Self::cycles(locks, tasks, |_, _| Uuid::new_v4().to_string())
    }

    /// Acquires and releases the same thousand keys. Each task has its own part of them.
    pub fn existing(locks: &SharedLocks, tasks: usize) -> Self {
        let each = (1_000 / tasks) as u64;
        Self::cycles(locks, tasks, move |task, turn| {
            format!("key-{task}-{}", turn % each)
        })
    }

    fn cycles(
        locks: &SharedLocks,
        tasks: usize,
        key: impl Fn(usize, u64) -> String + Send + Sync + 'static,
    ) -> Self {
        let settle = Some(locks.clone());
        let shared = locks.clone();
        let work: Work = Arc::new(move |task, turn| {
            let (locks, key) = (shared.clone(), key(task, turn));
            Box::pin(async move { locks::cycle(&*locks, &key).await })
        });
        Self {
            settle,
            ..Self::new(locks.name(), "cycles/s", tasks, work)
        }
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
            let (work, done) = (self.work.clone(), self.done.clone());
            tokio::spawn(async move {
                let mut count = 0;
                while begin.elapsed() < time {
                    let turn = done[task].fetch_add(1, Ordering::Relaxed);
                    work(task, turn).await?;
                    count += 1;
                }
                anyhow::Ok(count)
            })
        });
        let counts = try_join_all(tasks.collect::<Vec<_>>()).await?;
        let mut count = 0_u64;
        for done in counts {
            count += done?;
        }
        if let Some(locks) = &self.settle {
            locks.settle().await?;
        }
        let rate = count as f64 / begin.elapsed().as_secs_f64();
        Ok(Sample {
            figures: vec![(self.metric, rate)],
            operations: Some(count),
        })
    }
}
