//! `LeaseRegistry`: the leases of a client, from the grant of each to its release. A close releases them all.
//!
//! Invariants: a lease is registered from its grant until it is given up. Only the first call that gives up a lease
//! gets its pending release, so each lease is released once. Every other call is told so, and must not go on as if the
//! lease had ended as it asked. A close waits for every pending release.

use std::{
    collections::BTreeMap,
    mem,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    pin::pin,
    sync::{Arc, Weak},
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{
    runtime::Handle,
    sync::{oneshot, watch},
    time::{Instant, timeout},
};

use crate::{
    coalescer::Coalescer,
    lease_state::{EndReason, EndedBefore, LeaseNumber, LeaseState},
    model::{Error, LossReason},
    release::{PendingRelease, Released, Releaser, release_all},
    renewal::RenewalHandle,
    runtime::{inline_task::InlineTask, lifecycle::Lifecycle},
    sticky::{Closing, Stays},
    store::Store,
    telemetry::{self, StayEndReason},
    waiters::WaitQueues,
};

/// How often a close looks for releases that were left to the renewal task.
const LEFT_OVER: Duration = Duration::from_millis(100);

/// The leases that are held, and the parts of the client that they use.
#[derive(Debug)]
pub(crate) struct LeaseRegistry {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) call_timeout: Duration,
    pub(crate) lifecycle: Arc<Lifecycle>,
    pub(crate) queues: Arc<WaitQueues>,
    pub(crate) renewals: RenewalHandle,
    pub(crate) releaser: Releaser,
    /// The keys that stay with this process after their last use.
    pub(crate) stays: Stays,
    /// The leases that were not given up yet: [`LeaseRegistry::close`] releases them.
    held: Mutex<HeldLeases>,
}

type HeldLeases = BTreeMap<LeaseNumber, Weak<LeaseState>>;

