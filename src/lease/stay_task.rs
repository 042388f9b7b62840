//! The task that looks after the leases that stay with this process. It sends back those that other processes wait for,
//! those that no task has used for long enough, and those that are lost. A lease that was recalled while a task used it
//! goes back when that task's own lease is over, even if its guard still exists.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Weak},
    time::Duration,
};

use futures::future::{BoxFuture, FutureExt};
use tokio::time::{Instant, sleep};

use super::{recalls, registry::LeaseRegistry};
use crate::{sticky::Stay, telemetry::SentBack};

/// How often the task asks the store which keys other processes wait for. A key that no task uses goes back within this
/// time after another process begins to wait. That process is granted it after its own pause, about a second in all.
const LOOK: Duration = Duration::from_millis(500);

/// If this many of these requests in a row have failed, over at least the time [`FAILING`], all leases that stay are
/// released, because this process cannot learn any more that another one waits.
const FAILURES: u32 = 3;
const FAILING: Duration = Duration::from_secs(3);

/// The shortest pause of the task.
const SHORTEST: Duration = Duration::from_millis(10);

/// Starts the task, unless it runs.
pub(super) fn ensure_running(registry: &Arc<LeaseRegistry>) {
    if registry.stays.begin_to_tend() {
        let looking = Looking(Some(Arc::downgrade(registry)));
        registry.renewals.run_beside(look(looking));
    }
    recalls::ensure_listening(registry);
}

/// The task. If it is dropped with its runtime, it goes on where the leases are renewed from then on.
struct Looking(Option<Weak<LeaseRegistry>>);

impl Looking {
    fn registry(&self) -> Option<Arc<LeaseRegistry>> {
        self.0.as_ref().and_then(Weak::upgrade)
    }
}

impl Drop for Looking {
    fn drop(&mut self) {
        if let Some(registry) = self.registry() {
            let looking = Looking(self.0.take());
            registry.renewals.run_beside(look(looking));
        }
    }
}

/// Does what is due now. Returns after how long to look again. `None` if no key stays, or goes back.
fn tend(registry: &Arc<LeaseRegistry>, now: Instant) -> Option<Duration> {
    // The subscriber of the application may panic in the events of one lease. The others are looked after all the same.
    let each = |all: Vec<Arc<Stay>>, look: &dyn Fn(&Arc<Stay>)| {
        for stay in all {
            let _ = catch_unwind(AssertUnwindSafe(|| look(&stay)));
        }
    };
    each(registry.stays.all(), &|stay| {
        stay.drop_expired(now);
        if stay.is_over(now) {
            registry.end_stay(stay, SentBack::NotUsed);
        }
        stay.check_losses();
    });
    registry.stays.forget_released();
    each(registry.stays.ended(), &|stay| {
        let left = stay.settle(now);
        registry.send_back(stay, left);
        stay.check_losses();
    });
    if registry.stays.has_any() {
        // The task that listens may have ended with its runtime.
        recalls::ensure_listening(registry);
    }
    registry.stays.plan_look(now)
}

async fn look(mut looking: Looking) {
    let (mut looked, mut failures) = (Instant::now(), 0);
    // When the last look began that succeeded.
    let mut heard = looked;
    // The question to the store, while it is not answered. The task goes on meanwhile.
    let mut asking: Option<BoxFuture<'static, recalls::Looked>> = None;
    // The registry is not kept while the task sleeps, so that the last handle can drop it.
    while let Some(registry) = looking.registry() {
        let now = Instant::now();
        let Some(next_look) = tend(&registry, now) else {
            looking.0 = None;
            return;
        };
        if asking.is_none() && now.saturating_duration_since(looked) >= LOOK {
            looked = now;
            asking = Some(recalls::ask_waited_for(&registry).boxed());
        }
        drop(registry);
        let next = LOOK.saturating_sub(looked.elapsed());
        let next = match asking {
            Some(_) => LOOK,
            None => next,
        };
        let pause = sleep(next.min(next_look).max(SHORTEST));
        let Some(answer) = &mut asking else {
            pause.await;
            continue;
        };
        tokio::select! {
            (waited_for, outcome) = answer => {
                asking = None;
                if outcome.is_ok() {
                    (failures, heard) = (0, looked);
                } else {
                    failures += 1;
                }
                let Some(registry) = looking.registry() else { return };
                waited_for.iter().for_each(|key| registry.recall(key));
                if failures >= FAILURES && heard.elapsed() >= FAILING {
                    (failures, heard) = (0, looked);
                    let end = || registry.end_all_stays(SentBack::NotTold);
                    let _ = catch_unwind(AssertUnwindSafe(end));
                }
            }
            () = pause => {}
        }
    }
}
