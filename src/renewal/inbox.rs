//! `RenewalInbox`: the work of the renewal task. The handle adds work, and the task carries it out.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use parking_lot::Mutex;
use tokio::time::Instant;

use super::schedule::{BatchId, Due, RenewalOutcome, Schedule};
use crate::{
    lease_state::{LeaseNumber, LeaseState},
    random,
    runtime::timers::{Look, Timers},
};

/// How late the task may note that leases have come or gone. It only counts them then.
const COUNTED_AFTER: Duration = Duration::from_secs(1);

/// The work of the task.
///
/// A change of the work never waits for I/O or a task, and never panics, so that the drop of a guard can make a change,
/// with or without a runtime. While the mutex is held, no lease is dropped and no code of the application is called
/// that could lock it again.
pub(super) struct RenewalInbox {
    work: Mutex<RenewalWork>,
    pub(super) timers: Timers,
}

pub(super) struct RenewalWork {
    pub(super) schedule: Schedule<Weak<LeaseState>>,
    /// When the task has to look at the work, whatever the schedule says.
    look_at: Option<Instant>,
}

impl RenewalInbox {
    pub(super) fn new() -> Arc<Self> {
        let work = RenewalWork {
            schedule: Schedule::new(),
            look_at: None,
        };
        Arc::new(Self {
            work: Mutex::new(work),
            timers: Timers::default(),
        })
    }

    /// Reads or takes work, without waking the task.
    pub(super) fn with<T>(&self, access: impl FnOnce(&mut RenewalWork) -> T) -> T {
        access(&mut self.work.lock())
    }

    /// Changes the work, and has the task look at it at this instant, or when something is due before.
    fn change_by(&self, look_at: Instant, change: impl FnOnce(&mut RenewalWork)) {
        let mut work = self.work.lock();
        change(&mut work);
        work.look_at = Some(work.look_at.map_or(look_at, |known| known.min(look_at)));
        work.due().into_iter().for_each(|at| self.timers.arm(at));
    }

    /// Plans the next look of the task.
    pub(super) fn plan(&self) -> Look {
        let work = self.work.lock();
        self.timers.plan(work.due())
    }

    /// Applies the outcomes of a batch.
    pub(super) fn answered(&self, batch: BatchId, outcomes: &[(LeaseNumber, RenewalOutcome)]) {
        let (now, chance) = (Instant::now(), random::fraction());
        self.change_by(now, |work| {
            work.schedule.answered(batch, outcomes, now, chance);
        });
    }

    /// Keeps a lease alive until it is lost or given up.
    pub(super) fn keep(&self, lease: &Arc<LeaseState>, now: Instant) {
        self.change_by(now + COUNTED_AFTER, |work| work.plan(lease, now));
    }

    /// Ends the renewals of a lease, because it is given up.
    pub(super) fn forget(&self, lease: LeaseNumber) {
        let look_at = Instant::now() + COUNTED_AFTER;
        self.change_by(look_at, |work| drop(work.schedule.remove(lease)));
    }
}

impl RenewalWork {
    /// Takes the renewals that are due now.
    pub(super) fn take_due(&mut self, now: Instant) -> Due<Weak<LeaseState>> {
        self.look_at = None;
        self.schedule.take_due(now)
    }

    /// When the task has to look at the work next. `None` if it has nothing to do.
    fn due(&self) -> Option<Instant> {
        let scheduled = self.schedule.next(Instant::now());
        scheduled.into_iter().chain(self.look_at).min()
    }

    /// Plans the renewals of a lease.
    pub(super) fn plan(&mut self, lease: &Arc<LeaseState>, now: Instant) {
        let (number, ttl) = (lease.number(), lease.ttl());
        let (due, deadline) = (lease.next_renewal(now), lease.deadline());
        self.schedule
            .insert(number, Arc::downgrade(lease), ttl, due, deadline);
    }
}
