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
use crate::{lease_state::EndedBefore, model::LossReason, sticky::Stay, telemetry::StayEndReason};

/// How often the task looks at the leases in the store. A key that no task uses goes back within this time after another
/// process begins to wait. That process is granted it after its own pause, about a second in all. And within this time
/// nothing is granted any more under a lease that was evicted.
const ASK_INTERVAL: Duration = Duration::from_millis(500);

/// If this many of these looks in a row have failed, over at least the time [`FAILING`], all leases that stay are
/// released, because this process cannot learn any more that another one waits.
const FAILURES: u32 = 3;
const FAILING: Duration = Duration::from_secs(3);

/// The shortest pause of the task.
const SHORTEST: Duration = Duration::from_millis(10);

/// Starts the task, unless it runs.
pub(super) fn ensure_running(registry: &Arc<LeaseRegistry>) {
    if registry.stays.begin_task() {
        let task = StayTask(Some(Arc::downgrade(registry)));
        registry.renewals.run_beside(run(task));
    }
    recalls::ensure_listening(registry);
}

/// The state of the task. If it is dropped with its runtime, it goes on where the leases are renewed from then on.
struct StayTask(Option<Weak<LeaseRegistry>>);

impl StayTask {
    fn registry(&self) -> Option<Arc<LeaseRegistry>> {
        self.0.as_ref().and_then(Weak::upgrade)
    }
}

impl Drop for StayTask {
    fn drop(&mut self) {
        if let Some(registry) = self.registry() {
            let task = StayTask(self.0.take());
            registry.renewals.run_beside(run(task));
        }
    }
}

/// Does for each lease what is due now. Returns after how long to check again. `None` if no key stays, or goes back.
fn check_all(registry: &Arc<LeaseRegistry>, now: Instant) -> Option<Duration> {
    // The subscriber of the application may panic in the events of one lease. The others are checked all the same.
    let each = |all: Vec<Arc<Stay>>, check: &dyn Fn(&Arc<Stay>)| {
        for stay in all {
            let _ = catch_unwind(AssertUnwindSafe(|| check(&stay)));
        }
    };
    each(registry.stays.all(), &|stay| {
        stay.drop_expired(now);
        if stay.is_over(now) {
            let loss = stay.stored().loss(now);
            let why = match loss {
                Some(LossReason::TakenOver) => StayEndReason::Evicted,
                _ => StayEndReason::NotUsed,
            };
            registry.end_stay(stay, why);
        }
        stay.check_losses();
    });
    registry.stays.forget_released();
    each(registry.stays.ended(), &|stay| {
        let left = stay.settle(now);
        // A close may have given it back already.
        let _: Result<(), EndedBefore> = registry.send_back(stay, left);
        stay.check_losses();
    });
    if registry.stays.has_any() {
        // The task that listens may have ended with its runtime.
        recalls::ensure_listening(registry);
    }
    registry.stays.plan_next_check(now)
}

async fn run(mut task: StayTask) {
    let (mut asked_at, mut failures) = (Instant::now(), 0);
    // When the last question was sent that the store has answered.
    let mut answered = asked_at;
    // The question to the store, while it is not answered. The task goes on meanwhile.
    let mut asking: Option<BoxFuture<'static, recalls::WaitedFor>> = None;
    // The registry is not kept while the task sleeps, so that the last handle can drop it.
    while let Some(registry) = task.registry() {
        let now = Instant::now();
        let Some(next_check) = check_all(&registry, now) else {
            task.0 = None;
            return;
        };
        if asking.is_none() && now.saturating_duration_since(asked_at) >= ASK_INTERVAL {
            asked_at = now;
            asking = Some(recalls::look(&registry).boxed());
        }
        drop(registry);
        let next = ASK_INTERVAL.saturating_sub(asked_at.elapsed());
        let next = match asking {
            Some(_) => ASK_INTERVAL,
            None => next,
        };
        let pause = sleep(next.min(next_check).max(SHORTEST));
        let Some(answer) = &mut asking else {
            pause.await;
            continue;
        };
        tokio::select! {
            (waited_for, outcome) = answer => {
                asking = None;
                if outcome.is_ok() {
                    (failures, answered) = (0, asked_at);
                } else {
                    failures += 1;
                }
                let Some(registry) = task.registry() else { return };
                waited_for.iter().for_each(|key| registry.recall(key));
                if failures >= FAILURES && answered.elapsed() >= FAILING {
                    (failures, answered) = (0, asked_at);
                    let end = || registry.end_all_stays(StayEndReason::NotTold);
                    let _ = catch_unwind(AssertUnwindSafe(end));
                }
            }
            () = pause => {}
        }
    }
}
