//! `Schedule`: when each lease is renewed again (`outcomes.rs`), and which leases are renewed in one batch
//! (`batches.rs`). `LeaseState::next_renewal` says when it is renewed first. Pure: times come in as arguments.
//!
//! Invariants:
//!
//! - A lease is in one state: planned for later, ready to be sent, sent in a batch, waiting to be sent again, or final.
//!   A final lease is not renewed any more, because it is live until its maximum hold is over.
//! - A renewal is due after a third of the ttl. A batch also renews leases that will be due soon, if it has room. So
//!   after a while leases that were acquired at different moments are renewed together, and need as few commands as
//!   leases that were acquired at the same moment. If one batch is not enough, the batches are sent at different times,
//!   so that they do not reach the store all at once.
//! - Of the leases that are ready, the one with the nearest deadline is sent first. A lease whose deadline will pass
//!   before an answer can come is sent last. So a store that cannot renew all leases in time renews as many as it can,
//!   instead of renewing each too late.
//! - Without counting repeats, no more batches are under way than the [window](SendWindow) of the store allows. One
//!   more batch may be sent to find out whether a silent store answers again. So the number of requests to a slow or
//!   unreachable store does not grow.
//! - A batch without an answer after a sixth of the ttl is split, and each of its parts is sent once more. Such repeats
//!   have a limit of their own. If one lease hangs in the server, because a transaction has its document, it is in a
//!   batch of its own after three splits. The unanswered batch still counts as under way, for at most a ttl. It does
//!   not count any more when two batches that were sent later have ended, because then this batch hangs, and the store
//!   is not slow.
//! - Leases with long ttls do not delay one with a short ttl: for a lease that is due, any batch hangs that was sent
//!   more than a sixth of that lease's ttl ago.

mod batches;
mod outcomes;
#[cfg(test)]
mod overload_tests;
mod send_window;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    time::Duration,
};

use tokio::time::Instant;

use self::send_window::SendWindow;
use crate::{
    lease_state::{LeaseNumber, timing},
    telemetry::KeptLeases,
};

/// The number of a batch. A batch that is sent later has a greater one.
pub(crate) type BatchId = u64;

/// The leases that are kept alive. `T` is what the caller gets back for each lease.
#[derive(Debug)]
pub(crate) struct Schedule<T> {
    leases: BTreeMap<LeaseNumber, ScheduledLease<T>>,
    /// The leases that are renewed later, by the time when they are due. Also the final leases, by their deadline, at
    /// which their loss is reported.
    planned: BTreeSet<(Instant, LeaseNumber)>,
    /// The leases that are due and wait until a batch may be sent, by their deadline. There may be thousands.
    ready: BTreeSet<(Instant, LeaseNumber)>,
    /// The same leases by their ttl.
    ready_by_ttl: BTreeSet<(Duration, LeaseNumber)>,
    /// The parts of unanswered batches that are to be sent once more.
    repeats: VecDeque<Vec<LeaseNumber>>,
    /// The batches that were sent and not answered, in the order in which they were sent.
    under_way: BTreeMap<BatchId, InFlightBatch>,
    last_batch: BatchId,
    window: SendWindow,
}

#[derive(Debug)]
struct ScheduledLease<T> {
    lease: T,
    ttl: Duration,
    due: Instant,
    /// When the lease is lost unless it is renewed before.
    deadline: Instant,
    state: RenewalState,
    /// How many renewals of the lease have failed in a row.
    errors: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RenewalState {
    Planned,
    Ready,
    Sent(BatchId),
    Repeat,
    /// The lease is not renewed any more. It stays in the schedule until its deadline.
    Final,
}

/// A batch that was sent.
#[derive(Debug)]
struct InFlightBatch {
    leases: Vec<LeaseNumber>,
    sent: Instant,
    /// The shortest ttl among the leases.
    ttl: Duration,
    is_repeat: bool,
    /// Whether the batch was not answered in time, so that its leases are sent once more.
    is_overdue: bool,
    /// How many batches were sent after this one and have ended.
    overtaken: u32,
}

impl InFlightBatch {
    fn overdue_at(&self) -> Instant {
        self.sent + timing::response_timeout(self.ttl)
    }

    /// When the batch is overdue, or else when it no longer counts as under way, even if it was not answered.
    fn changes_at(&self) -> Instant {
        if self.is_overdue {
            self.sent + self.ttl
        } else {
            self.overdue_at()
        }
    }

    /// Until when a lease of this ttl that is due waits for the answer. A batch of leases with a long ttl may be
    /// answered later, but a lease with a short ttl cannot wait for that.
    fn waited_for_until(&self, ttl: Duration) -> Instant {
        self.sent + timing::response_timeout(self.ttl.min(ttl))
    }
}

/// What is due now.
pub(crate) enum Due<T> {
    /// The last renewal of this lease was not answered in time.
    Overdue(T),
    /// The deadline of this lease has passed. It is not in the schedule any more.
    Expired(T),
    Send(Batch<T>),
}

/// Leases that are renewed together.
#[derive(Debug)]
pub(crate) struct Batch<T> {
    pub(crate) id: BatchId,
    pub(crate) leases: Vec<(LeaseNumber, T)>,
    /// How late the renewal is of the lease that was due first.
    pub(crate) lag: Duration,
}

/// The outcome of a renewal that has not failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RenewalOutcome {
    /// The lease is live until this deadline.
    Renewed(Instant),
    /// The lease is live until this deadline, which no renewal can extend.
    Final(Instant),
    /// The lease is lost.
    Lost,
}

