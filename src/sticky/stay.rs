//! `Stay`: a lease that stays with this process, and the leases that are granted from memory under it.
//!
//! Invariants:
//!
//! - The leases under it exclude each other as the store would have it. They are granted in the order in which their
//!   tasks asked: a semaphore is the queue. An exclusive lease takes all of its permits, a shared one takes one.
//! - Fences rise in the order of the grants. Only a reentrant lease has the fence of the lease that it enters. It
//!   shares the units of that lease, which come back when both are given up. Shared leases under a shared lease show no
//!   fence.
//! - After its end nothing is granted under it but reentrant leases, which enter one that is there already. The lease
//!   in the store is sent back once, when no lease under it is left.
//! - No lease state is dropped, and no event is made, while the lock is held.

mod enter;
mod state;

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{sync::Semaphore, time::Instant};

pub(crate) use self::state::Left;
use self::state::{End, StayState, StoredConversion};
use super::{
    fences::Fences,
    holders::{Holders, lose},
};
use crate::{
    lease_state::{BackingLease, LeaseNumber, LeaseState},
    model::{Error, Held, Key, LossReason, Mode},
};

/// How many shared leases are granted from memory at the same time, at most. Each takes one of these units of the
/// semaphore, and an exclusive lease takes all.
const UNITS: u32 = 1_000;

/// For how long a lease stays while a task that was given a permit of the semaphore does not use it. The future of such
/// a task is not polled any more, and blocks all tasks behind it.
const UNCLAIMED: Duration = Duration::from_millis(500);

/// A lease that stays with this process.
#[derive(Debug)]
pub(crate) struct Stay {
    behind: BackingLease,
    units: Arc<Semaphore>,
    /// For how long the lease stays although no task uses the key.
    idle: Duration,
    state: Mutex<StayState>,
}

/// The answer to an acquire.
#[derive(Debug)]
pub(crate) enum LocalAnswer {
    Granted(Arc<LeaseState>),
    /// Other tasks of this process have the key, or come first.
    Busy(Held),
    /// The lease cannot be granted from memory: the stay has ended, or the request does not fit under it. The store has
    /// to be asked.
    StoreNeeded,
}

/// How a lease under the stay is given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Departure {
    Released,
    /// The lease in the store is not released after it.
    Detached,
    /// As [`Detached`](Departure::Detached), for the process that gets the ticket of the lease in the store. But if
    /// other leases are under the stay, the lease in the store is theirs, and this one is released.
    Ticketed,
}

/// What came of a lease under the stay that was given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "the lease in the store may be due"]
pub(crate) struct Departed {
    /// What the caller does with the lease in the store.
    pub(crate) left: Left,
    /// Whether the lease was still there. It is gone if it had expired, and the key may have been granted again.
    pub(crate) was_there: bool,
    /// Whether the lease in the store is not released, as the caller asked.
    pub(crate) detaches: bool,
}

/// What a close does with the lease in the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Closing {
    /// It releases the lease.
    IsReleased,
    /// The lease was detached beside other leases, so it is not released.
    IsDetached,
}

impl Stay {
    /// The lease in the store stays from now on. An exclusive one has these fences.
    pub(crate) fn begin(
        behind: BackingLease,
        fences: Option<Fences>,
        idle: Duration,
        now: Instant,
    ) -> Arc<Self> {
        Arc::new(Self {
            behind,
            units: Arc::new(Semaphore::new(UNITS as usize)),
            idle,
            state: Mutex::new(StayState {
                fences,
                holders: Holders::none(now),
                end: End::None,
                conversion: StoredConversion::None,
                is_closed: false,
            }),
        })
    }

    pub(crate) fn key(&self) -> &Key {
        self.behind.lease().key()
    }

    /// The lease in the store.
    pub(crate) fn stored(&self) -> &Arc<LeaseState> {
        self.behind.lease()
    }

    /// Whether the lease in the store is live for the leases that were granted from memory under it.
    pub(crate) fn is_live(&self, now: Instant) -> bool {
        self.behind.is_live(now)
    }

    /// Extends a lease under the stay by its ttl, or keeps it alive for as long as the lease in the store.
    ///
    /// The lock makes sure that a lease which has [expired](Self::drop_expired) meanwhile is not revived.
    pub(crate) fn extend(&self, lease: &LeaseState, keeps_alive: bool) -> Result<(), Error> {
        let state = self.state.lock();
        let is_here = state.holders.has(lease.number());
        let now = Instant::now();
        let is_extended = if !is_here {
            false
        } else if keeps_alive {
            lease.keep_local(now)
        } else {
            lease.extend(now)
        };
        drop(state);
        if is_extended {
            return Ok(());
        }
        let reason = lease.loss(now).unwrap_or(LossReason::Expired);
        Err(lease.lost_error(lease.lose(reason)))
    }

    /// Records that a lease under the stay is given up.
    pub(crate) fn leave(&self, lease: LeaseNumber, how: Departure, now: Instant) -> Departed {
        let mut state = self.state.lock();
        let gone = state.holders.remove(lease, now);
        // A holder that has outlived its ttl does not count.
        let expired = state.holders.take_expired(now);
        let is_due = match how {
            Departure::Released => false,
            Departure::Detached => true,
            Departure::Ticketed => state.holders.is_empty(),
        };
        let detaches = is_due && gone.is_some() && !state.is_closed && state.end != End::Sent;
        if detaches {
            state.end = End::DueDetached;
        }
        let left = state.take_due();
        drop(state);
        if detaches {
            self.units.close();
        }
        let was_there = gone.is_some();
        drop(gone);
        // A panic in the event of another lease must not keep the caller from what it does with the lease in the store.
        let _ = catch_unwind(AssertUnwindSafe(|| lose(expired, now)));
        Departed {
            left,
            was_there,
            detaches,
        }
    }

