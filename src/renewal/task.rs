//! `RenewalTask`: renews leases, those of a batch in one call.

use std::{
    mem,
    sync::{Arc, Weak},
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{
    sync::watch,
    time::{Instant, timeout},
};

use super::{
    overload::Overload,
    schedule::{Batch, BatchId, Due, RenewalOutcome, Schedule},
};
use crate::{
    lease_state::{LeaseNumber, LeaseState, timing},
    messages::{RenewRequest, renewal_left_out},
    model::Error,
    random,
    runtime::{
        self,
        lifecycle::Lifecycle,
        suspension::SentAt,
        timers::{Look, Timers},
    },
    store::Store,
    telemetry,
};

/// How late the task may note that leases have come or gone. It only counts them then.
const COUNTED_AFTER: Duration = Duration::from_secs(1);

/// The renewals of a client, and the task that sends them. The task ends when the client drops this. It never waits for
/// an answer of the store, so a request that hangs does not delay other leases.
///
/// A change of the work never waits for I/O or a task, and never panics, so that the drop of a guard can make a change,
/// with or without a runtime. While the mutex is held, no lease is dropped and no code of the application is called
/// that could lock it again.
pub(crate) struct RenewalTask {
    store: Arc<dyn Store>,
    work: Mutex<RenewalWork>,
    timers: Timers,
    /// Whether renewals are late.
    late: watch::Sender<bool>,
}

struct RenewalWork {
    schedule: Schedule<Weak<LeaseState>>,
    overload: Overload,
    /// When the task has to look at the work, whatever the schedule says.
    look_at: Option<Instant>,
}

impl RenewalTask {
    pub(crate) fn new(store: Arc<dyn Store>) -> Arc<Self> {
        let work = RenewalWork {
            schedule: Schedule::new(),
            overload: Overload::default(),
            look_at: None,
        };
        Arc::new(Self {
            store,
            work: Mutex::new(work),
            timers: Timers::default(),
            late: watch::Sender::new(false),
        })
    }

    /// Whether renewals are late.
    pub(crate) fn late(&self) -> watch::Receiver<bool> {
        self.late.subscribe()
    }

    /// Starts the task on the runtime of the client, unless it was started before.
    pub(crate) fn ensure_running(self: &Arc<Self>, lifecycle: &Lifecycle) {
        let task = Arc::downgrade(self);
        let look = move || task.upgrade().map(|task| task.look());
        self.timers.ensure_running(lifecycle, look);
    }

    /// Waits while renewals are late, for `limit` at most. Returns whether they were late at all.
    pub(crate) async fn wait_while_late(&self, limit: Duration) -> bool {
        let mut late = self.late();
        if !*late.borrow_and_update() {
            return false;
        }
        // This fails if the limit has passed.
        let _ = timeout(limit, late.wait_for(|late| !late)).await;
        true
    }

    /// Keeps a lease alive until it is lost or given up.
    pub(crate) fn keep(&self, lease: &Arc<LeaseState>) {
        lease.keep(true);
        let now = Instant::now();
        self.change(now + COUNTED_AFTER, |work| work.plan(lease, now));
    }

    /// Ends the renewals of a lease, because it is given up.
    pub(crate) fn forget(&self, lease: LeaseNumber) {
        let look_at = Instant::now() + COUNTED_AFTER;
        self.change(look_at, |work| drop(work.schedule.remove(lease)));
    }

    /// Applies the outcomes of a batch.
    fn answered(&self, batch: BatchId, outcomes: &[(LeaseNumber, RenewalOutcome)]) {
        let (now, chance) = (Instant::now(), random::fraction());
        self.change(now, |work| {
            work.schedule.answered(batch, outcomes, now, chance);
        });
    }

    /// Changes the work, and has the task look at it at this instant, or when something is due before.
    fn change(&self, look_at: Instant, change: impl FnOnce(&mut RenewalWork)) {
        let mut work = self.work.lock();
        change(&mut work);
        work.look_at = Some(work.look_at.map_or(look_at, |known| known.min(look_at)));
        work.due().into_iter().for_each(|at| self.timers.arm(at));
    }

    /// Does what is due now, and says when the next look is due. If a subscriber of the application panics in an event,
    /// what was due was sent before.
    fn look(self: &Arc<Self>) -> Look {
        let now = Instant::now();
        let due = {
            let work = &mut *self.work.lock();
            work.look_at = None;
            work.schedule.take_due(now)
        };
        self.renew(due, now);
        let report = {
            let work = &mut *self.work.lock();
            work.overload.update(&work.schedule, now)
        };
        report(&self.late);
        let work = self.work.lock();
        self.timers.plan(work.due())
    }

    /// Does what is due. A subscriber that panics in the event of one lease keeps no other from it.
    fn renew(self: &Arc<Self>, due: Vec<Due<Weak<LeaseState>>>, now: Instant) {
        let mut is_reported = false;
        telemetry::for_each(due, |due| match due {
            Due::Overdue(lease) => {
                let Some(lease) = lease.upgrade() else {
                    return;
                };
                let limit = timing::response_timeout(lease.ttl());
                let error = runtime::timed_out(self.store.name(), "renew", limit);
                lease.failed(error.clone());
                if !mem::replace(&mut is_reported, true) {
                    telemetry::store_failed("renew", None, &error);
                }
            }
            Due::Expired(lease) => match lease.upgrade() {
                // The lease is still live, so the holder has renewed it by a call of its own, which the schedule does
                // not know.
                Some(lease) if lease.is_kept_alive() => self.work.lock().plan(&lease, now),
                Some(lease) => lease.check_loss(),
                None => {}
            },
            Due::Send(batch) => self.send(batch),
        });
    }

    /// Sends a batch, without the leases that need no renewal.
    fn send(self: &Arc<Self>, batch: Batch<Weak<LeaseState>>) {
        let (mut requests, mut leases, mut over) = (Vec::new(), Leases::new(), Vec::new());
        let mut outcomes = Vec::new();
        for (number, of) in batch.leases {
            match of.upgrade() {
                // The holder has renewed the lease by a call of its own, and it is live until its maximum hold is over.
                Some(lease) if lease.is_kept_alive() && lease.reaches_end() => {
                    outcomes.push((number, RenewalOutcome::Final(lease.deadline())));
                }
                Some(lease) if lease.is_kept_alive() => {
                    requests.push(lease.begin_renewal());
                    leases.push((number, of));
                }
                lost => {
                    over.extend(lost);
                    outcomes.push((number, RenewalOutcome::Lost));
                }
            }
        }
        let report = BatchReport {
            batch: batch.id,
            outcomes,
            task: Arc::downgrade(self),
        };
        if requests.is_empty() {
            drop(report);
        } else {
            let sent = requests.len();
            // A runtime that is ending drops the work.
            let _ = runtime::spawn(renew(self.store.clone(), requests, leases, report));
            telemetry::renewals_sent(sent, batch.lag);
        }
        over.iter().for_each(|lease| lease.check_loss());
    }
}

impl RenewalWork {
    /// When the task has to look at the work next. `None` if it has nothing to do.
    fn due(&self) -> Option<Instant> {
        let scheduled = self.schedule.next(Instant::now());
        scheduled.into_iter().chain(self.look_at).min()
    }

    /// Plans the renewals of a lease.
    fn plan(&mut self, lease: &Arc<LeaseState>, now: Instant) {
        let (number, ttl) = (lease.number(), lease.ttl());
        let (due, deadline) = (lease.next_renewal(now), lease.deadline());
        self.schedule
            .insert(number, Arc::downgrade(lease), ttl, due, deadline);
    }
}

impl Drop for RenewalTask {
    fn drop(&mut self) {
        // Nobody looks any more, and the client has gone.
        self.timers.end();
    }
}

/// The leases of a batch. They are not kept in memory, because a guard may be dropped before the store has answered.
type Leases = Vec<(LeaseNumber, Weak<LeaseState>)>;

/// The outcomes of a batch. Its drop passes them to the schedule, also if the call is dropped with its runtime.
struct BatchReport {
    batch: BatchId,
    outcomes: Vec<(LeaseNumber, RenewalOutcome)>,
    task: Weak<RenewalTask>,
}

impl Drop for BatchReport {
    fn drop(&mut self) {
        if let Some(task) = self.task.upgrade() {
            task.answered(self.batch, &self.outcomes);
        }
    }
}

/// Renews the leases in one call, and applies each answer to its lease. A lease that was dropped meanwhile counts as
/// lost. A subscriber that panics in the event of one lease loses the outcome of no other.
async fn renew(
    store: Arc<dyn Store>,
    requests: Vec<RenewRequest>,
    leases: Leases,
    mut report: BatchReport,
) {
    let sent = SentAt::now();
    let answers = runtime::caught(store.renew(&requests)).await;
    let answers = answers.unwrap_or_else(|error| vec![Err(error); requests.len()]);
    let failed = answers.iter().find_map(|answer| answer.as_ref().err());
    let failed = failed.cloned();
    let mut answers = answers.into_iter();
    telemetry::for_each(leases, |(number, lease)| {
        let answer = answers.next().unwrap_or_else(|| Err(renewal_left_out()));
        let renewed = lease
            .upgrade()
            .map(|it| (it.apply_renewal(sent, answer), it));
        let outcome = match renewed {
            Some((Ok(()), lease)) if lease.reaches_end() => RenewalOutcome::Final(lease.deadline()),
            Some((Ok(()), lease)) => RenewalOutcome::Renewed(lease.deadline()),
            Some((Err(Error::Lost { .. }), _)) | None => RenewalOutcome::Lost,
            // A renewal without an outcome counts as failed.
            Some((Err(_), _)) => return,
        };
        report.outcomes.push((number, outcome));
    });
    // A call counts once, however many of its renewals have failed.
    if let Some(error) = failed {
        telemetry::store_failed("renew", None, &error);
    }
}
