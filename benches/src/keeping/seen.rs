//! What the child observes of its leases.

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::Result;
use futures::{StreamExt, stream::FuturesUnordered};
use leasehold::{Lease, LossReason};
use parking_lot::Mutex;
use tokio::{runtime::Handle, sync::mpsc::UnboundedReceiver};

use crate::{counted::Count, rss::Rss};

/// How often the leases are checked.
pub const LOOK: Duration = Duration::from_millis(500);
/// How often a line of progress is printed.
const TELL: Duration = Duration::from_secs(5);
/// Over how long the rate of the commands is measured.
const SECOND: Duration = Duration::from_secs(1);

/// What is known of the leases of this process.
pub struct Seen {
    pub commands: Count,
    /// How much earlier a lease ends for the client than on the server.
    pub clock_margin: Duration,
    pub state: Mutex<State>,
}

#[derive(Default)]
pub struct State {
    pub phase: &'static str,
    /// The granted leases, including lost ones.
    pub leases: Vec<Arc<Lease>>,
    pub failed: usize,
    pub lost: usize,
    /// How often each reason for a loss or a failed acquire occurred.
    pub reasons: BTreeMap<String, usize>,
    pub commands_at_most: f64,
    pub longest_without_renewal: Duration,
    pub tasks: usize,
}

impl State {
    pub fn fail(&mut self, error: &leasehold::Error) {
        self.failed += 1;
        self.count(format!("failed: {error}"));
    }

    fn lose(&mut self, reason: &LossReason) {
        self.lost += 1;
        self.count(format!("lost: {reason}"));
    }

    /// Counts a reason without the key in it. Otherwise each key would make a separate reason.
    fn count(&mut self, reason: String) {
        let reason = match reason.split_once('"') {
            Some((before, rest)) => {
                let after = rest.split_once('"').map_or("", |it| it.1);
                format!("{before}…{after}")
            }
            None => reason,
        };
        *self.reasons.entry(reason).or_default() += 1;
    }
}

impl Seen {
    /// Waits for the loss of each granted lease, until the channel of the granted leases is closed.
    pub async fn losses(self: Arc<Self>, mut granted: UnboundedReceiver<Arc<Lease>>) {
        let mut losses = FuturesUnordered::new();
        loop {
            tokio::select! {
                lease = granted.recv() => match lease {
                    Some(lease) => losses.push(async move { lease.lost().await }),
                    None => return,
                },
                Some(reason) = losses.next() => self.state.lock().lose(&reason),
            }
        }
    }

    /// Checks the leases repeatedly, and prints the progress.
    pub async fn look(self: Arc<Self>) -> Result<()> {
        let start = Instant::now();
        let (mut told, mut counted) = (start, (start, self.count()));
        loop {
            tokio::time::sleep(LOOK).await;
            let tasks = Handle::current().metrics().num_alive_tasks();
            let rate = (counted.0.elapsed() >= SECOND).then(|| {
                let sent = (self.count() - counted.1) as f64;
                let rate = sent / counted.0.elapsed().as_secs_f64();
                counted = (Instant::now(), self.count());
                rate
            });
            let mut state = self.state.lock();
            state.tasks = state.tasks.max(tasks);
            state.commands_at_most = state.commands_at_most.max(rate.unwrap_or(0.0));
            let longest = state.leases.iter().filter_map(|lease| {
                let left = lease.remaining();
                let whole = lease.ttl().saturating_sub(self.clock_margin);
                (!left.is_zero()).then(|| whole.saturating_sub(left))
            });
            let longest = longest.max().unwrap_or_default();
            state.longest_without_renewal = state.longest_without_renewal.max(longest);
            if let Some(rate) = rate.filter(|_| told.elapsed() >= TELL) {
                told = Instant::now();
                let rss = Rss::of_this_process()?;
                eprintln!(
                    "    {:4.0} s {}: held {}, lost {}, failed {}, {rate:.0} commands/s, {tasks} tasks, \
                     RSS {:.0} MB, {:.1} s without a renewal at most",
                    start.elapsed().as_secs_f64(),
                    state.phase,
                    state.leases.len() - state.lost,
                    state.lost,
                    state.failed,
                    rss.now,
                    longest.as_secs_f64(),
                );
            }
        }
    }

    pub fn count(&self) -> u64 {
        self.commands.load(std::sync::atomic::Ordering::Relaxed)
    }
}
