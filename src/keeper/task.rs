//! The task that renews, and has the rest done.

use std::sync::{Arc, Weak};

use tokio::{
    sync::mpsc::{UnboundedReceiver, WeakUnboundedSender},
    time::{Instant, sleep_until},
};

use super::{Message, Renewal, renew, spawn};
use crate::{
    Error, Store,
    hold::Hold,
    observe,
    release::Releases,
    schedule::{self, Schedule},
};

/// The task itself. It never waits for a store, so that no lease is held up by another's trouble.
pub(super) struct Keeping {
    pub(super) store: Arc<dyn Store>,
    pub(super) releases: Releases,
    pub(super) schedule: Schedule<Weak<Hold>>,
    pub(super) back: WeakUnboundedSender<Message>,
}

impl Keeping {
    pub(super) async fn run(mut self, mut inbox: UnboundedReceiver<Message>) {
        loop {
            let message = match self.schedule.next() {
                Some(due) => tokio::select! {
                    message = inbox.recv() => message,
                    () = sleep_until(due) => {
                        self.renew_due(due, Instant::now());
                        continue;
                    }
                },
                None => inbox.recv().await,
            };
            match message {
                Some(message) => self.take_in(message, Instant::now()),
                None => return,
            }
        }
    }

    fn take_in(&mut self, message: Message, now: Instant) {
        match message {
            Message::Release(debt) => self.spawn(debt.settle(self.releases.clone(), None)),
            Message::Keep(hold) => {
                if let Some(kept) = hold.upgrade() {
                    let due = kept.first_renewal(now);
                    self.schedule.insert(kept.id(), hold, kept.ttl(), due);
                }
            }
            Message::Forget(id) => self.schedule.remove(id),
            Message::Tell(watch, token) => self.spawn(async move {
                watch.lost().await;
                drop(token);
            }),
            Message::Renewed(sent, renewals) => {
                let chance = fastrand::f64();
                for (id, renewal) in renewals {
                    match renewal {
                        Renewal::Done => self.schedule.renewed(id, sent),
                        Renewal::Failed => self.schedule.failed(id, now, chance),
                        Renewal::Lost => self.schedule.remove(id),
                    }
                }
            }
        }
    }

    /// Renews what is due by now; the first of it was due then.
    fn renew_due(&mut self, planned: Instant, now: Instant) {
        let due = self.schedule.take_due(now);
        for hold in due.overdue.iter().filter_map(|(_, hold)| hold.upgrade()) {
            hold.failed(Error::TimedOut {
                operation: "renew",
                limit: schedule::patience(hold.ttl()),
            });
        }
        for batch in due.batches {
            let mut holds = Vec::with_capacity(batch.len());
            for (id, hold) in batch {
                match hold.upgrade() {
                    Some(hold) if hold.wants_renewal() => holds.push(hold),
                    over => {
                        over.iter().for_each(|hold| hold.look());
                        self.schedule.remove(id);
                    }
                }
            }
            if holds.is_empty() {
                continue;
            }
            let (store, back) = (self.store.clone(), self.back.clone());
            self.spawn(async move {
                let sent = Instant::now();
                observe::renewals_sent(holds.len(), sent.saturating_duration_since(planned));
                let renewals = renew(&*store, &holds, sent).await;
                // Without a keeper nobody keeps them alive any more.
                if let Some(back) = back.upgrade() {
                    let _ = back.send(Message::Renewed(sent, renewals));
                }
            });
        }
    }

    /// This task runs, so there is a runtime, unless it is just ending.
    fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        let _ = spawn(work);
    }
}
