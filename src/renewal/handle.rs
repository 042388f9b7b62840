//! `RenewalHandle`: the handle of the task that renews leases.

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::{
    sync::watch,
    time::{Instant, timeout},
};

use super::{inbox::RenewalInbox, overload::Overload, task::RenewalTask};
use crate::{
    lease_state::{LeaseNumber, LeaseState},
    runtime::lifecycle::Lifecycle,
    store::Store,
};

/// The handle through which the rest of the client uses the renewal task. The task ends when this handle is dropped.
pub(crate) struct RenewalHandle {
    task: Arc<RenewalTask>,
    /// Whether renewals are late.
    late: watch::Receiver<bool>,
}

impl RenewalHandle {
    pub(crate) fn new(store: Arc<dyn Store>) -> Self {
        let (late, is_late) = watch::channel(false);
        let task = RenewalTask {
            store,
            inbox: RenewalInbox::new(),
            overload: Mutex::new(Overload::new(late)),
        };
        Self {
            task: Arc::new(task),
            late: is_late,
        }
    }

    /// Whether renewals are late.
    pub(crate) fn late(&self) -> watch::Receiver<bool> {
        self.late.clone()
    }

    /// Starts the task on the runtime of the client, unless it was started before.
    pub(crate) fn ensure_running(&self, lifecycle: &Lifecycle) {
        let task = Arc::downgrade(&self.task);
        let look = move || task.upgrade().map(|task| task.look());
        self.task.inbox.timers.ensure_running(lifecycle, look);
    }

    /// Waits while renewals are late, for `limit` at most. Returns whether they were late at all.
    pub(crate) async fn wait_while_late(&self, limit: Duration) -> bool {
        let mut late = self.late();
        if !*late.borrow_and_update() {
            return false;
        }
        // This fails if the limit has passed, or if the task has ended, which owns the sender.
        let _ = timeout(limit, late.wait_for(|late| !late)).await;
        true
    }

    /// Keeps a lease alive from now on.
    pub(crate) fn keep(&self, lease: &Arc<LeaseState>) {
        lease.keep(true);
        self.task.inbox.keep(lease, Instant::now());
    }

    /// Ends the renewals of a lease, because it is given up.
    pub(crate) fn forget(&self, lease: LeaseNumber) {
        self.task.inbox.forget(lease);
    }
}
