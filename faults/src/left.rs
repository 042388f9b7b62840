//! The locks that are left after all clients have ended.

use std::{collections::HashSet, path::PathBuf, time::Duration};

use anyhow::Result;
use futures::TryStreamExt;
use leasehold::{Filter, Leases};
use tokio::time::{Instant, sleep};

use crate::{
    HANGS,
    check::{Kind, Violations},
    client::Task,
    history::{self, Event},
};

/// How much later than a ttl the leases of killed clients may end, because the server may still carry out requests of
/// these clients.
const ON_THEIR_WAY: Duration = Duration::from_secs(5);

/// Violations: locks of clients that have closed, and all locks that still exist a ttl later, by the server's clock.
/// `slowest` is the longest time in which the servers granted nothing.
pub async fn by(task: &Task, closed: &[PathBuf], slowest: Duration) -> Result<Violations> {
    let mut ours = HashSet::new();
    for history in closed {
        for event in history::read(history)? {
            if let Event::Granted { lease, .. } = event {
                ours.insert(lease);
            }
        }
    }
    let leases = Leases::builder(task.store().await?)
        .call_timeout(HANGS)
        .build();
    let hangs = Instant::now() + HANGS;
    let most = task.pace.ttl + ON_THEIR_WAY.max(slowest);
    let mut first = None;
    loop {
        let left: Vec<_> = leases.list(Filter::new().live()).try_collect().await?;
        let Some(now) = left.iter().map(|lock| lock.now).max() else {
            return Ok(Violations::new());
        };
        let since = (now - *first.get_or_insert(now)).to_std();
        let late = since.unwrap_or_default() > most || Instant::now() > hangs;
        let holders = left.iter().flat_map(|lock| &lock.holders);
        let of_closed = holders.filter(|it| ours.contains(&it.lease.to_string()));
        if of_closed.count() > 0 || late {
            return Ok(vec![Kind::Left.of(format!("locks are left: {left:?}"))]);
        }
        sleep(Duration::from_millis(200)).await;
    }
}
