//! The task that looks after the leases that stay with this process. It sends back those that other processes wait for,
//! those that no task has used for long enough, and those that are lost.

use std::{
    collections::HashSet,
    sync::{Arc, Weak},
    time::Duration,
};

use tokio::time::{Instant, sleep};

use super::registry::LeaseRegistry;
use crate::{
    messages::MAX_RENEWALS,
    model::Key,
    runtime,
    telemetry::{self, SentBack},
};

/// How often the task asks the store which keys other processes wait for.
const LOOK: Duration = Duration::from_secs(1);

/// The shortest pause of the task.
const SHORTEST: Duration = Duration::from_millis(10);

/// Starts the task, unless it runs.
pub(super) fn ensure_looking(registry: &Arc<LeaseRegistry>) {
    if registry.stays.begin_to_tend() {
        let looking = Looking(Some(Arc::downgrade(registry)));
        // Without a runtime the task is dropped here, which ends all stays.
        let _ = runtime::spawn(look(looking));
    }
}

/// The task. If it is dropped with its runtime, nobody would learn that other processes wait. So its drop ends all
/// stays.
struct Looking(Option<Weak<LeaseRegistry>>);

impl Looking {
    fn registry(&self) -> Option<Arc<LeaseRegistry>> {
        self.0.as_ref().and_then(Weak::upgrade)
    }
}

impl Drop for Looking {
    fn drop(&mut self) {
        if let Some(registry) = self.registry() {
            registry.stays.end_tending();
            registry.end_all_stays();
        }
    }
}

async fn look(mut looking: Looking) {
    let mut looked = Instant::now();
    // The registry is not kept while the task sleeps, so that the last handle can drop it.
    while let Some(registry) = looking.registry() {
        let now = Instant::now();
        for stay in registry.stays.all() {
            if stay.is_over(now) {
                registry.end_stay(&stay, SentBack::NotUsed);
            }
        }
        let Some(idle) = registry.stays.shortest_idle() else {
            looking.0 = None;
            return;
        };
        if now.saturating_duration_since(looked) >= LOOK {
            looked = now;
            recall(&registry).await;
        }
        drop(registry);
        let next = LOOK.saturating_sub(looked.elapsed());
        sleep(next.min(idle).max(SHORTEST)).await;
    }
}

/// Sends back the leases that other processes wait for.
async fn recall(registry: &LeaseRegistry) {
    let stays = registry.stays.all();
    for some in stays.chunks(MAX_RENEWALS) {
        let keys: Vec<Key> = some.iter().map(|stay| stay.key().clone()).collect();
        let store = registry.store.clone();
        let asked = async move { runtime::caught(store.waited_for(&keys)).await };
        // `call` reports an error. The next look asks again.
        let answer = runtime::call("waited_for", registry.call_timeout, asked).await;
        let waited_for: HashSet<Key> = answer.unwrap_or_default().into_iter().collect();
        let now = Instant::now();
        for stay in some.iter().filter(|it| waited_for.contains(it.key())) {
            registry.stays.recalled(stay.key(), now);
            registry.end_stay(stay, SentBack::WaitedFor);
        }
    }
    telemetry::looked(stays.len());
}
