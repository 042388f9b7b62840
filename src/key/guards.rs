//! The guards of the tasks: what becomes of one, how it goes, and how a lease goes back with its last guard.

use std::{sync::Arc, time::Duration};

use futures::{FutureExt, future::BoxFuture};
use tokio::{sync::oneshot, time::Instant};

use super::{
    call::PolledCall,
    cell::Granted,
    effect::{Departed, Departure, Effect, Event, Report},
    holding::{Conversion, Holding},
    keys::Keys,
};
use crate::{
    lease_state::{Ended, EndedBefore, LeaseState},
    model::{Error, Held, Key, LeaseId, LossReason},
    release::{PendingRelease, Released},
    telemetry::StayEndReason,
};

/// The outcome of a release.
pub(crate) type ReleaseOutcome = BoxFuture<'static, Result<Released, Error>>;

impl Keys {
    /// Adds the lease of a ticket, and takes its only guard. `None` if this process is about to release that lease.
    pub(crate) fn resume(&self, lease: LeaseState) -> Result<Option<Granted>, Error> {
        let lease = Arc::new(lease);
        let key = lease.key().clone();
        let changed = self.change(&key, true, |state, now, _| {
            if state.facts.is_closing {
                return Err(self.lifecycle.why_closed());
            }
            Ok(state.resume(&lease, now))
        });
        self.carry_out(&key, changed).unwrap_or(Ok(None))
    }

    /// Keeps a guard, and the lease that it is under, alive.
    pub(crate) fn keep(&self, guard: &Arc<LeaseState>) -> Result<(), Error> {
        let stored = guard.stored();
        if !stored.is_kept() {
            self.renewals.keep(stored);
        }
        self.extend(guard, true)
    }

    /// Extends a guard by its ttl, or keeps it alive for as long as its lease.
    ///
    /// The lock makes sure that a guard which has outlived its ttl, so that others may have the key, is not revived.
    pub(crate) fn extend(&self, guard: &Arc<LeaseState>, keeps_alive: bool) -> Result<(), Error> {
        let now = Instant::now();
        let is_extended = self.update(guard.key(), |state, now, _| {
            state.has_guard(guard) && guard.extend(keeps_alive, now)
        });
        if is_extended == Some(true) {
            return Ok(());
        }
        let reason = guard.loss(now).unwrap_or(LossReason::Expired);
        Err(guard.lost_error(guard.lose(reason)))
    }

    /// Does not keep a guard alive any more. It ends after its ttl.
    pub(crate) fn keep_no_longer(&self, guard: &Arc<LeaseState>) {
        guard.shorten(Instant::now());
        if !self.stays(guard) {
            guard.stored().keep(false);
            self.renewals.forget(guard.stored().number());
        }
    }

    /// Whether the lease of a guard stays with this process.
    pub(crate) fn stays(&self, guard: &LeaseState) -> bool {
        self.is_held(guard, Holding::stays)
    }

    /// Sets the maximum hold of a guard, counted from this instant. A lease that does not stay has it too, and is not
    /// renewed beyond it.
    pub(crate) fn set_max_hold(&self, guard: &Arc<LeaseState>, max_hold: Duration, from: Instant) {
        guard.set_max_hold(Some(max_hold), from);
        if !self.stays(guard) {
            guard.stored().set_max_hold(Some(max_hold), from);
        }
        // The key looks at its times again, because one has changed.
        self.update(guard.key(), |_, _, _| ());
    }

    /// Gives up a guard. If its lease goes back with it, the release begins before any event is made, and this returns its
    /// outcome. The caller polls the release by `call`, unless another task depends on it; without a `call` it is in the
    /// background. Fails if another call has ended the lease.
    pub(crate) fn depart(
        &self,
        guard: &Arc<LeaseState>,
        how: Departure,
        now: Instant,
        call: Option<PolledCall>,
    ) -> (Departed, Result<Option<ReleaseOutcome>, EndedBefore>) {
        let key = guard.key();
        let changed = self.change(key, false, |state, now, out| {
            if let Departure::Done(done) = how
                && state.has_guard(guard)
            {
                // Not before: a close that releases the lease does not write the tick as done.
                let stored = guard.stored();
                stored.set_release_terms(|terms| terms.done = Some(done));
            }
            let departed = state.depart((guard.id(), guard.number()), how, now, out);
            if let Some(call) = call.as_ref().filter(|_| departed.was_there)
                && !state.poll_release_here(guard.id(), call)
            {
                // A task polls it from its beginning, which comes before what else follows.
                call.leave();
            }
            departed
        });
        let Some((departed, mut effects)) = changed else {
            return (Departed::default(), Ok(None));
        };
        let goes_back =
            |effect: &Effect| matches!(effect, Effect::GiveBack(lease) if lease.id() == guard.id());
        let at = effects.iter().position(goes_back);
        let begun = match at.map(|at| effects.remove(at)) {
            Some(Effect::GiveBack(lease)) => self.end(&lease, now).map(|(pending, ended)| {
                effects.push(Effect::Report(Report::Ended(lease, ended)));
                Some(self.release(call, pending))
            }),
            _ => Ok(None),
        };
        self.carry_out(key, Some(((), effects)));
        (departed, begun)
    }

    /// Ends the turn, or the stay, of the lease that a guard is under. A guard that is lost is under none.
    pub(crate) fn stop_serving(&self, guard: &Arc<LeaseState>, why: StayEndReason) {
        self.update(guard.key(), |state, now, out| {
            if state.has_guard(guard) && guard.is_live(now) {
                let event = Event::StopServing(Some(guard.id()), why);
                state.step(event, now, out);
            }
        });
    }

