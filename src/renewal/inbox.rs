//! `RenewalInbox`: the work of the renewal task. The handle adds work, and the task carries it out.

use std::{
    fmt, mem,
    sync::{Arc, Weak},
};

use futures::future::BoxFuture;
use parking_lot::Mutex;
use tokio::{sync::Notify, time::Instant};
use tokio_util::sync::DropGuard;

use super::schedule::Schedule;
use crate::{
    lease_state::{LeaseNumber, LeaseState, LossWatcher},
    release::PendingRelease,
};

/// The work of the task. It outlives the runtimes that the task runs on.
///
/// A change of the work never waits for I/O or a task, never spawns and never panics, so that the drop of a guard can
/// make a change, with or without a runtime. While the mutex is held, no lease is dropped and no code of the
/// application is called that could lock it again.
pub(super) struct RenewalInbox {
    work: Mutex<RenewalWork>,
    changed: Notify,
}

pub(super) struct RenewalWork {
    pub(super) schedule: Schedule<Weak<LeaseState>>,
    pub(super) todo: Todo,
    /// Whether releases are dropped instead of carried out, because the client closes and no runtime is left.
    drops_releases: bool,
    /// Whether the handle was dropped, so that no more work comes.
    pub(super) handle_dropped: bool,
}

/// The work that the task carries out as soon as it can.
#[derive(Default)]
pub(super) struct Todo {
    /// The leases to release in the background.
    pub(super) releases: Vec<PendingRelease>,
    /// The tokens to cancel when their leases are lost or given up.
    pub(super) tokens: Vec<(LossWatcher, DropGuard)>,
    /// Other work that goes on for as long as leases are renewed.
    pub(super) beside: Vec<BoxFuture<'static, ()>>,
}

impl RenewalInbox {
    pub(super) fn new() -> Arc<Self> {
        let work = RenewalWork {
            schedule: Schedule::new(),
            todo: Todo::default(),
            drops_releases: false,
            handle_dropped: false,
        };
        Arc::new(Self {
            work: Mutex::new(work),
            changed: Notify::new(),
        })
    }

    /// Reads or takes work, without waking the task.
    pub(super) fn with<T>(&self, access: impl FnOnce(&mut RenewalWork) -> T) -> T {
        access(&mut self.work.lock())
    }

    /// Changes the work, and wakes the task.
    pub(super) fn change<T>(&self, change: impl FnOnce(&mut RenewalWork) -> T) -> T {
        let changed = self.with(change);
        self.changed.notify_one();
        changed
    }

    /// Waits for a change. If there was one since the last wait, this returns at once. Only the task calls this.
    pub(super) async fn changed(&self) {
        self.changed.notified().await;
    }

    /// Keeps a lease alive until it is lost or given up.
    pub(super) fn keep(&self, lease: &Arc<LeaseState>, now: Instant) {
        self.change(|work| work.plan(lease, now));
    }

    /// Ends the renewals of a lease, because it is given up.
    pub(super) fn forget(&self, lease: LeaseNumber) {
        self.change(|work| drop(work.schedule.remove(lease)));
    }

    /// Releases a lease in the background, unless releases are dropped.
    pub(super) fn release(&self, pending: PendingRelease) {
        let dropped = self.change(|work| {
            if work.drops_releases {
                return Some(pending);
            }
            work.todo.releases.push(pending);
            None
        });
        drop(dropped);
    }

    /// Cancels a token when this lease is lost or given up.
    pub(super) fn cancel_on_loss(&self, watcher: LossWatcher, token: DropGuard) {
        self.change(|work| work.todo.tokens.push((watcher, token)));
    }

    /// Runs other work on the runtime of the task.
    pub(super) fn run_beside(&self, work: BoxFuture<'static, ()>) {
        self.change(|all| all.todo.beside.push(work));
    }

    /// Takes the releases that have not begun, so that the caller carries them out.
    pub(super) fn take_releases(&self) -> Vec<PendingRelease> {
        self.with(|work| mem::take(&mut work.todo.releases))
    }

    /// From now on releases are dropped instead of carried out. Returns the releases that have not begun, and the
    /// caller drops them. Others may come later: a runtime that ends drops the task first, and then the releases that
    /// were under way.
    pub(super) fn refuse_releases(&self) -> Vec<PendingRelease> {
        self.with(|work| {
            work.drops_releases = true;
            mem::take(&mut work.todo.releases)
        })
    }

    /// From now on releases are carried out, because the task has a runtime.
    pub(super) fn accept_releases(&self) {
        self.with(|work| work.drops_releases = false);
    }
}

impl RenewalWork {
    /// Plans the renewals of a lease.
    pub(super) fn plan(&mut self, lease: &Arc<LeaseState>, now: Instant) {
        let (number, ttl) = (lease.number(), lease.ttl());
        let (due, deadline) = (lease.next_renewal(now), lease.deadline());
        self.schedule
            .insert(number, Arc::downgrade(lease), ttl, due, deadline);
    }
}

impl fmt::Debug for RenewalInbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RenewalInbox").finish_non_exhaustive()
    }
}
