//! `RenewalHandle`: the handle of the task that renews leases, and releases leases in the background.

use std::{sync::Arc, time::Duration};

use futures::future::BoxFuture;
use tokio::{
    runtime::Handle,
    sync::watch,
    time::{Instant, timeout},
};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::{
    host::Host, inbox::RenewalInbox, overload::Overload, release::OngoingRelease, task::RenewalTask,
};
use crate::{
    lease_state::{LeaseNumber, LeaseState},
    model::Error,
    release::{PendingRelease, ReleaseReply, Releaser},
    runtime::outside,
    store::Store,
};

/// The handle through which the rest of the client uses the renewal task.
///
/// The task starts with the first acquire and ends when this handle is dropped. When its runtime shuts down, the task
/// moves to another runtime from which leases were acquired.
#[derive(Debug)]
pub(crate) struct RenewalHandle {
    inbox: Arc<RenewalInbox>,
    host: Arc<Host>,
    /// Whether renewals are late.
    late: watch::Receiver<bool>,
}

impl RenewalHandle {
    pub(crate) fn new(
        store: Arc<dyn Store>,
        releaser: Releaser,
        late: Arc<watch::Sender<bool>>,
        closing: CancellationToken,
    ) -> Self {
        let inbox = RenewalInbox::new();
        let is_late = late.subscribe();
        let task = RenewalTask {
            store,
            releaser,
            inbox: inbox.clone(),
            overload: Overload::new(late),
        };
        Self {
            inbox,
            host: Host::new(task, closing),
            late: is_late,
        }
    }

    /// Starts the task unless it runs, and remembers this runtime, to which the task may move later. Each acquire
    /// calls this. It fails without a tokio runtime.
    pub(crate) fn ensure_running(&self) -> Result<(), Error> {
        let runtime = Handle::try_current().map_err(|_| Error::NoRuntime)?;
        self.host.ensure_running(runtime);
        Ok(())
    }

    /// Waits while renewals are late, for `limit` at most. Returns whether they were late at all.
    pub(crate) async fn wait_while_late(&self, limit: Duration) -> bool {
        let mut late = self.late.clone();
        if !*late.borrow_and_update() {
            return false;
        }
        // This fails if the limit has passed, or if the task has ended, which owns the sender.
        let _ = timeout(limit, late.wait_for(|late| !late)).await;
        true
    }

    /// Keeps a lease alive from now on.
    pub(crate) fn keep(&self, lease: &Arc<LeaseState>) -> Result<(), Error> {
        // The task may have ended with its runtime while the acquire was waiting.
        self.ensure_running()?;
        lease.keep(true);
        self.inbox.keep(lease, Instant::now());
        Ok(())
    }

    /// Ends the renewals of a lease, because it is given up.
    pub(crate) fn forget(&self, lease: LeaseNumber) {
        self.inbox.forget(lease);
    }

    /// Releases a lease in the background.
    pub(crate) fn release(&self, pending: PendingRelease) {
        self.inbox.release(pending);
        self.host.drop_releases();
    }

    /// Returns the future of a release with a caller. If the future panics, or is dropped with its runtime, the lease
    /// is released in the background.
    pub(crate) fn release_with_caller(
        &self,
        pending: PendingRelease,
        releaser: Releaser,
        reply: ReleaseReply,
    ) -> BoxFuture<'static, ()> {
        let release = OngoingRelease::new(pending, self.inbox.clone());
        Box::pin(release.run(releaser, Some(reply)))
    }

    /// Begins the releases in the background that have not begun, on this runtime: that of the task may not be driven any
    /// more.
    pub(crate) fn begin_releases(&self, releaser: &Releaser) {
        let Ok(here) = Handle::try_current() else {
            return;
        };
        for pending in self.inbox.take_releases() {
            let release = OngoingRelease::new(pending, self.inbox.clone());
            outside::spawn(&here, release.run(releaser.clone(), None));
        }
    }

    /// Takes the releases in the background that have not begun, so that the caller carries them out.
    pub(crate) fn take_releases(&self) -> Vec<PendingRelease> {
        self.inbox.take_releases()
    }

    /// If the client closes and no runtime is left that could run the task, drops the releases that wait for the task.
    /// Their keys are free when the ttl is over.
    pub(crate) fn drop_releases(&self) {
        self.host.drop_releases();
    }

    /// Cancels the token when the lease is lost or given up. Cancels it at once if no runtime is left to watch the
    /// lease.
    pub(crate) fn cancel_on_loss(&self, lease: &LeaseState, token: DropGuard) {
        let watcher = lease.watch();
        match Handle::try_current() {
            Ok(here) => drop(here.spawn(async move {
                watcher.lost().await;
                drop(token);
            })),
            Err(_) if self.host.is_parked() => {}
            Err(_) => self.inbox.cancel_on_loss(watcher, token),
        }
    }
}

impl Drop for RenewalHandle {
    fn drop(&mut self) {
        self.inbox.change(|work| work.handle_dropped = true);
    }
}
