//! What goes on behind the caller's back: the tasks of store calls, renewals, and releases that
//! nobody waits for.

mod calls;
mod closing;
mod overload;
mod runtimes;
mod task;

use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, Weak},
    time::Duration,
};

use futures::future::BoxFuture;
use parking_lot::Mutex;
use tokio::{
    runtime::Handle,
    sync::{
        mpsc::{UnboundedSender, unbounded_channel},
        oneshot, watch,
    },
    time::{Instant, timeout},
};
use tokio_util::{
    sync::{CancellationToken, DropGuard},
    task::{TaskTracker, task_tracker::TaskTrackerToken},
};

pub(crate) use self::calls::{convert, only, renew_now};
use self::{overload::Overload, runtimes::Runtimes, task::Kept};
use crate::{
    coalescer::Coalescer,
    hold::{End, Hold, Watch},
    model::{Error, LeaseId, LossReason},
    release::{Released, Releases, Report},
    runtime::{
        self,
        in_flight::Calls,
        inline_task::{InlineTask, InlineTasks},
    },
    schedule::{BatchId, Outcome, Schedule},
    store::Store,
    telemetry,
    waiters::WaitQueues,
};

enum Message {
    /// Release this in the background.
    Release(Debt),
    /// Keep this lease alive until it is lost or given up.
    Keep(Weak<Hold>),
    /// This lease is given up.
    Forget(LeaseId),
    /// Cancel the token when this lease is lost or given up.
    Tell(Watch, DropGuard),
    /// This is what became of the renewals of a batch.
    Renewed(BatchId, Vec<(LeaseId, Outcome)>),
}

/// A release that is due, and counts as work until it is done or given up.
pub(crate) struct Debt {
    hold: Arc<Hold>,
    queues: Arc<WaitQueues>,
    _at_work: TaskTrackerToken,
}

impl Debt {
    async fn settle(self, releases: Releases, report: Option<Report>) {
        let mut calls = Calls::new();
        let unused = self.hold.unused();
        releases.settle(&unused, report, &mut calls).await;
        drop(self);
        calls.finish().await;
    }
}

impl Drop for Debt {
    fn drop(&mut self) {
        // Settled, or gone down with its runtime.
        self.hold.is_over();
        self.queues.ends(self.hold.id());
    }
}

/// The inbox of the task that renews, and releases in the background; and who is still at work.
///
/// Sending never blocks, spawns or panics, so that guards can do it as they drop, with or without
/// a runtime. The task starts with the first acquire and ends when the last [`Keeper`] is gone. When its
/// runtime shuts down it goes on on another one that acquires came from.
#[derive(Debug)]
pub(crate) struct Keeper {
    store: Arc<dyn Store>,
    releases: Releases,
    queues: Arc<WaitQueues>,
    inbox: UnboundedSender<Message>,
    runtimes: Arc<Runtimes>,
    /// Whether renewals are late.
    late: watch::Receiver<bool>,
    /// The leases of this process, for [`Keeper::close`].
    held: Mutex<HashMap<LeaseId, Weak<Hold>>>,
    closing: CancellationToken,
    at_work: TaskTracker,
    /// What callers do themselves.
    works: Arc<InlineTasks>,
}

impl fmt::Debug for Runtimes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Runtimes").finish_non_exhaustive()
    }
}

impl Keeper {
    pub(crate) fn new(
        store: Arc<dyn Store>,
        coalescer: Arc<Coalescer>,
        call_timeout: Duration,
        queues: Arc<WaitQueues>,
        late: Arc<watch::Sender<bool>>,
    ) -> Self {
        let releases = Releases::new(coalescer, call_timeout, queues.clone());
        let (inbox, messages) = unbounded_channel();
        let is_late = late.subscribe();
        let kept = Kept {
            store: store.clone(),
            releases: releases.clone(),
            schedule: Schedule::new(),
            inbox: messages,
            back: inbox.downgrade(),
            overload: Overload::new(late),
        };
        Self {
            releases,
            store,
            queues,
            inbox,
            runtimes: Runtimes::new(kept),
            late: is_late,
            held: Mutex::default(),
            closing: CancellationToken::new(),
            at_work: TaskTracker::new(),
            works: Arc::default(),
        }
    }

    /// Starts the task unless it runs, and has it know this runtime. Each acquire does so.
    pub(crate) fn ensure_running(&self) -> Result<(), Error> {
        let runtime = Handle::try_current().map_err(|_| Error::NoRuntime)?;
        self.runtimes.ensure_running(runtime);
        Ok(())
    }

    /// Waits until renewals are in time, or for so long, and says whether there was anything to wait for.
    pub(crate) async fn renewals_in_time(&self, limit: Duration) -> bool {
        let mut late = self.late.clone();
        if !*late.borrow_and_update() {
            return false;
        }
        // The other end is gone only when the handle is.
        let _ = timeout(limit, late.wait_for(|late| !late)).await;
        true
    }

    pub(crate) fn closing(&self) -> &CancellationToken {
        &self.closing
    }

