//! How a lease that stays with this process goes back to the store: because another process waits for it, because a
//! request needs its document, because it was evicted, or at a close.

use std::{
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    sync::Arc,
    thread::panicking,
    time::Duration,
};

use tokio::time::{Instant, timeout_at};

use super::{registry::LeaseRegistry, stay_task};
use crate::{
    lease_state::EndedBefore,
    model::{Key, LeaseId, LossReason},
    release::PendingRelease,
    sticky::{Left, Stay},
    telemetry::{self, StayEndReason},
};

/// Longer than any release takes, for a call timeout that an `Instant` cannot express.
const A_YEAR: Duration = Duration::from_secs(365 * 24 * 60 * 60);

impl LeaseRegistry {
    /// Records that a lease stays with this process, and sees to it that a task looks after it.
    pub(super) fn begin_stay(self: &Arc<Self>, stay: &Arc<Stay>) {
        let ended = self.stays.insert(stay);
        stay_task::ensure_running(self);
        // Other tasks may wait in the queue of the key, because the lease was granted outside of it.
        self.queues.wake_first(stay.key());
        self.send_back_all(&ended, StayEndReason::TooMany);
        // What happened before the lease was added did not end its stay.
        if self.lifecycle.is_closing() {
            self.end_stay(stay, StayEndReason::Closed);
        }
        if !self.stays.may_stay(stay.key(), Instant::now()) {
            self.end_stay(stay, StayEndReason::WaitedFor);
        }
        telemetry::stays(stay.stored().fields());
    }

    /// Ends the stay of the lease of this key, because the store is asked for a reentrant lease, which it may grant
    /// beside it. A lease whose grant is under way does not stay either.
    pub(crate) fn end_stay_to_reenter(&self, key: &Key) {
        self.stays.recalled(key, Instant::now());
        if let Some(stay) = self.stays.get(key) {
            self.end_stay(&stay, StayEndReason::DocumentNeeded);
        }
    }

    /// Ends the stay of a lease: it goes back to the store, at once or when its present holder is done.
    pub(crate) fn end_stay(&self, stay: &Arc<Stay>, why: StayEndReason) {
        if self.stays.remove(stay) {
            self.send_back_all(std::slice::from_ref(stay), why);
        }
    }

    /// Sends back leases that do not stay any more. The events come last, because the subscriber of the application may
    /// panic.
    fn send_back_all(&self, stays: &[Arc<Stay>], why: StayEndReason) {
        let end = |stay: &Arc<Stay>| {
            if why == StayEndReason::WaitedFor {
                // The lease goes to the process that waits, and not to a task that waits here.
                stay.stored().set_awaited();
            }
            let left = stay.end();
            // A close may have given it back already.
            let _: Result<(), EndedBefore> = self.send_back(stay, left);
            left != Left::Nothing
        };
        let at_once: Vec<bool> = stays.iter().map(end).collect();
        for (stay, at_once) in stays.iter().zip(at_once) {
            telemetry::stay_ended(stay.stored().fields(), why, at_once);
        }
    }

    /// Ends the stay of a lease, for a task that asks the store next. If no task uses the lease, this waits until it
    /// was [released](Self::until_released). Otherwise the store would refuse the task because of its own process, and
    /// the task would take a place among the processes that wait.
    pub(crate) async fn end_stay_now(
        &self,
        stay: &Arc<Stay>,
        why: StayEndReason,
        until: Option<Instant>,
    ) {
        let longest = self.longest(until);
        if stay.idle_since().is_some() {
            // Its release is not offered to a task in the queue, which may be this one, and does not take it now.
            stay.stored().set_awaited();
        }
        if self.stays.remove(stay) {
            let (now, left) = (Instant::now(), stay.end());
            // If a close has given it back already, its release is waited for below.
            let pending = if left == Left::Release {
                self.end(stay.stored(), now).ok()
            } else {
                let _: Result<(), EndedBefore> = self.send_back(stay, left);
                None
            };
            let of = stay.stored().fields();
            let report = || telemetry::stay_ended(of, why, left != Left::Nothing);
            if let Some(pending) = self.report_before(pending, report) {
                // The task releases the lease itself, because it is possible that no thread drives the runtime of the
                // renewal task any more. A release that takes longer goes on in the background.
                let _ = timeout_at(longest, self.release(pending, now)).await;
                return;
            }
        }
        if stay.is_settled() {
            self.until_released(stay, until).await;
        }
    }

    /// Makes events before these releases are sent. If the subscriber of the application panics, the releases go on in
    /// the background.
    pub(super) fn report_before<P>(&self, pending: P, report: impl FnOnce()) -> P
    where
        P: IntoIterator<Item = PendingRelease>,
    {
        let Err(panic) = catch_unwind(AssertUnwindSafe(report)) else {
            return pending;
        };
        if panicking() {
            // The guard is dropped because of another panic, and a second one would abort the process.
            return pending;
        }
        let release = |pending| self.renewals.release(pending);
        pending.into_iter().for_each(release);
        resume_unwind(panic);
    }

    /// Waits until a lease that goes back was released, for no longer than `until`, if that is in the future, and the
    /// call timeout.
    pub(crate) async fn until_released(&self, stay: &Stay, until: Option<Instant>) {
        // A release that takes longer goes on in the background.
        let _ = timeout_at(self.longest(until), stay.stored().given_back()).await;
    }

    /// Until when a release is waited for.
    fn longest(&self, until: Option<Instant>) -> Instant {
        let now = Instant::now();
        let longest = now.checked_add(self.call_timeout).unwrap_or(now + A_YEAR);
        let until = until.filter(|until| *until > now);
        until.map_or(longest, |until| until.min(longest))
    }

    /// Ends the stay of this lease, which this process has just ended in the store. With `None` it may have ended any
    /// lease of the key: nothing more is granted under one that stays, and what was granted goes on.
    pub(crate) fn ended_here(&self, key: &Key, lease: Option<LeaseId>) {
        // The lease may be granted by an answer that is under way, and then begin to stay.
        self.stays.recalled(key, Instant::now());
        for stay in self.stays.all_of(key) {
            match lease {
                Some(lease) if stay.stored().id() != lease => continue,
                Some(_) => drop(stay.stored().lose(LossReason::TakenOver)),
                None => {}
            }
            self.end_stay(&stay, StayEndReason::Evicted);
        }
    }

    /// Ends the stays of all leases.
    pub(super) fn end_all_stays(&self, why: StayEndReason) {
        let mut all = self.stays.all();
        all.retain(|stay| self.stays.remove(stay));
        self.send_back_all(&all, why);
    }

    /// Gives up the lease in the store, if that is what is left to do. A caller that tells its own caller
    /// what became of the lease needs the outcome.
    pub(super) fn send_back(&self, stay: &Arc<Stay>, left: Left) -> Result<(), EndedBefore> {
        match left {
            Left::Nothing => Ok(()),
            Left::Release => self.abandon(stay.stored()),
            Left::Detach => self.detach(stay.stored()),
        }
    }
}

impl Drop for LeaseRegistry {
    fn drop(&mut self) {
        // No guard is left. The renewal task releases what it has before it ends.
        self.end_all_stays(StayEndReason::Closed);
    }
}
