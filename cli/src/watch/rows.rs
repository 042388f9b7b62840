//! The rows of the screen: holders and the processes that wait, in an order, compared with the look before. This file is
//! pure.

use std::{cmp::Reverse, collections::BTreeSet, sync::Arc};

use leasehold::{Fence, Key, LockState, store::LeaseId};

use crate::state::{self, Row};

/// A row.
pub struct Entry {
    pub key: Key,
    pub owner: Arc<str>,
    pub of: Of,
    pub row: Row,
    /// Whether the look before did not find it.
    pub is_new: bool,
}

/// What a row is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Of {
    Lease(LeaseId, Fence),
    /// A process that waits.
    Place(LeaseId),
}

/// What tells rows apart: the key, whether it is about a process that waits, and the id of the lease or the place.
pub type Id = (Key, bool, LeaseId);

/// A lease, by what a question about it names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lease {
    pub key: Key,
    pub id: LeaseId,
    pub owner: Arc<str>,
    pub fence: Fence,
}

/// The order of the keys. The rows of a key stay together: its holders, the oldest first, and those that wait, in the
/// order in which they get the key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    #[default]
    Key,
    /// Who has held a key for longest comes first.
    Age,
    /// The lease that expires first comes first.
    Expiry,
    /// The key for which most processes wait comes first.
    Waiting,
}

impl Order {
    pub fn next(self) -> Self {
        match self {
            Self::Key => Self::Age,
            Self::Age => Self::Expiry,
            Self::Expiry => Self::Waiting,
            Self::Waiting => Self::Key,
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::Key => "key",
            Self::Age => "age",
            Self::Expiry => "expiry",
            Self::Waiting => "waiting",
        }
    }

    pub fn sort(self, locks: &mut [LockState]) {
        locks.sort_by(|a, b| a.key.cmp(&b.key));
        let acquired = |lock: &LockState| lock.holders.iter().map(|it| it.acquired_at).min();
        let expires = |lock: &LockState| lock.holders.iter().map(|it| it.expires_at).min();
        // These sorts keep the order of the keys among equals.
        match self {
            Self::Key => {}
            Self::Age => locks.sort_by_key(|lock| (lock.is_free(), acquired(lock))),
            Self::Expiry => locks.sort_by_key(|lock| (lock.is_free(), expires(lock))),
            Self::Waiting => locks.sort_by_key(|lock| Reverse(lock.waiters.len())),
        }
    }
}

impl Entry {
    pub fn id(&self) -> Id {
        match self.of {
            Of::Lease(id, _) => (self.key.clone(), false, id),
            Of::Place(id) => (self.key.clone(), true, id),
        }
    }

    /// The lease that this row is about, if it is not about a process that waits.
    pub fn lease(&self) -> Option<Lease> {
        match self.of {
            Of::Lease(id, fence) => Some(Lease {
                key: self.key.clone(),
                id,
                owner: self.owner.clone(),
                fence,
            }),
            Of::Place(_) => None,
        }
    }
}

/// The rows of these locks. Without a look before, none is new.
pub fn entries(locks: &[LockState], before: Option<&BTreeSet<Id>>) -> Vec<Entry> {
    let mut entries: Vec<_> = locks.iter().flat_map(of_lock).collect();
    if let Some(before) = before {
        for entry in &mut entries {
            entry.is_new = !before.contains(&entry.id());
        }
    }
    entries
}

fn of_lock(lock: &LockState) -> impl Iterator<Item = Entry> {
    let entry = |owner: &Arc<str>, of, row| Entry {
        key: lock.key.clone(),
        owner: owner.clone(),
        of,
        row,
        is_new: false,
    };
    let holders = lock.holders.iter().map(move |holder| {
        let of = Of::Lease(holder.lease, holder.fence);
        entry(&holder.owner, of, state::row(lock, holder))
    });
    let waiters = (1..).zip(&lock.waiters).map(move |(number, place)| {
        let row = state::waiting_row(lock, place, number);
        entry(&place.owner, Of::Place(place.waiter), row)
    });
    holders.chain(waiters)
}

/// The entries of the look before that this one does not find any more. A process that waited and now holds the key is
/// not gone.
pub fn gone(before: Vec<Entry>, now: &[Entry]) -> Vec<Entry> {
    let now: BTreeSet<Id> = now.iter().map(Entry::id).collect();
    let is_gone = |entry: &Entry| {
        let (key, _, id) = entry.id();
        !now.contains(&entry.id()) && !now.contains(&(key, false, id))
    };
    before.into_iter().filter(is_gone).collect()
}
