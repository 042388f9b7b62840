//! The client with a paused clock: retries, dropped futures, late answers, and runtimes that end.

mod flaky;
mod gates;

mod acquire;
mod batches;
mod cancel;
mod claims;
mod clock_steps;
mod close;
mod computing;
mod conversions;
mod crowd;
mod documented;
mod drops;
mod ended_runtimes;
mod faulty;
mod fresh;
mod handover;
mod keep_alive;
mod kinds;
mod late_grants;
mod leader;
mod limit_faults;
mod limits;
mod listeners;
mod loss;
mod many;
mod max_hold;
mod observe;
mod once;
mod queue;
mod reentrant;
mod release;
mod renew;
mod sets;
mod several_limits;
mod sticky;
mod take_over;
mod turns;
mod wakeups;
mod with;

use std::time::Duration;

use flaky::{Fate, FlakyStore};
use leasehold::{Key, Leases, Store};
use tokio::time::{Instant, sleep};

const TTL: Duration = Duration::from_secs(30);
const MARGIN: Duration = Duration::from_millis(100);
/// The time limit of a call, unless a test sets another.
const LIMIT: Duration = Duration::from_secs(10);
const MOMENT: Duration = Duration::from_millis(10);
/// Ends a test in real time that would hang.
const PATIENCE: Duration = Duration::from_secs(180);

fn setup() -> (FlakyStore, Leases) {
    let store = FlakyStore::new();
    (store.clone(), Leases::new(store))
}

async fn is_free(store: &FlakyStore) -> bool {
    let state = store.memory.inspect(&Key::new("key").unwrap()).await;
    state.unwrap().is_none_or(|state| state.is_free())
}

/// Waits until the key is free, and returns how long that took.
async fn until_free(store: &FlakyStore) -> Duration {
    let start = Instant::now();
    while !is_free(store).await {
        assert!(start.elapsed() < PATIENCE, "the key stays held");
        sleep(Duration::from_millis(1)).await;
    }
    start.elapsed()
}
