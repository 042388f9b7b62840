//! How long the machine or a server stood still: what a test has to have measured before it may excuse what
//! that costs.

use std::{sync::Arc, time::Duration};

use leasehold::{Leases, Store};
use tokio::{
    sync::watch,
    task::JoinSet,
    time::{Instant, sleep},
};

const STEP: Duration = Duration::from_millis(20);
/// A machine or a server that takes this much longer than a step may cost a lease an answer, or a renewal.
const STALL: Duration = Duration::from_millis(500);

/// Watches for as long as it is there.
pub struct Stalls {
    seen: watch::Receiver<Seen>,
    _watching: JoinSet<()>,
}

#[derive(Clone, Default)]
struct Seen {
    steps: usize,
    /// From when to when one of them stood still.
    stalls: Vec<(Instant, Instant)>,
}

impl Stalls {
    /// Watches the machine in steps, and the server in its answers. The store is not one whose way loses
    /// answers.
    pub fn of(server: Arc<dyn Store>) -> Self {
        Self::watch(Some(Leases::new(server)))
    }

    /// Watches the machine in steps, where the requests to a server are counted.
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
                    // Whatever it says, it has answered.
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

    /// For how long they stood still since then, all in all.
    pub async fn since(&self, start: Instant) -> Duration {
        let mut seen = self.seen.clone();
        let steps = seen.borrow().steps;
        // What stands still now shows with the next one.
        let seen = seen.wait_for(|seen| seen.steps > steps).await;
        let seen = seen.expect("nobody watches");
        let stalls = seen.stalls.iter();
        let since = stalls.map(|(from, to)| to.saturating_duration_since(start.max(*from)));
        since.sum()
    }
}