impl LeaseRegistry {
    /// A registry without leases. Its renewal task publishes in `late` whether renewals are late.
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
            stays: Stays::default(),
            held: Mutex::default(),
        }
    }

    /// Registers a lease that was granted.
    pub(super) fn granted(&self, lease: &Arc<LeaseState>) {
        self.register(&mut self.held.lock(), lease);
        telemetry::guard_created();
    }

    /// Registers a lease that was granted, and stays here behind the leases that are granted from memory. It has no
    /// guard of its own.
    pub(super) fn register_stay(&self, lease: &Arc<LeaseState>) {
        self.register(&mut self.held.lock(), lease);
    }

    /// Registers a lease that was resumed, unless the client closes. The close then leaves the lease alone: the caller
    /// still has the ticket, with which a client that is open can resume the lease.
    pub(super) fn resumed(&self, lease: &Arc<LeaseState>) -> Result<(), Error> {
        let mut held = self.held.lock();
        // This is checked under the lock, so that a close which begins later finds the lease.
        if self.lifecycle.is_closing() {
            drop(held);
            self.forget(lease);
            return Err(Error::Closed);
        }
        self.register(&mut held, lease);
        drop(held);
        telemetry::guard_created();
        Ok(())
    }

    fn register(&self, held: &mut HeldLeases, lease: &Arc<LeaseState>) {
        self.queues.register_lease(lease.id());
        held.insert(lease.number(), Arc::downgrade(lease));
    }

    /// Releases a lease in the background, because its guard is dropped.
    pub(super) fn abandon(&self, lease: &Arc<LeaseState>) -> Result<(), EndedBefore> {
        let pending = self.end(lease, Instant::now())?;
        self.renewals.release(pending);
        Ok(())
    }

    /// Gives up a lease without a release: the lease holds the key until its ttl is over. After an error the key
    /// may be free, and the holder must not be told that it is held.
    pub(super) fn detach(&self, lease: &LeaseState) -> Result<(), EndedBefore> {
        let ended = lease.end(EndReason::Detached, Instant::now())?;
        self.forget(lease);
        self.queues.detach_lease(lease.key(), lease.id());
        lease.report_end(ended);
        Ok(())
    }

    /// Gives up a lease, and returns its pending release.
    pub(super) fn end(
        &self,
        lease: &Arc<LeaseState>,
        now: Instant,
    ) -> Result<PendingRelease, EndedBefore> {
        // The token is taken first, so that a close which does not find the lease any more waits for its release.
        let at_work = self.lifecycle.register_operation();
        self.forget(lease);
        let ended = lease.end(EndReason::Released, now)?;
        let pending = PendingRelease::new(lease.clone(), self.queues.clone(), at_work);
        let [pending] = self.report_before([pending], || lease.report_end(ended));
        Ok(pending)
    }

    /// Ends all leases because of a close, and returns their releases. If the subscriber of the application panics, the
    /// releases go on in the background.
    fn lose_all(&self) -> Vec<PendingRelease> {
        let held: Vec<_> = self.held.lock().values().cloned().collect();
        let (mut pending, mut first_panic) = (Vec::new(), None);
        for lease in held.iter().filter_map(Weak::upgrade) {
            // `lose` and `end` both make events, and the subscriber of the application may panic in either.
            let lost = catch_unwind(AssertUnwindSafe(|| lease.lose(LossReason::Closed)));
            let end = || self.end(&lease, Instant::now());
            match catch_unwind(AssertUnwindSafe(end)) {
                // A lease whose guard was given up at this moment is released by that call, or not at all.
                Ok(release) => pending.extend(release.ok()),
                Err(panic) => first_panic = first_panic.or(Some(panic)),
            }
            first_panic = first_panic.or(lost.err());
        }
        self.report_before(pending, || {
            if let Some(panic) = first_panic {
                resume_unwind(panic);
            }
        })
    }

    fn forget(&self, lease: &LeaseState) {
        self.held.lock().remove(&lease.number());
        if lease.is_kept() {
            self.renewals.forget(lease.number());
        }
    }

    /// Releases a lease now and waits for the outcome. Dropping the future does not stop the release. A release that
    /// has panicked, or was dropped with its runtime, is carried out once more in the background.
    ///
    /// The future has the release before its first poll, so that its drop does not lose it either: the caller makes a
    /// span in between, and the subscriber of the application may panic.
    pub(super) fn release(
        &self,
        pending: PendingRelease,
        now: Instant,
    ) -> impl Future<Output = Result<Released, Error>> {
        let (reply, outcome) = oneshot::channel();
        let begun = match InlineTask::new() {
            Ok(task) => {
                let releaser = self.releaser.clone();
                let releasing = self.renewals.release_with_caller(pending, releaser, reply);
                Ok((task, releasing))
            }
            Err(error) => {
                self.renewals.release(pending);
                Err(error)
            }
        };
        async move {
            let (task, releasing) = begun?;
            let released = self.lifecycle.wait_for(task, now, releasing, outcome);
            released.await?
        }
    }

    /// Refuses every later acquire and releases every lease. Waits for all releases, also earlier ones, and for the
    /// acquires that are under way.
    pub(crate) async fn close(&self) {
        self.lifecycle.begin_to_close();
        // The renewal task may have ended with its runtime before it carried out its releases, so it is started again
        // here.
        let _ = self.renewals.ensure_running();
        // The leases that stay come first, because one of them may end meanwhile.
        let stays = self.stays.all().into_iter().chain(self.stays.ended());
        for stay in stays.filter(|it| it.close() == Closing::IsDetached) {
            stay.stored().lose(LossReason::Closed);
            // The guard that was the last one may have detached it at this moment.
            let _: Result<(), EndedBefore> = self.detach(stay.stored());
        }
        let pending = self.lose_all();
        // The leases of the stays have ended above, so that nothing is left to the renewal task.
        let mut pending = self.report_before(pending, || self.end_all_stays(StayEndReason::Closed));
        // The releases are spawned on this runtime, because it is possible that no thread drives the runtime of the
        // renewal task any more.
        match Handle::try_current() {
            Ok(here) => {
                let mut finished = pin!(self.lifecycle.finish());
                loop {
                    // Releases may be left to the renewal task until the end.
                    pending.extend(self.renewals.take_releases());
                    if !pending.is_empty() {
                        let (store, releaser) = (self.store.clone(), self.releaser.clone());
                        let pending = mem::take(&mut pending);
                        drop(here.spawn(release_all(store, releaser, pending)));
                    }
                    if timeout(LEFT_OVER, &mut finished).await.is_ok() {
                        return;
                    }
                }
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
