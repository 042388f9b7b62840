//! `ReadyLeases`: the leases that are due and wait until a batch may be sent.

use std::{
    collections::{BTreeMap, BTreeSet, btree_map::Entry},
    time::Duration,
};

use tokio::time::Instant;

use crate::lease_state::LeaseNumber;

/// The leases that are due and wait, by their deadline. There may be thousands, with a few different ttls.
#[derive(Debug, Default)]
pub(super) struct ReadyLeases {
    by_deadline: BTreeSet<(Instant, LeaseNumber)>,
    /// How many of the leases have each ttl.
    ttls: BTreeMap<Duration, usize>,
}

impl ReadyLeases {
    pub(super) fn insert(&mut self, deadline: Instant, lease: LeaseNumber, ttl: Duration) {
        if self.by_deadline.insert((deadline, lease)) {
            *self.ttls.entry(ttl).or_default() += 1;
        }
    }

    /// Removes a lease, if it waits.
    pub(super) fn remove(&mut self, deadline: Instant, lease: LeaseNumber, ttl: Duration) {
        if self.by_deadline.remove(&(deadline, lease))
            && let Entry::Occupied(mut number) = self.ttls.entry(ttl)
        {
            *number.get_mut() -= 1;
            if *number.get() == 0 {
                number.remove();
            }
        }
    }

    /// The lease with the nearest deadline.
    pub(super) fn first(&self) -> Option<(Instant, LeaseNumber)> {
        self.by_deadline.first().copied()
    }

    /// The shortest ttl of these leases.
    pub(super) fn shortest_ttl(&self) -> Option<Duration> {
        self.ttls.keys().next().copied()
    }

    pub(super) fn len(&self) -> usize {
        self.by_deadline.len()
    }

    /// The leases, the nearest deadline first.
    pub(super) fn iter(&self) -> impl Iterator<Item = (Instant, LeaseNumber)> {
        self.by_deadline.iter().copied()
    }
}