    /// Records that the lease of a guard is about to be converted. From now on it serves nobody. Returns the other guards
    /// that are under it.
    pub(crate) fn begin_to_convert(&self, guard: &Arc<LeaseState>) -> Option<Held> {
        self.update(guard.key(), |state, _, out| {
            state.convert(guard.id(), Conversion::Begun, out);
        });
        self.stop_serving(guard, StayEndReason::DocumentNeeded);
        self.others(guard)
    }

    /// Records that the store is asked to convert the lease of a guard.
    pub(crate) fn conversion_sent(&self, guard: &Arc<LeaseState>) {
        self.update(guard.key(), |state, _, out| {
            state.convert(guard.id(), Conversion::Sent, out);
        });
    }

    /// Whether the lease of a guard has the mode that this process knows: it was granted to stay, so that a task looks at
    /// it, and the store was not asked to convert it.
    pub(crate) fn knows_mode(&self, guard: &LeaseState) -> bool {
        let knows = |it: &Holding| it.is_looked_at && it.conversion != Conversion::Sent;
        self.is_held(guard, knows)
    }

    /// Whether the lease of a guard is held, and this is true of it.
    fn is_held(&self, guard: &LeaseState, is_true: impl FnOnce(&Holding) -> bool) -> bool {
        let is_held = self.update(guard.key(), |state, _, _| {
            state.holding(guard.id()).is_some_and(is_true)
        });
        is_held.unwrap_or(false)
    }

    /// The other guards than this one that are under its lease. `None` if there are none.
    pub(crate) fn others(&self, guard: &Arc<LeaseState>) -> Option<Held> {
        let now = Instant::now();
        let stored = guard.stored();
        let at = stored.server_time(now);
        let others = stored.guards().into_iter();
        let others =
            others.filter(|it| it.number() != guard.number() && it.is_live(now) && !it.has_ended());
        let holders: Vec<_> = others.map(|it| it.shown(at, now)).collect();
        (!holders.is_empty()).then(|| Held::new(guard.key().clone(), holders, at))
    }

    /// Ends leases that somebody has taken away in the store: the one with this id, or any of the key.
    pub(crate) fn ended_here(&self, key: &Key, lease: Option<LeaseId>) {
        let ended = self.update(key, |state, _, _| {
            state.facts.is_contended = true;
            let leases = state.leases().cloned();
            let leases = leases.filter(|it| lease.is_none_or(|lease| it.id() == lease));
            let is_looked_at =
                |it: &LeaseState| state.holding(it.id()).is_some_and(|it| it.is_looked_at);
            leases.map(|it| (is_looked_at(&it), it)).collect::<Vec<_>>()
        });
        for (stays, stored) in ended.into_iter().flatten() {
            // The guards of other leases learn of it by their next renewal.
            if lease.is_some() && stays {
                stored.lose(LossReason::TakenOver);
            }
            let event = Event::StopServing(Some(stored.id()), StayEndReason::Evicted);
            self.step(key, event);
        }
    }

    /// Records that the key is free, or can be shared, by something that this process has done.
    pub(crate) fn freed_here(&self, key: &Key) {
        self.step(key, Event::FreedHere);
        self.streams.followers.tell(key);
    }

    /// Ends a lease. The caller carries out its release, and reports its end when the release has begun. Fails if another
    /// call has ended it.
    pub(super) fn end(
        &self,
        lease: &Arc<LeaseState>,
        now: Instant,
    ) -> Result<(PendingRelease, Ended), EndedBefore> {
        // A close waits until the token is dropped.
        let at_work = self.lifecycle.at_work.token();
        if lease.is_kept() {
            self.renewals.forget(lease.number());
        }
        let ended = lease.end(now)?;
        let pending = PendingRelease::new(lease.clone(), self.releaser.clone(), at_work);
        Ok((pending, ended))
    }

    /// Releases a lease in the background.
    pub(super) fn abandon(&self, lease: &Arc<LeaseState>) {
        match self.end(lease, Instant::now()) {
            Ok((pending, ended)) => {
                self.lifecycle.spawn(pending.settle());
                lease.report_end(ended);
            }
            // Another call has ended it, and nothing is left to release.
            Err(EndedBefore) => self.step(lease.key(), Event::Released(lease.id())),
        }
    }

    /// Gives up a lease without a release.
    pub(super) fn detach(&self, lease: &LeaseState) {
        if lease.is_kept() {
            self.renewals.forget(lease.number());
        }
        if let Ok(ended) = lease.end(Instant::now()) {
            lease.report_end(ended);
        }
    }

    /// Carries out a release. If the returned future is dropped, the release goes on in the background, and so it does
    /// without a `call`.
    fn release(&self, call: Option<PolledCall>, pending: PendingRelease) -> ReleaseOutcome {
        let Some(call) = call else {
            self.lifecycle.spawn(pending.settle());
            return async { Err(Error::NoRuntime) }.boxed();
        };
        let (reply, outcome) = oneshot::channel();
        let lifecycle = self.lifecycle.clone();
        let again = move |pending: PendingRelease| lifecycle.spawn(pending.settle());
        call.begin(pending.release_with_caller(reply, again));
        call.outcome(outcome).map(|told| told?).boxed()
    }
}
