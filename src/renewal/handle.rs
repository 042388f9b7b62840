//! The handle to the task that renews, and releases in the background.

use std::{sync::Arc, time::Duration};

use tokio::{
    runtime::Handle,
    sync::watch,
    time::{Instant, timeout},
};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::{host::Host, overload::Overload, state::RenewalState, task::RenewalTask};
use crate::{
    lease_state::{LeaseNumber, LeaseState},
    model::Error,
    release::{PendingRelease, Releaser},
    store::Store,
};

/// What the rest of the client sees of the task.
///
/// The task starts with the first acquire and ends when the last handle is gone. When its runtime shuts down it goes on
/// on another one that acquires came from.
#[derive(Debug)]
pub(crate) struct RenewalHandle {
    state: Arc<RenewalState>,
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
        let state = RenewalState::new();
        let is_late = late.subscribe();
        let task = RenewalTask {
            store,
            releaser,
            state: state.clone(),
            overload: Overload::new(late),
        };
        Self {
            state,
            host: Host::new(task, closing),
            late: is_late,
        }
    }

    /// Starts the task unless it runs, and has it know this runtime. Each acquire does so.
    pub(crate) fn ensure_running(&self) -> Result<(), Error> {
        let runtime = Handle::try_current().map_err(|_| Error::NoRuntime)?;
        self.host.ensure_running(runtime);
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

    /// Keeps a lease alive from now on.
    pub(crate) fn keep(&self, lease: &Arc<LeaseState>) -> Result<(), Error> {
        // The task may have ended with its runtime while the acquire was waiting.
        self.ensure_running()?;
        lease.keep(true);
        self.state.keep(lease, Instant::now());
        Ok(())
    }

    /// A lease that was kept alive is given up.
    pub(crate) fn forget(&self, lease: LeaseNumber) {
        self.state.forget(lease);
    }

    /// Releases a lease in the background.
    pub(crate) fn release(&self, pending: PendingRelease) {
        self.state.release(pending);
        self.host.drop_releases();
    }

    /// While the handle closes: leaves to their ttl the leases that wait for their release, if no runtime is left
    /// that could do it.
    pub(crate) fn drop_releases(&self) {
        self.host.drop_releases();
    }

    /// Cancels the token when the lease is lost or given up, and at once if no runtime is there to see
    /// that.
    pub(crate) fn tell(&self, lease: &LeaseState, token: DropGuard) {
        let watcher = lease.watch();
        match Handle::try_current() {
            Ok(here) => drop(here.spawn(async move {
                watcher.lost().await;
                drop(token);
            })),
            Err(_) if self.host.have_ended() => {}
            Err(_) => self.state.tell(watcher, token),
        }
    }
}

impl Drop for RenewalHandle {
    fn drop(&mut self) {
        self.state.change(|work| work.is_last = true);
    }
}
