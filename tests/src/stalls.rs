//! How long the machine or a server stood still. A test has to measure that before it may excuse a failure by it.

use std::{sync::Arc, time::Duration};

use leasehold::{Leases, Store};
use tokio::{
    sync::watch,
    task::JoinSet,
    time::{Instant, sleep},
};

const STEP: Duration = Duration::from_millis(20);
/// If the machine or a server takes this much longer than a step, a lease may miss an answer or a renewal.
const STALL: Duration = Duration::from_millis(500);

/// Watches for stalls until it is dropped.
pub struct Stalls {
    seen: watch::Receiver<Seen>,
    _watching: JoinSet<()>,
}

#[derive(Clone, Default)]
struct Seen {
    steps: usize,
    /// Between which instants one of them stood still.
    stalls: Vec<(Instant, Instant)>,
}

impl Stalls {
    /// Watches the machine by steps, and the server by its answers. The way to this store must lose no answers.
    pub fn of(server: Arc<dyn Store>) -> Self {
        Self::watch(Some(Leases::new(server)))
    }

    /// Watches the machine by steps. It sends no requests, for tests that count them.
    pub fn of_the_machine() -> Self {
        Self::watch(None)
    }

    fn watch(server: Option<Leases>) -> Self {
        let (sender, seen) = watch::channel(Seen::default());
        let mut watching = JoinSet::new();
        watching.spawn(async move {
            loop {
                let start = Instant::now();
                sleep(STEP).await;
                if let Some(server) = &server {
                    // Any outcome is an answer.
                    let _ = server.inspect("a watched key").await;
                }
                let end = Instant::now();
                sender.send_modify(|seen| {
                    seen.steps += 1;
                    if end - start >= STALL {
                        seen.stalls.push((start, end));
                    }
                });
            }
        });
        Self {
            seen,
            _watching: watching,
        }
    }

    /// How long they stood still since this instant, in total.
    pub async fn since(&self, start: Instant) -> Duration {
        let mut seen = self.seen.clone();
        let steps = seen.borrow().steps;
        // A stall that still lasts shows with the next step.
        let seen = seen.wait_for(|seen| seen.steps > steps).await;
        let seen = seen.expect("nobody watches");
        let stalls = seen.stalls.iter();
        let since = stalls.map(|(from, to)| to.saturating_duration_since(start.max(*from)));
        since.sum()
    }
}