impl<T: Clone> Schedule<T> {
    pub(crate) fn new() -> Self {
        Self {
            leases: BTreeMap::new(),
            planned: BTreeSet::new(),
            ready: BTreeSet::new(),
            ready_by_ttl: BTreeSet::new(),
            repeats: VecDeque::new(),
            under_way: BTreeMap::new(),
            last_batch: 0,
            window: SendWindow::new(),
        }
    }

    /// Adds a lease, or replaces it. `due` is when it is first renewed, and `deadline` is when it is lost unless it is
    /// renewed. A lease that is due at its deadline is final.
    pub(crate) fn insert(
        &mut self,
        id: LeaseNumber,
        lease: T,
        ttl: Duration,
        due: Instant,
        deadline: Instant,
    ) {
        self.remove(id);
        let entry = ScheduledLease {
            lease,
            ttl,
            due,
            deadline,
            state: if due < deadline {
                RenewalState::Planned
            } else {
                RenewalState::Final
            },
            errors: 0,
        };
        self.planned.insert((due, id));
        self.leases.insert(id, entry);
    }

    /// Removes a lease. `None` if it is not in the schedule.
    pub(crate) fn remove(&mut self, id: LeaseNumber) -> Option<T> {
        let entry = self.leases.remove(&id)?;
        self.planned.remove(&(entry.due, id));
        self.ready.remove(&(entry.deadline, id));
        self.ready_by_ttl.remove(&(entry.ttl, id));
        Some(entry.lease)
    }

    /// When to [take what is due](Self::take_due) next, unless an answer comes before. `None` if nothing will be due.
    pub(crate) fn next(&self, now: Instant) -> Option<Instant> {
        if self.longest_first_wait(now).is_some() || self.next_repeat(now).is_some() {
            return Some(now);
        }
        let batches = self.under_way.values();
        let slots = self.shortest_waiting().and_then(|ttl| {
            let slots = batches.clone().map(|batch| batch.waited_for_until(ttl));
            slots.filter(|at| *at > now).min()
        });
        let changes = batches.map(InFlightBatch::changes_at);
        let late = self.late_at().filter(|at| *at > now);
        [
            self.planned.first().map(|(due, _)| *due),
            self.ready.first().map(|(deadline, _)| *deadline),
            changes.min(),
            slots,
            late,
        ]
        .into_iter()
        .flatten()
        .min()
    }

    /// Whether renewals that are due have waited so long that the store, or this process, counts as overloaded.
    pub(crate) fn is_late(&self, now: Instant) -> bool {
        self.late_at().is_some_and(|at| at <= now)
    }

    /// How many leases are kept alive.
    pub(crate) fn len(&self) -> usize {
        self.leases.len()
    }

    /// How long the lease that is sent next has been due. Zero if no lease waits.
    pub(crate) fn lag(&self, now: Instant) -> Duration {
        let due = self.waiting().next().map_or(now, |entry| entry.due);
        now.saturating_duration_since(due)
    }

    /// Counts the leases. This reads every lease.
    pub(crate) fn load(&self, now: Instant) -> KeptLeases {
        let at_risk = |entry: &&ScheduledLease<T>| entry.is_at_risk(now);
        KeptLeases {
            kept: self.leases.len(),
            waiting: self.ready.len(),
            at_risk: self.leases.values().filter(at_risk).count(),
        }
    }

    /// The leases that are due, wait until a batch may be sent, and have less than a third of their ttl left.
    pub(crate) fn at_risk_and_waiting(&self, now: Instant) -> impl Iterator<Item = &T> {
        self.waiting()
            .filter(move |entry| entry.is_at_risk(now))
            .map(|entry| &entry.lease)
    }

    /// The leases that are ready, the nearest deadline first.
    fn waiting(&self) -> impl Iterator<Item = &ScheduledLease<T>> {
        self.ready.iter().filter_map(|(_, id)| self.leases.get(id))
    }

    fn late_at(&self) -> Option<Instant> {
        let entry = self.waiting().next()?;
        Some(entry.due + timing::slack(entry.ttl))
    }

    fn set_state(&mut self, id: LeaseNumber, state: RenewalState, due: Instant) {
        let Some(entry) = self.leases.get_mut(&id) else {
            return;
        };
        self.planned.remove(&(entry.due, id));
        self.ready.remove(&(entry.deadline, id));
        self.ready_by_ttl.remove(&(entry.ttl, id));
        (entry.state, entry.due) = (state, due);
        match state {
            RenewalState::Planned | RenewalState::Final => {
                self.planned.insert((due, id));
            }
            RenewalState::Ready => {
                self.ready.insert((entry.deadline, id));
                self.ready_by_ttl.insert((entry.ttl, id));
            }
            RenewalState::Sent(_) | RenewalState::Repeat => {}
        }
    }
}

impl<T> ScheduledLease<T> {
    fn is_at_risk(&self, now: Instant) -> bool {
        self.state != RenewalState::Final
            && self.deadline.saturating_duration_since(now) < timing::risk_margin(self.ttl)
    }
}
