//! A probe of how fast the servers answer. The laboratory takes leases of its own all the time, without contention and
//! without the faults of the clients' network.

use std::{sync::Arc, time::Duration};

use anyhow::{Context, Result};
use futures::future::try_join_all;
use leasehold::{Attempt, Leases, Store};
use tokio::{
    sync::watch,
    task::JoinHandle,
    time::{Instant, sleep, timeout},
};

use crate::{
    HANGS,
    check::longest_between,
    history::{Clock, Time},
    work::Pace,
};

/// How many tasks measure how fast the servers answer. Each task measures several times.
const ASKERS: usize = 24;
const ANSWERS: usize = 3;
/// The pause between two leases.
const PAUSE: Duration = Duration::from_millis(50);

pub struct Probe {
    /// When each grant was requested, and when its answer arrived.
    grants: watch::Receiver<Vec<(Time, Time)>>,
    leases: Leases,
    task: JoinHandle<()>,
}

impl Probe {
    pub fn start(store: Arc<dyn Store>, pace: Pace, clock: Clock) -> Self {
        let leases = Leases::builder(store)
            .call_timeout(pace.call_timeout)
            .build();
        let (tell, grants) = watch::channel(Vec::new());
        let asking = leases.clone();
        let task = tokio::spawn(async move {
            for number in 0.. {
                // A key that was not released, because a server was killed, is not requested again soon.
                let key = format!("probe-{}", number % 64);
                let sent = clock.now();
                if let Ok(Attempt::Acquired(lease)) = asking.try_acquire(&key, pace.ttl).await {
                    tell.send_modify(|grants| grants.push((sent, clock.now())));
                    // A lease that cannot be released ends by itself.
                    lease.release().await.unwrap_or_default();
                }
                sleep(PAUSE).await;
            }
        });
        Self {
            grants,
            leases,
            task,
        }
    }

    /// Waits for a grant that was requested after this time.
    pub async fn is_granted_after(&self, time: Time) -> Result<()> {
        let mut grants = self.grants.clone();
        let is_later = |grants: &Vec<(Time, Time)>| grants.last().is_some_and(|it| it.0 > time);
        let granted = timeout(HANGS, grants.wait_for(is_later)).await;
        granted.context("the servers do not come back")??;
        Ok(())
    }

    /// The longest time in a run without a grant.
    pub fn longest_gap(&self, run: (Time, Time)) -> Duration {
        longest_between(self.grants.borrow().iter().map(|(_, got)| *got), run)
    }

    pub async fn stop(&self) {
        self.task.abort();
        self.leases.close().await;
    }
}

/// The slowest answer to several concurrent requests, while the servers have no faults.
pub async fn measure(store: Arc<dyn Store>) -> Result<Duration> {
    let leases = Leases::builder(store).call_timeout(HANGS).build();
    let answers = async |name: String| {
        let mut slowest = Duration::ZERO;
        for _ in 0..ANSWERS {
            let sent = Instant::now();
            let lease = leases.acquire(&name, HANGS).await?;
            slowest = slowest.max(sent.elapsed());
            lease.release().await?;
        }
        anyhow::Ok(slowest)
    };
    // The first request may have to create things.
    answers("first".to_owned()).await?;
    let askers = (0..ASKERS).map(|asker| answers(format!("measure-{asker}")));
    let slowest = try_join_all(askers).await?.into_iter().max();
    leases.close().await;
    Ok(slowest.unwrap_or_default())
}

impl Drop for Probe {
    fn drop(&mut self) {
        self.task.abort();
    }
}
