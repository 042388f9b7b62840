//! `RenewalTask`: renews leases, and spawns the background releases and the watchers of cancellation tokens.

use std::{
    mem,
    sync::{Arc, Weak},
};

use tokio::{task::coop::consume_budget, time::Instant};

use super::{
    inbox::{RenewalInbox, Todo},
    overload::Overload,
    release::OngoingRelease,
    requests::{self, renew},
    schedule::{Batch, BatchId, Due, RenewalOutcome},
};
use crate::{
    lease_state::{LeaseNumber, LeaseState, timing},
    model::Error,
    random,
    release::Releaser,
    runtime,
    store::Store,
    telemetry,
};

/// The task. It never waits for an answer of the store, so a request that hangs does not delay other leases.
pub(super) struct RenewalTask {
    pub(super) store: Arc<dyn Store>,
    pub(super) releaser: Releaser,
    pub(super) inbox: Arc<RenewalInbox>,
    pub(super) overload: Overload,
}

impl RenewalTask {
    /// Renews leases until the handle is dropped.
    pub(super) async fn run(&mut self) {
        while self.carry_out(Instant::now()) {
            // A runtime that is ending drops a spawned release at once, and the drop returns the release to this task.
            // Without a point at which the runtime can stop the task, the task would spawn the release again for ever.
            consume_budget().await;
            self.inbox.due().await;
        }
    }

    /// Called when no runtime is left. Cancels the tokens that wait for a watcher, because no task could cancel them
    /// later. Returns the leases that are kept alive, because no task renews them any more.
    pub(super) fn interrupt(&self) -> Vec<Arc<LeaseState>> {
        let (tokens, leases) = self.inbox.with(|work| {
            let leases = work.schedule.leases().filter_map(Weak::upgrade);
            (mem::take(&mut work.todo.tokens), leases.collect())
        });
        drop(tokens);
        leases
    }

    /// Carries out the work that is due now. Returns whether more work may come.
    fn carry_out(&mut self, now: Instant) -> bool {
        let (todo, due, handle_dropped) = self.inbox.with(|work| {
            let due = work.schedule.take_due(now);
            (work.take_todo(), due, work.handle_dropped)
        });
        let Todo { releases, tokens } = todo;
        for pending in releases {
            let release = OngoingRelease::new(pending, self.inbox.clone());
            self.spawn(release.run(self.releaser.clone(), None));
        }
        for (watcher, token) in tokens {
            self.spawn(async move {
                watcher.lost().await;
                drop(token);
            });
        }
        self.renew(due, now);
        let findings = self
            .inbox
            .with(|work| self.overload.update(&work.schedule, now));
        findings.report();
        !handle_dropped
    }

    fn renew(&self, due: Due<Weak<LeaseState>>, now: Instant) {
        let mut overdue = None;
        for lease in due.overdue.iter().filter_map(Weak::upgrade) {
            let error = Error::TimedOut {
                store: self.store.name(),
                operation: "renew",
                limit: timing::response_timeout(lease.ttl()),
            };
            lease.failed(error.clone());
            overdue.get_or_insert(error);
        }
        if let Some(error) = overdue {
            telemetry::store_failed("renew", None, &error);
        }
        for lease in due.expired.iter().filter_map(Weak::upgrade) {
            // If the lease is still live, the holder has renewed it by a call of its own, which the schedule does not
            // know.
            if lease.is_kept_alive() {
                self.inbox.with(|work| work.plan(&lease, now));
            } else {
                lease.check_loss();
            }
        }
        for batch in due.batches {
            self.send(batch);
        }
    }

    fn send(&self, batch: Batch<Weak<LeaseState>>) {
        let mut leases = Vec::with_capacity(batch.leases.len());
        let mut outcomes = Vec::new();
        for (number, lease) in batch.leases {
            match lease.upgrade() {
                // The holder has renewed the lease by a call of its own, and it is live until its maximum hold is over.
                Some(lease) if lease.is_kept_alive() && lease.reaches_end() => {
                    outcomes.push((number, RenewalOutcome::Final(lease.deadline())));
                }
                Some(lease) if lease.is_kept_alive() => leases.push(lease),
                over => {
                    over.iter().for_each(|lease| lease.check_loss());
                    outcomes.push((number, RenewalOutcome::Lost));
                }
            }
        }
        let mut answered = BatchReport {
            batch: batch.id,
            outcomes,
            inbox: self.inbox.clone(),
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

    /// Spawns work on the runtime of this task. A runtime that is ending drops the work.
    fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        let _ = runtime::spawn(work);
    }
}

/// Passes the outcomes of a batch to the schedule when it is dropped, also if the call is dropped with its runtime.
struct BatchReport {
    batch: BatchId,
    outcomes: Vec<(LeaseNumber, RenewalOutcome)>,
    inbox: Arc<RenewalInbox>,
}

impl Drop for BatchReport {
    fn drop(&mut self) {
        let (now, chance) = (Instant::now(), random::fraction());
        let Self {
            batch,
            outcomes,
            inbox,
        } = self;
        inbox.change(|work| work.schedule.answered(*batch, outcomes, now, chance));
    }
}
