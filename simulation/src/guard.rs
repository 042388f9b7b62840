//! What a task has: a guard, or the lease of work that the library runs.

use std::{cell::Cell, rc::Rc, time::Duration};

use leasehold::{Fence, Key, Lease, Mode};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// What stands for a lease.
pub enum Held {
    /// The guard of a lease.
    Lease(Lease),
    /// Work that the library runs under a lease.
    Work {
        /// The key of the lease.
        key: Key,
        /// Its owner.
        owner: String,
        /// Tells the work that the lease is lost.
        token: CancellationToken,
        /// Until when the work may go on, as it knows.
        until: Instant,
    },
}

/// What a task has.
pub struct Guard {
    /// The client of the task.
    pub client: usize,
    /// The guard.
    pub held: Held,
    /// Whether the lease was asked for beside another one of its owner.
    pub is_reentrant: bool,
    /// The store may have made the lease shared, although the answer has not come.
    pub may_be_shared: Cell<bool>,
    /// When the task asked for it.
    pub asked: Instant,
    /// For how long the lease stays with the client without a guard.
    pub idle: Duration,
}

impl Guard {
    /// What a task has from now on.
    pub fn new(
        client: usize,
        held: Held,
        is_reentrant: bool,
        idle: Duration,
        asked: Instant,
    ) -> Rc<Self> {
        Rc::new(Self {
            client,
            held,
            is_reentrant,
            may_be_shared: Cell::new(false),
            asked,
            idle,
        })
    }

    /// The lease, for the task to give up. The ledger looks at a guard only for a moment.
    pub fn into_lease(self: Rc<Self>) -> Option<Lease> {
        match Rc::into_inner(self)?.held {
            Held::Lease(lease) => Some(lease),
            Held::Work { .. } => None,
        }
    }

    /// Whether the task may count on it.
    pub fn is_live(&self) -> bool {
        match &self.held {
            Held::Lease(lease) => lease.is_live(),
            Held::Work { token, until, .. } => !token.is_cancelled() && Instant::now() < *until,
        }
    }

    /// For how long the task may count on it.
    pub fn remaining(&self) -> Duration {
        match &self.held {
            Held::Lease(lease) => lease.remaining(),
            Held::Work { until, .. } => until.saturating_duration_since(Instant::now()),
        }
    }

    /// The key.
    pub fn key(&self) -> &Key {
        match &self.held {
            Held::Lease(lease) => lease.key(),
            Held::Work { key, .. } => key,
        }
    }

    /// The owner.
    pub fn owner(&self) -> &str {
        match &self.held {
            Held::Lease(lease) => lease.owner(),
            Held::Work { owner, .. } => owner,
        }
    }

    /// The fence, if it is that of a grant of its own.
    pub fn fence(&self) -> Option<Fence> {
        match &self.held {
            Held::Lease(lease) if !self.is_reentrant => Some(lease.fence()),
            _ => None,
        }
    }

    /// Which others the lease excludes.
    pub fn mode(&self) -> Mode {
        match &self.held {
            Held::Lease(lease) if lease.mode() == Mode::Exclusive && self.may_be_shared.get() => {
                Mode::Shared
            }
            Held::Lease(lease) => lease.mode(),
            Held::Work { .. } => Mode::Exclusive,
        }
    }

    /// Whether the two may be live at the same time.
    pub fn is_compatible(&self, other: &Self) -> bool {
        let is_inner = (self.is_reentrant || other.is_reentrant) && self.owner() == other.owner();
        let is_beside = self.mode() == other.mode() && self.mode() != Mode::Exclusive;
        is_inner || self.key() != other.key() || is_beside
    }

    /// The guard in a few words.
    pub fn describe(&self) -> String {
        let fence = self.fence().map(|it| it.to_string());
        let fence = fence.as_deref().unwrap_or("none");
        let reentrant = if self.is_reentrant { ", reentrant" } else { "" };
        let (key, owner, mode) = (self.key(), self.owner(), self.mode());
        let left = self.remaining();
        format!("{key} of {owner} ({mode:?}, fence {fence}, {left:?} left{reentrant})")
    }
}
