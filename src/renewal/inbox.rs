//! `RenewalInbox`: the work of the renewal task. The handle adds work, and the task carries it out.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{
    runtime::Handle,
    sync::Notify,
    time::{Instant, sleep_until},
};

use super::schedule::{Due, Schedule};
use crate::{
    lease_state::{LeaseNumber, LeaseState},
    runtime::outside::{self, Alarm},
};

/// How late the task may note that leases have come or gone. It only counts them then.
const COUNTED_AFTER: Duration = Duration::from_secs(1);

/// The work of the task.
///
/// A change of the work never waits for I/O or a task, and never panics, so that the drop of a guard can make a change,
/// with or without a runtime. While the mutex is held, no lease is dropped and no code of the application is called
/// that could lock it again.
///
/// On a runtime with several threads only the thread beside the runtimes (`runtime/outside.rs`) wakes the task, when
/// there is something to do.
pub(super) struct RenewalInbox {
    work: Mutex<RenewalWork>,
    changed: Arc<Notify>,
}

pub(super) struct RenewalWork {
    pub(super) schedule: Schedule<Weak<LeaseState>>,
    /// Whether the handle was dropped, so that no more work comes.
    pub(super) handle_dropped: bool,
    /// When the task has to look at the work, whatever the schedule says.
    look_at: Option<Instant>,
    /// Wakes the task. `None` if the task runs on a current-thread runtime.
    alarm: Option<Alarm>,
}

impl RenewalInbox {
    pub(super) fn new() -> Arc<Self> {
        let work = RenewalWork {
            schedule: Schedule::new(),
            handle_dropped: false,
            look_at: None,
            alarm: None,
        };
        Arc::new(Self {
            work: Mutex::new(work),
            changed: Arc::default(),
        })
    }

    /// Reads or takes work, without waking the task.
    pub(super) fn with<T>(&self, access: impl FnOnce(&mut RenewalWork) -> T) -> T {
        access(&mut self.work.lock())
    }

    /// Changes the work, and has the task look at it now.
    pub(super) fn change<T>(&self, change: impl FnOnce(&mut RenewalWork) -> T) -> T {
        self.change_by(Instant::now(), change)
    }

    /// Changes the work, and has the task look at it at this instant, or when something is due before.
    fn change_by<T>(&self, look_at: Instant, change: impl FnOnce(&mut RenewalWork) -> T) -> T {
        let mut work = self.work.lock();
        let changed = change(&mut work);
        work.look_at = Some(work.look_at.map_or(look_at, |known| known.min(look_at)));
        let due = work.alarm.is_some().then(|| work.due()).flatten();
        let alarm = work.alarm.as_mut();
        let is_told = alarm.is_some_and(|alarm| alarm.set_earlier(due));
        drop(work);
        if !is_told {
            self.changed.notify_one();
        }
        changed
    }

    /// Waits until there is something to do. Only the task calls this.
    pub(super) async fn due(&self) {
        let timer = self.with(|work| {
            let due = work.due();
            let is_told = work.alarm.as_mut().is_some_and(|alarm| alarm.set(due));
            due.filter(|_| !is_told)
        });
        match timer {
            Some(due) => tokio::select! {
                () = self.changed.notified() => {}
                () = sleep_until(due) => {}
            },
            None => self.changed.notified().await,
        }
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

    /// From now on the work is carried out by a task on this runtime.
    pub(super) fn begin_on(&self, runtime: &Handle) {
        let alarm = outside::is_used_for(runtime).then(|| Alarm::new(self.changed.clone()));
        self.with(|work| work.alarm = alarm);
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
