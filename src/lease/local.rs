//! The guard of a lease that was granted from memory.

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;
use tracing::Instrument;

use super::{guard::Lease, registry::LeaseRegistry};
use crate::{
    lease_state::{BackingLease, EndReason, EndedBefore, LeaseState},
    messages::ReleaseAnswer,
    model::{Access, Error, Held, LossReason},
    release::Released,
    sticky::{Departed, Departure, Fences, Left, LocalAnswer, Stay},
    telemetry::{self, StayEndReason},
};

impl Lease {
    /// The guard of a lease that was granted from memory.
    pub(crate) fn local(
        registry: Arc<LeaseRegistry>,
        stay: Arc<Stay>,
        state: Arc<LeaseState>,
    ) -> Self {
        telemetry::guard_created();
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
        let behind = BackingLease::new(stored.clone(), suspended);
        let stay = Stay::begin(behind, fences, idle, now);
        match stay.try_enter(request.clone(), now) {
            LocalAnswer::Granted(state) => {
                stored.set_without_guard();
                registry.register_stay(&stored);
                let lease = Self::local(registry.clone(), stay.clone(), state);
                registry.begin_stay(&stay);
                lease
            }
            // The answer took most of the ttl.
            LocalAnswer::Busy(_) | LocalAnswer::StoreNeeded => {
                stored.keep(false);
                registry.renewals.forget(stored.number());
                plain(registry, stored)
            }
        }
    }

    /// The lease in the store, for a request that is about its document. From now on nothing else is granted under it:
    /// it goes back when this guard does.
    pub(super) fn take_stored(&self) -> Arc<LeaseState> {
        self.end_stay(StayEndReason::DocumentNeeded);
        self.stored()
    }

    /// The other leases that were granted from memory beside this one. `None` if there are none.
    pub(super) fn others_here(&self) -> Option<Held> {
        let stay = self.stay.as_ref()?;
        stay.others(self.state.number(), Instant::now())
    }

    pub(super) async fn release_local(&self, stay: &Arc<Stay>, now: Instant) -> Result<(), Error> {
        let lost_before = self.state.loss(now);
        let Ok(ended) = self.state.end(EndReason::Released, now) else {
            return Err(self.state.lost_error(self.closed()));
        };
        let Departed {
            left, was_there, ..
        } = stay.leave(self.state.number(), Departure::Released, now);
        self.state.mark_released();
        let sent_back = if left == Left::Release {
            self.registry.end(stay.stored(), now).map(Some)
        } else {
            self.registry.send_back(stay, left).map(|()| None)
        };
        let report = || self.state.report_end(ended);
        let Ok(pending) = sent_back else {
            // The close of the client has taken over the release of the lease.
            report();
            return Err(self.state.lost_error(self.closed()));
        };
        if let Some(pending) = self.registry.report_before(pending, report) {
            let release = self.registry.release(pending, now);
            let release = release.instrument(telemetry::release(self.state.fields()));
            let Released { answer, unclear } = release.await?;
            if answer == ReleaseAnswer::NotHeld && !(unclear && lost_before.is_none()) {
                let reason = LossReason::TakenOver;
                if lost_before.is_none() {
                    telemetry::lost(self.state.fields(), &reason);
                }
                return Err(self.state.lost_error(reason));
            }
        }
        match lost_before {
            // The key was not granted again, neither here nor by the store.
            Some(LossReason::Expired) if was_there && stay.is_live(now) => Ok(()),
            Some(reason) => Err(self.state.lost_error(reason)),
            None => Ok(()),
        }
    }

    pub(super) fn drop_local(&self, stay: &Arc<Stay>) {
        let now = Instant::now();
        // The guard was given up before.
        let Ok(ended) = self.state.end(EndReason::Released, now) else {
            return;
        };
        let Departed { left, .. } = stay.leave(self.state.number(), Departure::Released, now);
        self.state.mark_released();
        // A close may have given the lease in the store back already.
        let _: Result<(), EndedBefore> = self.registry.send_back(stay, left);
        self.state.report_end(ended);
    }

    /// Gives up the guard without a release of the lease in the store. The error says why that one is released.
    pub(super) fn detach_local(&self, stay: &Arc<Stay>) -> Result<(), LossReason> {
        self.depart(stay, Departure::Detached)
    }

    /// Gives up the guard for the process that gets the ticket of the lease in the store. An error if there is no lease
    /// for that: this one is lost, or the lease in the store stands behind other leases too.
    pub(super) fn give_away(&self, stay: &Arc<Stay>) -> Result<(), LossReason> {
        self.depart(stay, Departure::Ticketed)
    }

    /// Gives up the guard. An error if the lease in the store is released, or may be.
    fn depart(&self, stay: &Arc<Stay>, how: Departure) -> Result<(), LossReason> {
        let now = Instant::now();
        // Behind a lease that is lost, the lease in the store may be that of another task.
        let how = if self.state.is_live(now) {
            how
        } else {
            Departure::Released
        };
        let Ok(ended) = self.state.end(EndReason::Detached, now) else {
            return Err(self.closed());
        };
        let Departed { left, detaches, .. } = stay.leave(self.state.number(), how, now);
        let ends_stay = detaches && self.registry.stays.remove(stay);
        let sent_back = self.registry.send_back(stay, left);
        self.state.report_end(ended);
        if ends_stay {
            let of = stay.stored().fields();
            telemetry::stay_ended(of, StayEndReason::Detached, left != Left::Nothing);
        }
        match sent_back {
            Ok(()) if detaches => Ok(()),
            Ok(()) | Err(EndedBefore) => Err(self.closed()),
        }
    }

    /// Ends the stay of the lease behind this one, so that it goes back to the store when this one is given up.
    pub(super) fn end_stay(&self, why: StayEndReason) {
        // If this lease is lost, the stay is that of others.
        if let Some(stay) = &self.stay
            && self.is_live()
        {
            self.registry.end_stay(stay, why);
        }
    }
}
