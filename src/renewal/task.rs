//! The task that renews, and has the rest done.

use std::{
    sync::{Arc, Weak},
    thread,
};

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
    runtime::{self, in_flight::InFlight},
    store::Store,
    telemetry,
};

/// A message to the task.
pub(super) enum Message {
    /// Release this in the background.
    Release(PendingRelease),
    /// Keep this lease alive until it is lost or given up.
    Keep(Weak<LeaseState>),
    /// This lease is given up.
    Forget(LeaseNumber),
    /// Cancel the token when this lease is lost or given up.
    Tell(LossWatcher, DropGuard),
    /// The outcomes of the renewals of a batch.
    Renewed(BatchId, Vec<(LeaseNumber, Outcome)>),
}

/// The task: what it has to do with. It never waits for a store, so that no lease is held up by another's trouble.
pub(super) struct RenewalTask {
    pub(super) store: Arc<dyn Store>,
    pub(super) releaser: Releaser,
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
        let mut releases = Vec::new();
        self.filter_inbox(|_, message| match message {
            Message::Release(pending) => {
                releases.push(pending);
                None
            }
            other => Some(other),
        });
        releases
    }

    /// While no runtime is left: cancels the tokens of leases, which no task could cancel later, and gives the leases
    /// that are kept, which no task renews any more.
    pub(super) fn interrupt(&mut self, now: Instant) -> Vec<Arc<LeaseState>> {
        self.filter_inbox(|task, message| match message {
            Message::Keep(lease) => {
                if let Some(kept) = lease.upgrade() {
                    task.plan(&kept, now);
                }
                None
            }
            Message::Tell(..) => None,
            other => Some(other),
        });
        self.schedule.leases().filter_map(Weak::upgrade).collect()
    }

    /// Has a look at each message in the inbox. The messages that the look gives back stay there.
    fn filter_inbox(&mut self, mut look: impl FnMut(&mut Self, Message) -> Option<Message>) {
        let mut left = Vec::new();
        while let Ok(message) = self.inbox.try_recv() {
            left.extend(look(self, message));
        }
        if let Some(back) = self.back.upgrade() {
            // The other end is this task.
            left.into_iter().for_each(|it| drop(back.send(it)));
        }
    }

    fn handle(&mut self, message: Message, now: Instant) {
        match message {
            Message::Release(pending) => {
                let release = BackgroundRelease {
                    pending: Some(pending),
                    back: self.back.clone(),
                };
                self.spawn(release.run(self.releaser.clone()));
            }
            Message::Keep(lease) => {
                if let Some(kept) = lease.upgrade() {
                    self.plan(&kept, now);
                }
            }
            Message::Forget(number) => drop(self.schedule.remove(number)),
            Message::Tell(watcher, token) => self.spawn(async move {
                watcher.lost().await;
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
        let (number, ttl) = (lease.number(), lease.ttl());
        let (due, deadline) = (lease.first_renewal(now), lease.deadline());
        self.schedule
            .insert(number, Arc::downgrade(lease), ttl, due, deadline);
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
                // The holder has renewed the lease by hand.
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
        for (number, lease) in batch.leases {
            match lease.upgrade() {
                Some(lease) if lease.wants_renewal() => leases.push(lease),
                over => {
                    over.iter().for_each(|lease| lease.check_loss());
                    outcomes.push((number, Outcome::Lost));
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

    /// Spawns on the runtime of this task, which may just be ending.
    fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        let _ = runtime::spawn(work);
    }
}

/// A release that nobody waits for. One that goes down with its runtime comes back to the task, which may have
/// another runtime by then.
struct BackgroundRelease {
    /// `None` when it is done.
    pending: Option<PendingRelease>,
    back: WeakUnboundedSender<Message>,
}

impl BackgroundRelease {
    async fn run(mut self, releaser: Releaser) {
        let mut calls = InFlight::new();
        if let Some(pending) = &self.pending {
            pending.release(&releaser, None, &mut calls).await;
        }
        self.pending = None;
        calls.finish().await;
    }
}

impl Drop for BackgroundRelease {
    fn drop(&mut self) {
        // A release that panics would do so again.
        if let Some(pending) = self.pending.take()
            && let Some(back) = self.back.upgrade()
            && !thread::panicking()
        {
            let _ = back.send(Message::Release(pending));
        }
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
