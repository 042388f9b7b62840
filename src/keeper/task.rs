//! The task that renews, and has the rest done.

use std::sync::{Arc, Weak};

use tokio::{
    runtime::Id,
    sync::mpsc::{UnboundedReceiver, WeakUnboundedSender},
    time::{Instant, sleep_until},
};

use super::{
    Message,
    calls::{self, renew},
    overload::Overload,
    runtimes::Runtimes,
};
use crate::{
    hold::Hold,
    model::{Error, LeaseId},
    release::Releases,
    runtime,
    schedule::{self, Batch, BatchId, Outcome, Schedule},
    store::Store,
    telemetry,
};

/// The task itself. It never waits for a store, so that no lease is held up by another's trouble.
///
/// A runtime that shuts down drops the task. It then goes on, with all that it keeps, on another runtime that
/// acquires came from; and if there is none, on that of the next acquire.
pub(super) struct Keeping {
    /// `None` after the task has ended, or has moved to another runtime.
    kept: Option<Kept>,
    runtimes: Arc<Runtimes>,
    runtime: Id,
}

/// What the task has to do with.
pub(super) struct Kept {
    pub(super) store: Arc<dyn Store>,
    pub(super) releases: Releases,
    pub(super) schedule: Schedule<Weak<Hold>>,
    pub(super) inbox: UnboundedReceiver<Message>,
    pub(super) back: WeakUnboundedSender<Message>,
    pub(super) overload: Overload,
}

impl Keeping {
    pub(super) fn new(kept: Kept, runtimes: Arc<Runtimes>, runtime: Id) -> Self {
        Self {
            kept: Some(kept),
            runtimes,
            runtime,
        }
    }

    pub(super) async fn run(mut self) {
        if let Some(kept) = &mut self.kept {
            kept.run().await;
        }
        // The handle is gone: nothing is kept any more.
        self.kept = None;
    }
}

impl Drop for Keeping {
    fn drop(&mut self) {
        if let Some(kept) = self.kept.take() {
            self.runtimes.move_from(self.runtime, kept);
        }
    }
}

impl Kept {
    async fn run(&mut self) {
        loop {
            let message = match self.schedule.next(Instant::now()) {
                Some(due) => tokio::select! {
                    message = self.inbox.recv() => message,
                    () = sleep_until(due) => {
                        self.renew_due(Instant::now());
                        continue;
                    }
                },
                None => self.inbox.recv().await,
            };
            match message {
                Some(message) => self.take_in(message, Instant::now()),
                None => return,
            }
        }
    }

    /// The leases that are kept alive.
    pub(super) fn leases(&self) -> Vec<Arc<Hold>> {
        self.schedule.leases().filter_map(Weak::upgrade).collect()
    }

    fn take_in(&mut self, message: Message, now: Instant) {
        match message {
            Message::Release(pending) => self.spawn(pending.settle(self.releases.clone(), None)),
            Message::Keep(hold) => {
                if let Some(kept) = hold.upgrade() {
                    self.plan(&kept, now);
                }
            }
            Message::Forget(id) => drop(self.schedule.remove(id)),
            Message::Tell(watch, token) => self.spawn(async move {
                watch.lost().await;
                drop(token);
            }),
            Message::Renewed(batch, outcomes) => {
                self.schedule
                    .answered(batch, &outcomes, now, fastrand::f64());
            }
        }
        self.overload.look(&self.schedule, now);
    }

    fn plan(&mut self, hold: &Arc<Hold>, now: Instant) {
        let (id, ttl) = (hold.id(), hold.ttl());
        let (due, deadline) = (hold.first_renewal(now), hold.deadline());
        self.schedule
            .insert(id, Arc::downgrade(hold), ttl, due, deadline);
    }

    /// Renews what is due by now.
    fn renew_due(&mut self, now: Instant) {
        let due = self.schedule.take_due(now);
        for hold in due.overdue.iter().filter_map(Weak::upgrade) {
            hold.failed(Error::TimedOut {
                operation: "renew",
                limit: schedule::response_timeout(hold.ttl()),
            });
        }
        for hold in due.expired.iter().filter_map(Weak::upgrade) {
            match hold.wants_renewal() {
                // Its holder has renewed it by hand.
                true => self.plan(&hold, now),
                false => hold.look(),
            }
        }
        for batch in due.batches {
            self.send(batch);
        }
        self.overload.look(&self.schedule, now);
    }

    fn send(&mut self, batch: Batch<Weak<Hold>>) {
        let mut holds = Vec::with_capacity(batch.leases.len());
        let mut outcomes = Vec::new();
        for (id, hold) in batch.leases {
            match hold.upgrade() {
                Some(hold) if hold.wants_renewal() => holds.push(hold),
                over => {
                    over.iter().for_each(|hold| hold.look());
                    outcomes.push((id, Outcome::Lost));
                }
            }
        }
        let mut answered = Answered {
            batch: batch.id,
            outcomes,
            back: self.back.clone(),
        };
        if holds.is_empty() {
            return;
        }
        telemetry::renewals_sent(holds.len(), batch.lag);
        let renewals = calls::Renewals::of(&holds);
        let store = self.store.clone();
        self.spawn(async move {
            let outcomes = renew(&*store, renewals).await;
            answered.outcomes.extend(outcomes);
        });
    }

    /// This task runs, so there is a runtime, unless it is just ending.
    fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        let _ = runtime::spawn(work);
    }
}

/// Tells the task what became of a batch, also if the call ends with its runtime.
struct Answered {
    batch: BatchId,
    outcomes: Vec<(LeaseId, Outcome)>,
    back: WeakUnboundedSender<Message>,
}

impl Drop for Answered {
    fn drop(&mut self) {
        // Without the handle there is no task that could take it in.
        if let Some(back) = self.back.upgrade() {
            let outcomes = std::mem::take(&mut self.outcomes);
            let _ = back.send(Message::Renewed(self.batch, outcomes));
        }
    }
}
