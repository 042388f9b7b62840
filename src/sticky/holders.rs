//! `Holders`: the leases that were granted from memory under one lease that stays. Pure: times come in as arguments.

use std::sync::Arc;

use tokio::{sync::OwnedSemaphorePermit, time::Instant};

use crate::{
    lease_state::{LeaseNumber, LeaseState},
    model::LossReason,
};

/// The leases under a stay, the newest at the end.
#[derive(Debug)]
pub(super) struct Holders {
    all: Vec<LocalHolder>,
    /// When the last of them left.
    idle_since: Instant,
}

/// A lease that was granted from memory.
#[derive(Debug)]
pub(super) struct LocalHolder {
    pub(super) lease: Arc<LeaseState>,
    /// Reentrant leases have the units of the lease that they enter. They come back with the last of them.
    pub(super) units: Arc<OwnedSemaphorePermit>,
}

impl Holders {
    pub(super) fn none(now: Instant) -> Self {
        Self {
            all: Vec::new(),
            idle_since: now,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Since when there are none. `None` while there are some.
    pub(super) fn idle_since(&self) -> Option<Instant> {
        self.is_empty().then_some(self.idle_since)
    }

    pub(super) fn push(&mut self, holder: LocalHolder) {
        self.all.push(holder);
    }

    /// Removes this lease. `None` if it is not there: it had expired.
    pub(super) fn remove(&mut self, lease: LeaseNumber, now: Instant) -> Option<LocalHolder> {
        let at = self.all.iter().position(|it| it.lease.number() == lease)?;
        self.idle_since = now;
        Some(self.all.remove(at))
    }

    /// Removes those that have outlived their ttl. The caller [records their loss](lose) when it holds no lock.
    pub(super) fn take_expired(&mut self, now: Instant) -> Vec<LocalHolder> {
        let expired = self.all.extract_if(.., |it| !it.lease.is_live(now));
        let expired: Vec<_> = expired.collect();
        if !expired.is_empty() {
            self.idle_since = now;
        }
        expired
    }

    /// The newest of those that are live, which a reentrant lease enters.
    pub(super) fn newest(&self, now: Instant) -> Option<&LocalHolder> {
        self.all.iter().rev().find(|it| it.lease.is_live(now))
    }

    pub(super) fn has(&self, lease: LeaseNumber) -> bool {
        self.leases().any(|it| it.number() == lease)
    }

    pub(super) fn leases(&self) -> impl Iterator<Item = &Arc<LeaseState>> {
        self.all.iter().map(|it| &it.lease)
    }

    /// When the first of them outlives its ttl, unless it is renewed. `None` if there are none.
    pub(super) fn next_expiry(&self, now: Instant) -> Option<Instant> {
        self.leases().map(|it| it.deadline().max(now)).min()
    }
}

/// Records the loss of holders that have outlived their ttl, and then gives their units to others. From now on their
/// leases stay lost, whatever the clocks show.
pub(super) fn lose(expired: Vec<LocalHolder>, now: Instant) {
    for LocalHolder { lease, .. } in &expired {
        lease.lose(lease.loss(now).unwrap_or(LossReason::Expired));
    }
}
