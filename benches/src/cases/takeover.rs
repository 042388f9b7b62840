//! Takeovers of expired locks.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use async_trait::async_trait;
use futures::future::try_join_all;
use tokio::sync::Mutex;

use super::sides;
use crate::{
    engines::Mongo,
    locks::SharedLocks,
    results::CaseResult,
    rounds::{Plan, Sample, Side, compare},
};

const TASKS: usize = 8;
/// The number of keys of each task.
const KEYS: usize = 50;
/// Long enough for a turn, and short enough to wait for.
const TTL: Duration = Duration::from_secs(2);

pub const ABOUT: &str = "Takeovers of 400 locks that have expired, by 8 tasks on different keys. The locks of \
    `mongodb-lock` do not expire.";

pub async fn measure(mongo: &Mongo, plan: Plan) -> Result<CaseResult> {
    let mut result = CaseResult::default();
    let side = |locks: &SharedLocks| -> Box<dyn Side> {
        Box::new(Takeovers {
            locks: locks.clone(),
            expired_at: Mutex::new(None),
        })
    };
    let locks = sides::expiring(mongo).await?;
    let sides: Vec<_> = locks.iter().map(side).collect();
    result.add("8 tasks", compare(plan, &sides).await?);
    Ok(result)
}

struct Takeovers {
    locks: SharedLocks,
    /// When the locks of the previous turn have expired; `None` before the first turn.
    expired_at: Mutex<Option<Instant>>,
}

impl Takeovers {
    /// Acquires every key, and leaves each lock to expire.
    async fn take(&self) -> Result<Duration> {
        let begin = Instant::now();
        let tasks = (0..TASKS).map(|task| {
            let locks = self.locks.clone();
            tokio::spawn(async move {
                for number in 0..KEYS {
                    let key = format!("dead-{task}-{number}");
                    let guard = locks.try_acquire(&key, TTL).await?;
                    guard.context("an expired key is held")?.leave();
                }
                anyhow::Ok(())
            })
        });
        for done in try_join_all(tasks.collect::<Vec<_>>()).await? {
            done?;
        }
        Ok(begin.elapsed())
    }
}

#[async_trait]
impl Side for Takeovers {
    fn name(&self) -> &'static str {
        self.locks.name()
    }

    /// Ignores the given time: each turn takes over all locks that the previous turn has left.
    async fn turn(&self, _: Duration) -> Result<Sample> {
        // The server's clock has a resolution of a millisecond.
        let dead = || Instant::now() + TTL + Duration::from_millis(5);
        let mut expired_at = self.expired_at.lock().await;
        if expired_at.is_none() {
            self.take().await?;
            *expired_at = Some(dead());
        }
        if let Some(at) = *expired_at {
            tokio::time::sleep_until(at.into()).await;
        }
        let took = self.take().await?;
        *expired_at = Some(dead());
        let takeovers = (TASKS * KEYS) as f64;
        Ok(Sample {
            figures: vec![("takeovers/s", takeovers / took.as_secs_f64())],
            // The turn includes pauses, so its processor time is not that of the takeovers.
            ..Sample::default()
        })
    }
}
