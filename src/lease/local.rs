//! The guard of a lease that was granted from memory, and the end of the lease in the store that stays behind it.

use std::{
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    sync::Arc,
    time::Duration,
};

use tokio::time::{Instant, timeout_at};
use tracing::Instrument;

use super::{guard::Lease, looks, registry::LeaseRegistry};
use crate::{
    lease_state::{Behind, EndReason, LeaseState},
    messages::ReleaseAnswer,
    model::{Access, Error, Held, Key, LeaseId, LossReason},
    release::{PendingRelease, Released},
    sticky::{Departure, Entry, Fences, Left, Stay},
    telemetry::{self, SentBack},
};

impl Lease {
    /// The guard of a lease that was granted from memory.
    pub(crate) fn local(
        registry: Arc<LeaseRegistry>,
        stay: Arc<Stay>,
        state: Arc<LeaseState>,
    ) -> Self {
        telemetry::granted();
        Self {
            registry,
            state,
            stay: Some(stay),
        }
    }

    /// The guard of a lease that the store has just granted. The lease stays with this process from now on, and the
    /// guard is the first one that is granted from memory under it.
    ///
    /// `suspended` is how long the machine had been suspended in all before the request was sent.
    pub(crate) fn staying(
        registry: Arc<LeaseRegistry>,
        stored: LeaseState,
        idle: Duration,
        suspended: Duration,
    ) -> Self {
        let stored = Arc::new(stored);
        let plain = |registry: Arc<LeaseRegistry>, state| {
            registry.granted(&state);
            Self {
                registry,
                state,
                stay: None,
            }
        };
        if registry.renewals.keep(&stored).is_err() {
            return plain(registry, stored);
        }
        let now = Instant::now();
        let request = stored.request();
        let is_exclusive = request.access == Access::Exclusive;
        let fences = is_exclusive.then(|| Fences::of_grant(stored.fence()));
        let behind = Behind::new(stored.clone(), suspended);
        let stay = Stay::begin(behind, fences, idle, now);
        match stay.try_enter(request.clone(), now) {
            Entry::Granted(state) => {
                stored.set_without_guard();
                registry.stays_here(&stored);
                let lease = Self::local(registry.clone(), stay.clone(), state);
                registry.begin_stay(&stay);
                lease
            }
            // The answer took most of the ttl.
            Entry::Busy(_) | Entry::Over => {
                stored.keep(false);
                registry.renewals.forget(stored.number());
                plain(registry, stored)
            }
        }
    }

    /// The lease in the store, for a request that is about its document. From now on nothing else is granted under it:
    /// it goes back when this guard does.
    pub(super) fn take_stored(&self) -> Arc<LeaseState> {
        self.end_stay(SentBack::DocumentNeeded);
        self.stored()
    }

    /// The other leases that were granted from memory beside this one. `None` if there are none.
    pub(super) fn others_here(&self) -> Option<Held> {
        let stay = self.stay.as_ref()?;
        stay.others(self.state.number(), Instant::now())
    }

    pub(super) async fn release_local(&self, stay: &Arc<Stay>, now: Instant) -> Result<(), Error> {
        let lost_before = self.state.loss(now);
        let ended = self.state.end_without_events(EndReason::Released, now);
        if !ended.is_first {
            self.state.report_end(ended);
            return Err(self.state.lost_error(LossReason::Closed));
        }
        let (left, was_there) = stay.leave(self.state.number(), Departure::Released, now);
        self.state.mark_released();
        let pending = if left == Left::Release {
            self.registry.end(stay.stored(), now)
        } else {
            self.registry.send_back(stay, left);
            None
        };
        let told = || self.state.report_end(ended);
        if let Some(pending) = self.registry.told_before(pending, told) {
            let release = self.registry.release(pending, now);
            let release = release.instrument(telemetry::release(self.state.fields()));
            let Released { answer, unclear } = release.await?;
            if answer == ReleaseAnswer::NotHeld && !(unclear && lost_before.is_none()) {
                return Err(self.state.lost_error(LossReason::TakenOver));
            }
        }
        match lost_before {
            // The key was not granted again, neither here nor by the store.
            Some(LossReason::Expired) if was_there && stay.stored().is_live(now) => Ok(()),
            Some(reason) => Err(self.state.lost_error(reason)),
            None => Ok(()),
        }
    }