    pub(crate) fn releases(&self) -> &Releases {
        &self.releases
    }

    /// Counts somebody among those that [`Keeper::close`] waits for.
    pub(crate) fn at_work(&self) -> TaskTrackerToken {
        self.at_work.token()
    }

    /// Does this work from now on, or has it done, and waits for its outcome.
    pub(crate) async fn wait_for<T>(
        &self,
        work: Arc<InlineTask>,
        now: Instant,
        rest: BoxFuture<'static, ()>,
        outcome: oneshot::Receiver<T>,
    ) -> Option<T> {
        let _entry = self.works.enter(&work, now);
        // A close that came before the entry has not seen it.
        if self.closing.is_cancelled() {
            work.leave();
        }
        work.wait(rest, outcome).await
    }

    /// Takes in a lease that was granted.
    pub(crate) fn granted(&self, hold: &Arc<Hold>) {
        self.queues.begins(hold.id());
        self.held.lock().insert(hold.id(), Arc::downgrade(hold));
        telemetry::granted();
    }

    /// Keeps a lease alive from now on.
    pub(crate) fn keep(&self, hold: &Arc<Hold>) -> Result<(), Error> {
        // It may have been waited for longer than the task has lived.
        self.ensure_running()?;
        hold.keep(true);
        self.send(Message::Keep(Arc::downgrade(hold)));
        Ok(())
    }

    /// A guard is dropped: its lease is released in the background.
    pub(crate) fn abandon(&self, hold: &Arc<Hold>) {
        if let Some(debt) = self.end(hold, Instant::now()) {
            self.send(Message::Release(debt));
        }
    }

    /// A lease is given up, and left to its ttl.
    pub(crate) fn detach(&self, hold: &Hold) {
        self.forget(hold);
        self.queues.ends(hold.id());
        hold.end(End::Detached, Instant::now());
    }

    /// A lease is given up. Its release is due, unless somebody else was the first to give it up.
    pub(crate) fn end(&self, hold: &Arc<Hold>, now: Instant) -> Option<Debt> {
        // Counted before it is given up, so that a close that does not find it waits for it.
        let at_work = self.at_work();
        self.forget(hold);
        hold.end(End::Released, now).then(|| Debt {
            hold: hold.clone(),
            queues: self.queues.clone(),
            _at_work: at_work,
        })
    }

    fn forget(&self, hold: &Hold) {
        self.held.lock().remove(&hold.id());
        if hold.is_kept() {
            self.send(Message::Forget(hold.id()));
        }
    }

    /// Releases a lease now and waits for the outcome. Dropping this does not stop the release.
    pub(crate) async fn release(&self, debt: Debt, now: Instant) -> Result<Released, Error> {
        let (report, outcome) = oneshot::channel();
        let Ok(work) = InlineTask::new() else {
            self.send(Message::Release(debt));
            return Err(Error::NoRuntime);
        };
        let hold = debt.hold.clone();
        let settled = Box::pin(debt.settle(self.releases.clone(), Some(report)));
        if let Some(outcome) = self.wait_for(work, now, settled, outcome).await {
            return outcome;
        }
        // The task went down with its runtime. Another one may have the keeper.
        self.send(Message::Release(Debt {
            hold,
            queues: self.queues.clone(),
            _at_work: self.at_work(),
        }));
        Err(runtime::ended())
    }

    /// Cancels the token when the lease is lost or given up, and at once if no runtime is there to see
    /// that.
    pub(crate) fn tell(&self, hold: &Hold, token: DropGuard) {
        let watch = hold.watch();
        match Handle::try_current() {
            Ok(here) => drop(here.spawn(async move {
                watch.lost().await;
                drop(token);
            })),
            Err(_) if self.runtimes.have_ended() => {}
            Err(_) => self.send(Message::Tell(watch, token)),
        }
    }

    /// Releases every lease, lets nothing be acquired any more, and waits for what is under way.
    pub(crate) async fn close(&self) {
        self.closing.cancel();
        // The one that ran may have ended with its runtime, and left work.
        let _ = self.ensure_running();
        let held: Vec<_> = self.held.lock().drain().collect();
        let mut debts = Vec::new();
        for hold in held.iter().filter_map(|(_, hold)| hold.upgrade()) {
            hold.lose(LossReason::Closed);
            debts.extend(self.end(&hold, Instant::now()));
        }
        // Here and not in the keeper, whose runtime may stand still.
        match Handle::try_current() {
            Ok(here) => {
                let (store, releases) = (self.store.clone(), self.releases.clone());
                drop(here.spawn(closing::release_all(store, releases, debts)));
            }
            Err(_) => debts
                .into_iter()
                .for_each(|debt| self.send(Message::Release(debt))),
        }
        self.works.leave();
        self.at_work.close();
        self.at_work.wait().await;
    }

    fn send(&self, message: Message) {
        // The other end is there as long as this one.
        let _ = self.inbox.send(message);
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        // Nobody can wait any more.
        self.closing.cancel();
    }
}
