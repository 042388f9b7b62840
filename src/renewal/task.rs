//! The task that renews, and has the rest done.

use std::sync::{Arc, Weak};

use tokio::{
    sync::mpsc::{UnboundedReceiver, WeakUnboundedSender},
    time::{Instant, sleep_until},
};
use tokio_util::sync::DropGuard;

use super::{
    overload::Overload,
    requests::{self, renew},
    schedule::{Batch, BatchId, Outcome, Schedule},
};
use crate::{
    lease_state::{LeaseNumber, LeaseState, LossWatcher, timing},
    model::Error,
    release::{PendingRelease, Releaser},
    runtime,
    store::Store,
    telemetry,
};

/// What the task is told.
pub(super) enum Message {
    /// Release this in the background.
    Release(PendingRelease),
    /// Keep this lease alive until it is lost or given up.
    Keep(Weak<LeaseState>),
    /// This lease is given up.
    Forget(LeaseNumber),
    /// Cancel the token when this lease is lost or given up.
    Tell(LossWatcher, DropGuard),
    /// This is what became of the renewals of a batch.
    Renewed(BatchId, Vec<(LeaseNumber, Outcome)>),
}

/// The task: what it has to do with. It never waits for a store, so that no lease is held up by another's trouble.
pub(super) struct RenewalTask {
    pub(super) store: Arc<dyn Store>,
    pub(super) releases: Releaser,
    pub(super) schedule: Schedule<Weak<LeaseState>>,
    pub(super) inbox: UnboundedReceiver<Message>,
    pub(super) back: WeakUnboundedSender<Message>,
    pub(super) overload: Overload,
}

impl RenewalTask {
    /// Renews, until the handle is gone.
    pub(super) async fn run(&mut self) {
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
                Some(message) => self.handle(message, Instant::now()),
                None => return,
            }
        }
    }

    /// Takes out the releases that wait to be done.
    pub(super) fn take_releases(&mut self) -> Vec<PendingRelease> {
        let (mut releases, mut others) = (Vec::new(), Vec::new());
        while let Ok(message) = self.inbox.try_recv() {
            match message {
                Message::Release(pending) => releases.push(pending),
                other => others.push(other),
            }
        }
        if let Some(back) = self.back.upgrade() {
            // The other end is this task.
            others.into_iter().for_each(|it| drop(back.send(it)));
        }
        releases
    }

    /// The leases that are kept alive.
    pub(super) fn leases(&self) -> Vec<Arc<LeaseState>> {
        self.schedule.leases().filter_map(Weak::upgrade).collect()
    }

    fn handle(&mut self, message: Message, now: Instant) {
        match message {
            Message::Release(pending) => self.spawn(pending.settle(self.releases.clone(), None)),
            Message::Keep(lease) => {
                if let Some(kept) = lease.upgrade() {
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

    fn plan(&mut self, lease: &Arc<LeaseState>, now: Instant) {
        let (id, ttl) = (lease.number(), lease.ttl());
        let (due, deadline) = (lease.first_renewal(now), lease.deadline());
        self.schedule
            .insert(id, Arc::downgrade(lease), ttl, due, deadline);
    }

    /// Renews what is due by now.
    fn renew_due(&mut self, now: Instant) {
        let due = self.schedule.take_due(now);
        for lease in due.overdue.iter().filter_map(Weak::upgrade) {
            lease.failed(Error::TimedOut {
                operation: "renew",
                limit: timing::response_timeout(lease.ttl()),
            });
        }
        for lease in due.expired.iter().filter_map(Weak::upgrade) {
            match lease.wants_renewal() {
                // Its holder has renewed it by hand.
                true => self.plan(&lease, now),
                false => lease.check_loss(),
            }
        }
        for batch in due.batches {
            self.send(batch);
        }
        self.overload.look(&self.schedule, now);
    }

    fn send(&mut self, batch: Batch<Weak<LeaseState>>) {
        let mut leases = Vec::with_capacity(batch.leases.len());
        let mut outcomes = Vec::new();
        for (id, lease) in batch.leases {
            match lease.upgrade() {
                Some(lease) if lease.wants_renewal() => leases.push(lease),
                over => {
                    over.iter().for_each(|lease| lease.check_loss());
                    outcomes.push((id, Outcome::Lost));
                }
            }
        }
        let mut answered = Answered {
            batch: batch.id,
            outcomes,
            back: self.back.clone(),
        };
        if leases.is_empty() {
            return;
        }
        telemetry::renewals_sent(leases.len(), batch.lag);
        let renewals = requests::Renewals::of(&leases);
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
    outcomes: Vec<(LeaseNumber, Outcome)>,
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