    pub(super) fn drop_local(&self, stay: &Arc<Stay>) {
        let now = Instant::now();
        let ended = self.state.end_without_events(EndReason::Released, now);
        if ended.is_first {
            let (left, _) = stay.leave(self.state.number(), Departure::Released, now);
            self.state.mark_released();
            self.registry.send_back(stay, left);
        }
        self.state.report_end(ended);
    }

    /// Gives up the guard without a release of the lease in the store.
    pub(super) fn detach_local(&self, stay: &Arc<Stay>) {
        self.depart(stay, Departure::Detached);
    }

    /// Gives up the guard for the process that gets the ticket of the lease in the store. `false` if there is no lease for
    /// that: this one is lost, or the lease in the store stands behind other leases too.
    pub(super) fn give_away(&self, stay: &Arc<Stay>) -> bool {
        self.depart(stay, Departure::Ticketed)
    }

    /// Gives up the guard. Returns whether the lease in the store is not released.
    fn depart(&self, stay: &Arc<Stay>, how: Departure) -> bool {
        let now = Instant::now();
        // Behind a lease that is lost, the lease in the store may be that of another task.
        let how = if self.state.is_live(now) {
            how
        } else {
            Departure::Released
        };
        let ended = self.state.end_without_events(EndReason::Detached, now);
        if !ended.is_first {
            self.state.report_end(ended);
            return false;
        }
        let (left, was_there) = stay.leave(self.state.number(), how, now);
        let detaches = match how {
            Departure::Released => false,
            Departure::Detached => was_there,
            Departure::Ticketed => left == Left::Detach,
        };
        let ends_stay = detaches && self.registry.stays.remove(stay);
        self.registry.send_back(stay, left);
        self.state.report_end(ended);
        if ends_stay {
            let of = stay.stored().fields();
            telemetry::stay_ended(of, SentBack::Detached, left != Left::Nothing);
        }
        detaches
    }

    /// Ends the stay of the lease behind this one, so that it goes back to the store when this one is given up.
    pub(super) fn end_stay(&self, why: SentBack) {
        // If this lease is lost, the stay is that of others.
        if let Some(stay) = &self.stay
            && self.is_live()
        {
            self.registry.end_stay(stay, why);
        }
    }
}

impl LeaseRegistry {
    /// Records that a lease stays with this process, and sees to it that a task looks after it.
    fn begin_stay(self: &Arc<Self>, stay: &Arc<Stay>) {
        let ended = self.stays.insert(stay);
        looks::ensure_looking(self);
        // Other tasks may wait in the queue of the key, because the lease was granted outside of it.
        self.queues.wake_first(stay.key());
        self.send_back_all(&ended, SentBack::TooMany);
        // What happened before the lease was added did not end its stay.
        if self.lifecycle.is_closing() {
            self.end_stay(stay, SentBack::Closed);
        }
        if !self.stays.may_stay(stay.key(), Instant::now()) {
            self.end_stay(stay, SentBack::WaitedFor);
        }
        telemetry::stays(stay.stored().fields());
    }

    /// Ends the stay of the lease of this key, because the store is asked for a reentrant lease, which it may grant beside it.
    /// A lease whose grant is under way does not stay either.
    pub(crate) fn enters_in_store(&self, key: &Key) {
        self.stays.recalled(key, Instant::now());
        if let Some(stay) = self.stays.get(key) {
            self.end_stay(&stay, SentBack::DocumentNeeded);
        }
    }

    /// Ends the stay of a lease: it goes back to the store, at once or when its present holder is done.
    pub(crate) fn end_stay(&self, stay: &Arc<Stay>, why: SentBack) {
        if self.stays.remove(stay) {
            self.send_back_all(std::slice::from_ref(stay), why);
        }
    }

