//! The leases of a handle, from the grant of each to its release; and the close, which releases them all.

use std::{
    collections::HashMap,
    sync::{Arc, Weak},
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{
    runtime::Handle,
    sync::{oneshot, watch},
    time::Instant,
};

use crate::{
    coalescer::{Batching, Coalescer},
    lease_state::{EndReason, LeaseNumber, LeaseState},
    model::{Error, LossReason},
    release::{PendingRelease, Released, Releaser, release_all},
    renewal::RenewalHandle,
    runtime::{self, inline_task::InlineTask, lifecycle::Lifecycle},
    store::Store,
    telemetry,
    waiters::WaitQueues,
};

/// What the leases of a handle need, and which of them are held.
#[derive(Debug)]
pub(crate) struct LeaseRegistry {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) call_timeout: Duration,
    pub(crate) lifecycle: Arc<Lifecycle>,
    pub(crate) queues: Arc<WaitQueues>,
    pub(crate) renewals: RenewalHandle,
    pub(crate) releaser: Releaser,
    /// For [`LeaseRegistry::close`].
    held: Mutex<HashMap<LeaseNumber, Weak<LeaseState>>>,
}

impl LeaseRegistry {
    /// Without a lease yet. It tells whether renewals are late.
    pub(crate) fn new(
        store: Arc<dyn Store>,
        coalescer: Arc<Coalescer>,
        call_timeout: Duration,
        late: Arc<watch::Sender<bool>>,
    ) -> Self {
        let queues = Arc::new(WaitQueues::default());
        let releaser = Releaser::new(coalescer, call_timeout, queues.clone());
        let lifecycle = Arc::<Lifecycle>::default();
        let closing = lifecycle.closing().clone();
        Self {
            renewals: RenewalHandle::new(store.clone(), releaser.clone(), late, closing),
            store,
            call_timeout,
            lifecycle,
            queues,
            releaser,
            held: Mutex::default(),
        }
    }

    /// Takes in a lease that was granted.
    pub(super) fn granted(&self, lease: &Arc<LeaseState>) {
        self.queues.begins(lease.id());
        self.held
            .lock()
            .insert(lease.number(), Arc::downgrade(lease));
        telemetry::granted();
    }

    /// A guard is dropped: its lease is released in the background.
    pub(super) fn abandon(&self, lease: &Arc<LeaseState>) {
        if let Some(pending) = self.end(lease, Instant::now()) {
            self.renewals.release(pending);
        }
    }

    /// A lease is given up, and left to its ttl.
    pub(super) fn detach(&self, lease: &LeaseState) {
        self.forget(lease);
        self.queues.ends(lease.id());
        lease.end(EndReason::Detached, Instant::now());
    }

    /// A lease is given up. Its release is due, unless another call was the first to give it up.
    pub(super) fn end(&self, lease: &Arc<LeaseState>, now: Instant) -> Option<PendingRelease> {
        // Counted before it is given up, so that a close that does not find it waits for it.
        let at_work = self.lifecycle.at_work();
        self.forget(lease);
        let is_first = lease.end(EndReason::Released, now);
        is_first.then(|| PendingRelease::new(lease.clone(), self.queues.clone(), at_work))
    }

    fn forget(&self, lease: &LeaseState) {
        self.held.lock().remove(&lease.number());
        if lease.is_kept() {
            self.renewals.forget(lease.number());
        }
    }

    /// Releases a lease now and waits for the outcome. Dropping this does not stop the release.
    pub(super) async fn release(
        &self,
        mut pending: PendingRelease,
        batching: Batching,
        now: Instant,
    ) -> Result<Released, Error> {
        let (reply, outcome) = oneshot::channel();
        let Ok(task) = InlineTask::new() else {
            self.renewals.release(pending);
            return Err(Error::NoRuntime);
        };
        // Not before it is known that the caller submits it.
        if batching == Batching::Set {
            pending = pending.in_a_set();
        }
        let lease = pending.state().clone();
        let settled = Box::pin(pending.settle(self.releaser.clone(), Some(reply)));
        let waiting = self.lifecycle.wait_for(task, now, settled, outcome);
        if let Some(outcome) = waiting.await {
            return outcome;
        }
        // The task went down with its runtime. Another one may have that of the renewals.
        let at_work = self.lifecycle.at_work();
        let pending = PendingRelease::new(lease, self.queues.clone(), at_work);
        self.renewals.release(pending);
        Err(runtime::no_outcome())
    }

    /// Releases every lease, lets nothing be acquired any more, and waits for what is under way.
    pub(crate) async fn close(&self) {
        self.lifecycle.begin_to_close();
        // The task of the renewals may have ended with its runtime, and left work.
        let _ = self.renewals.ensure_running();
        let held: Vec<_> = self.held.lock().drain().collect();
        let mut pending = Vec::new();
        for lease in held.iter().filter_map(|(_, lease)| lease.upgrade()) {
            lease.lose(LossReason::Closed);
            pending.extend(self.end(&lease, Instant::now()));
        }
        // Here and not in the task of the renewals, whose runtime may stand still.
        match Handle::try_current() {
            Ok(here) => {
                let (store, releaser) = (self.store.clone(), self.releaser.clone());
                drop(here.spawn(release_all(store, releaser, pending)));
            }
            Err(_) => {
                let release = |pending| self.renewals.release(pending);
                pending.into_iter().for_each(release);
                self.renewals.drop_releases();
            }
        }
        self.lifecycle.finish().await;
    }
}
