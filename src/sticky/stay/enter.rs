//! How a task acquires a key from memory: at once or behind others, or as an owner that enters again.

use std::{pin::pin, sync::Arc};

use tokio::{
    sync::OwnedSemaphorePermit,
    time::{Instant, timeout_at},
};

use super::{
    LocalAnswer, Stay, UNCLAIMED, UNITS,
    state::{End, StoredConversion},
};
use crate::{
    messages::AcquireRequest,
    model::{Held, Mode},
    telemetry::Waiting,
};

impl Stay {
    /// Grants the key if no task has it or waits for it.
    pub(crate) fn try_enter(&self, request: AcquireRequest, now: Instant) -> LocalAnswer {
        if let Some(entry) = self.reenter(&request, now) {
            return entry;
        }
        let take = || {
            self.units
                .clone()
                .try_acquire_many_owned(units_of(&request))
        };
        let units = take().or_else(|_| {
            self.drop_expired(now);
            take()
        });
        match units {
            Ok(units) => self.grant(request, units, now),
            Err(_) if self.units.is_closed() => LocalAnswer::StoreNeeded,
            Err(_) => LocalAnswer::Busy(self.held(now)),
        }
    }

    /// Waits for the key behind the tasks that wait already, for no longer than `until`.
    ///
    /// Cancel safe: a task that does not wait any more leaves the queue.
    pub(crate) async fn enter(
        &self,
        request: AcquireRequest,
        until: Option<Instant>,
    ) -> LocalAnswer {
        let request = match self.try_enter(request.clone(), Instant::now()) {
            LocalAnswer::Busy(_) => request,
            entry => return entry,
        };
        match self.wait_for_units(units_of(&request), until).await {
            Ok(units) => self.grant(request, units, Instant::now()),
            Err(entry) => entry,
        }
    }

    /// Waits for the turn of a task that the lease in the store is in the way of: until no task has the key, behind the
    /// tasks that wait already, for no longer than `until`. No task is granted the key until the permit is dropped.
    /// `None` if the stay has ended.
    ///
    /// # Errors
    ///
    /// The tasks that have the key when the time is over.
    ///
    /// Cancel safe: a task that does not wait any more leaves the queue.
    pub(crate) async fn wait_for_turn(
        &self,
        until: Option<Instant>,
    ) -> Result<Option<OwnedSemaphorePermit>, Held> {
        if let Ok(units) = self.units.clone().try_acquire_many_owned(UNITS) {
            return Ok(Some(units));
        }
        match self.wait_for_units(UNITS, until).await {
            Ok(units) => Ok(Some(units)),
            Err(LocalAnswer::Busy(held)) => Err(held),
            Err(LocalAnswer::Granted(_) | LocalAnswer::StoreNeeded) => Ok(None),
        }
    }

    /// Waits for these units of the semaphore. The error says how a wait ends without them.
    async fn wait_for_units(
        &self,
        units: u32,
        until: Option<Instant>,
    ) -> Result<OwnedSemaphorePermit, LocalAnswer> {
        let _waiting = Waiting::begins(self.key(), None);
        let units = self.units.clone().acquire_many_owned(units);
        let mut units = pin!(units);
        loop {
            let now = Instant::now();
            // A holder that has outlived its ttl is not waited for.
            let expiry = self.next_expiry(now).into_iter();
            // The task of `lease/stay_task.rs` ends leases that have expired, but its runtime may not be driven any
            // more.
            let next = expiry.chain(until).fold(now + UNCLAIMED, Instant::min);
            let outcome = timeout_at(next, &mut units).await.ok();
            let now = Instant::now();
            match outcome {
                Some(Ok(units)) => return Ok(units),
                Some(Err(_)) => return Err(LocalAnswer::StoreNeeded),
                None if until.is_some_and(|until| now >= until) => {
                    return Err(LocalAnswer::Busy(self.held(now)));
                }
                None => {
                    self.drop_expired(now);
                    if self.is_over(now) {
                        return Err(LocalAnswer::StoreNeeded);
                    }
                }
            }
        }
    }

    /// Grants a reentrant lease under a lease of the same owner, with its fence and its units. `None` if there is no
    /// such lease. An exclusive lease under a shared one would need the units of all, so the store is asked for it.
    fn reenter(&self, request: &AcquireRequest, now: Instant) -> Option<LocalAnswer> {
        if !request.reentrant {
            return None;
        }
        let mut state = self.state.lock();
        if state.conversion != StoredConversion::None {
            return Some(LocalAnswer::StoreNeeded);
        }
        let newest = state.holders.newest(now)?;
        let (fence, units) = (newest.lease.fence(), newest.units.clone());
        if units.num_permits() < units_of(request) as usize {
            return Some(LocalAnswer::StoreNeeded);
        }
        let request = request.clone();
        Some(LocalAnswer::Granted(state.push(
            &self.behind,
            request,
            fence,
            units,
            now,
        )))
    }

    fn grant(
        &self,
        request: AcquireRequest,
        units: OwnedSemaphorePermit,
        now: Instant,
    ) -> LocalAnswer {
        // A lease from memory has at least half of its ttl. Nothing remains of a lease that is lost.
        let is_long_enough = self.behind.remaining(now) >= request.ttl / 2;
        let mut state = self.state.lock();
        let ends = state.conversion != StoredConversion::None || state.end != End::None;
        if ends || !is_long_enough {
            return LocalAnswer::StoreNeeded;
        }
        let fence = match &mut state.fences {
            Some(fences) => fences.take(),
            None => Some(self.stored().fence()),
        };
        let Some(fence) = fence else {
            return LocalAnswer::StoreNeeded;
        };
        let units = Arc::new(units);
        LocalAnswer::Granted(state.push(&self.behind, request, fence, units, now))
    }
}

/// How many units a lease takes.
fn units_of(request: &AcquireRequest) -> u32 {
    match request.access.mode() {
        Mode::Exclusive | Mode::Permits => UNITS,
        Mode::Shared => 1,
    }
}