    /// Records that the client closes, and releases the lease in the store itself, unless it was detached before. From
    /// now on it cannot be detached.
    pub(crate) fn close(&self) -> Closing {
        let mut state = self.state.lock();
        state.is_closed = true;
        match state.end {
            End::DueDetached => Closing::IsDetached,
            End::None | End::Due | End::Sent => Closing::IsReleased,
        }
    }

    /// Ends the stay: from now on only an owner that has the key is granted it from memory, by a reentrant request.
    /// Returns what the caller does with the lease in the store now.
    pub(crate) fn end(&self) -> Left {
        let mut state = self.state.lock();
        if state.end == End::None {
            state.end = End::Due;
        }
        let left = state.take_due();
        drop(state);
        self.units.close();
        left
    }

    /// After the end: drops the holders that have outlived their ttl, and returns what the caller does with the lease
    /// in the store now.
    pub(crate) fn settle(&self, now: Instant) -> Left {
        self.drop_expired(now);
        self.state.lock().take_due()
    }

    /// Records that the lease in the store is converted for one of the holders: from now on not even a reentrant lease
    /// is granted here.
    pub(crate) fn begin_to_convert(&self) {
        self.record_conversion(StoredConversion::Begun);
    }

    /// Records that the store is asked to convert the lease.
    pub(crate) fn conversion_sent(&self) {
        self.record_conversion(StoredConversion::Sent);
    }

    fn record_conversion(&self, conversion: StoredConversion) {
        let mut state = self.state.lock();
        state.conversion = state.conversion.max(conversion);
    }

    /// Records that the lease in the store is shared. None of the leases under it is exclusive from now on.
    pub(crate) fn make_shared(&self) {
        let state = self.state.lock();
        let leases: Vec<_> = state.holders.leases().cloned().collect();
        drop(state);
        let share = |lease: &Arc<LeaseState>| lease.converted_to(Mode::Shared, lease.fence());
        leases.iter().for_each(share);
    }

    /// Whether the lease in the store may have another mode than its holder, because the store was asked to convert it.
    pub(crate) fn may_be_converted(&self) -> bool {
        self.state.lock().conversion == StoredConversion::Sent
    }

    /// Whether the lease was sent back.
    pub(crate) fn is_settled(&self) -> bool {
        self.state.lock().end == End::Sent
    }

    /// Whether no task has used the key for as long as it was to stay, a task does not use the units that it was given,
    /// or the lease in the store is lost.
    pub(crate) fn is_over(&self, now: Instant) -> bool {
        let state = self.state.lock();
        let is_taken = self.units.available_permits() < UNITS as usize;
        let longest = if is_taken {
            UNCLAIMED.min(self.idle)
        } else {
            self.idle
        };
        let since = state.holders.idle_since();
        let has_idled = since.is_some_and(|at| now.saturating_duration_since(at) >= longest);
        has_idled || !self.is_live(now)
    }

    /// Reports the losses of leases under the stay whose holders have not looked.
    pub(crate) fn check_losses(&self) {
        let state = self.state.lock();
        let leases: Vec<_> = state.holders.leases().cloned().collect();
        drop(state);
        leases.iter().for_each(|lease| lease.check_loss());
    }

    /// For how long the key stays although no task uses it.
    pub(crate) fn idle(&self) -> Duration {
        self.idle
    }

    /// Since when no task has used the key. `None` while one does.
    pub(crate) fn idle_since(&self) -> Option<Instant> {
        self.state.lock().holders.idle_since()
    }

    /// Whether a lease under the stay is live, which a reentrant one could enter.
    pub(super) fn is_in_use(&self, now: Instant) -> bool {
        self.state.lock().holders.newest(now).is_some()
    }

    /// The other leases than this one that are under the stay. `None` if there are none.
    pub(crate) fn others(&self, lease: LeaseNumber, now: Instant) -> Option<Held> {
        let held = self.held_by(now, |it| it.number() != lease && it.is_live(now));
        (!held.holders().is_empty()).then_some(held)
    }

    /// Drops the holders that have outlived their ttl, so that others can have the key.
    pub(crate) fn drop_expired(&self, now: Instant) {
        let mut state = self.state.lock();
        let expired = state.holders.take_expired(now);
        drop(state);
        lose(expired, now);
    }

    /// When the first of the holders outlives its ttl, unless it is renewed. `None` without holders.
    pub(crate) fn next_expiry(&self, now: Instant) -> Option<Instant> {
        self.state.lock().holders.next_expiry(now)
    }

    /// The tasks of this process that have the key, as an answer of the store would show them.
    pub(crate) fn held(&self, now: Instant) -> Held {
        self.held_by(now, |_| true)
    }

    fn held_by(&self, now: Instant, which: impl Fn(&LeaseState) -> bool) -> Held {
        let state = self.state.lock();
        let at = self.stored().server_time(now);
        let leases = state.holders.leases().filter(|it| which(it));
        let holders = leases.map(|it| it.shown(at, now)).collect();
        Held::new(self.key().clone(), holders, at)
    }
}

#[cfg(test)]
mod tests;