    /// Sends back leases that do not stay any more. The events come last, because the subscriber of the application may
    /// panic.
    fn send_back_all(&self, stays: &[Arc<Stay>], why: SentBack) {
        let end = |stay: &Arc<Stay>| {
            if why == SentBack::WaitedFor {
                // The lease goes to the process that waits, and not to a task that waits here.
                stay.stored().set_awaited();
            }
            let left = stay.end();
            self.send_back(stay, left);
            left != Left::Nothing
        };
        let at_once: Vec<bool> = stays.iter().map(end).collect();
        for (stay, at_once) in stays.iter().zip(at_once) {
            telemetry::stay_ended(stay.stored().fields(), why, at_once);
        }
    }

    /// Ends the stay of a lease, for a task that asks the store next. If no task uses the lease, this waits until it was
    /// [released](Self::until_released). Otherwise the store would refuse the task because of its own process, and
    /// the task would take a place among the processes that wait.
    pub(crate) async fn end_stay_now(
        &self,
        stay: &Arc<Stay>,
        why: SentBack,
        until: Option<Instant>,
    ) {
        if stay.idle_since().is_some() {
            // Its release is not offered to a task in the queue, which may be this one, and does not take it now.
            stay.stored().set_awaited();
        }
        if self.stays.remove(stay) {
            let (now, left) = (Instant::now(), stay.end());
            let pending = if left == Left::Release {
                self.end(stay.stored(), now)
            } else {
                self.send_back(stay, left);
                None
            };
            let of = stay.stored().fields();
            let told = || telemetry::stay_ended(of, why, left != Left::Nothing);
            if let Some(pending) = self.told_before(pending, told) {
                // The task releases the lease itself, because it is possible that no thread drives the runtime of the
                // renewal task any more. A release that takes longer goes on in the background.
                let _ = timeout_at(self.longest(until), self.release(pending, now)).await;
                return;
            }
        }
        if stay.is_settled() {
            self.until_released(stay, until).await;
        }
    }

    /// Makes an event before a release. If the subscriber of the application panics, the release goes on in the background.
    fn told_before(
        &self,
        pending: Option<PendingRelease>,
        told: impl FnOnce(),
    ) -> Option<PendingRelease> {
        let Err(panic) = catch_unwind(AssertUnwindSafe(told)) else {
            return pending;
        };
        let release = |pending| self.renewals.release(pending);
        pending.into_iter().for_each(release);
        resume_unwind(panic);
    }

    /// Waits until a lease that goes back was released, for no longer than `until`, if that is in the future, and the
    /// call timeout.
    pub(crate) async fn until_released(&self, stay: &Stay, until: Option<Instant>) {
        // A release that takes longer goes on in the background.
        let _ = timeout_at(self.longest(until), stay.stored().released()).await;
    }

    /// Until when a release is waited for.
    fn longest(&self, until: Option<Instant>) -> Instant {
        let now = Instant::now();
        let longest = now + self.call_timeout;
        let until = until.filter(|until| *until > now);
        until.map_or(longest, |until| until.min(longest))
    }

    /// Ends the stay of this lease, which this process has just ended in the store. With `None` it may have ended any lease
    /// of the key: nothing more is granted under one that stays, and what was granted goes on.
    pub(crate) fn ended_here(&self, key: &Key, lease: Option<LeaseId>) {
        // The lease may be granted by an answer that is under way, and then begin to stay.
        self.stays.recalled(key, Instant::now());
        for stay in self.stays.all_of(key) {
            match lease {
                Some(lease) if stay.stored().id() != lease => continue,
                Some(_) => drop(stay.stored().lose(LossReason::TakenOver)),
                None => {}
            }
            self.end_stay(&stay, SentBack::Evicted);
        }
    }

    /// Ends the stays of all leases.
    pub(super) fn end_all_stays(&self, why: SentBack) {
        let mut all = self.stays.all();
        all.retain(|stay| self.stays.remove(stay));
        self.send_back_all(&all, why);
    }

    /// Gives up the lease in the store, if that is what is left to do.
    pub(super) fn send_back(&self, stay: &Arc<Stay>, left: Left) {
        match left {
            Left::Nothing => {}
            Left::Release => self.abandon(stay.stored()),
            Left::Detach => self.detach(stay.stored()),
        }
    }
}

impl Drop for LeaseRegistry {
    fn drop(&mut self) {
        // No guard is left. The renewal task releases what it has before it ends.
        self.end_all_stays(SentBack::Closed);
    }
}
