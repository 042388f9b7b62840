//! What a task has: a guard, or the lease of work that the library runs.

use std::{cell::Cell, fmt, rc::Rc, time::Duration};

use leasehold::{Fence, Key, Lease, Mode};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// What a task knows about a lease that the lease itself does not tell.
#[derive(Clone, Copy, Default)]
pub struct Terms {
    /// Whether it was asked for beside another one of its owner.
    pub is_reentrant: bool,
    /// For how long it stays with the client without a guard; zero if it does not.
    pub idle: Duration,
    /// The store may have made it shared, although the answer has not come.
    pub may_be_shared: bool,
}

/// What a task has.
pub struct Guard {
    /// The client of the task.
    pub client: usize,
    /// The key of the lease.
    pub key: Key,
    /// Its owner.
    pub owner: String,
    /// The lease itself. Work that the library runs does not have it.
    pub lease: Option<Lease>,
    /// Tells work that its lease is lost.
    pub token: CancellationToken,
    /// Until when work may go on, as it knows.
    pub until: Instant,
    /// What else the task knows.
    pub terms: Cell<Terms>,
    /// When the task asked for the lease.
    pub asked: Instant,
}

impl Guard {
    /// A lease that a task of a client has from now on.
    pub fn new(client: usize, lease: Lease, terms: Terms, asked: Instant) -> Rc<Self> {
        Rc::new(Self {
            client,
            key: lease.key().clone(),
            owner: lease.owner().to_owned(),
            lease: Some(lease),
            token: CancellationToken::new(),
            until: asked,
            terms: Cell::new(terms),
            asked,
        })
    }

    /// The lease, for the task to give up. The ledger looks at a guard only for a moment.
    pub fn into_lease(self: Rc<Self>) -> Option<Lease> {
        Rc::into_inner(self)?.lease
    }

    /// Whether the task may count on it.
    pub fn is_live(&self) -> bool {
        match &self.lease {
            Some(lease) => lease.is_live(),
            None => !self.token.is_cancelled() && Instant::now() < self.until,
        }
    }

    /// For how long the task may count on it.
    pub fn remaining(&self) -> Duration {
        match &self.lease {
            Some(lease) => lease.remaining(),
            None => self.until.saturating_duration_since(Instant::now()),
        }
    }

    /// The fence, if it is that of a grant of its own.
    pub fn fence(&self) -> Option<Fence> {
        let own = self.lease.as_ref();
        own.filter(|_| !self.terms.get().is_reentrant)
            .map(Lease::fence)
    }

    /// Which others the lease excludes.
    pub fn mode(&self) -> Mode {
        match self.lease.as_ref().map_or(Mode::Exclusive, Lease::mode) {
            Mode::Exclusive if self.terms.get().may_be_shared => Mode::Shared,
            mode => mode,
        }
    }

    /// Whether the two may be live at the same time.
    pub fn is_compatible(&self, other: &Self) -> bool {
        let is_reentrant = self.terms.get().is_reentrant || other.terms.get().is_reentrant;
        let is_inner = is_reentrant && self.owner == other.owner;
        let is_beside = self.mode() == other.mode() && self.mode() != Mode::Exclusive;
        is_inner || self.key != other.key || is_beside
    }
}

impl fmt::Display for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fence = self.fence().map_or("none".to_owned(), |it| it.to_string());
        let is_reentrant = self.terms.get().is_reentrant;
        let reentrant = if is_reentrant { ", reentrant" } else { "" };
        let (key, owner, mode, left) = (&self.key, &self.owner, self.mode(), self.remaining());
        write!(
            f,
            "{key} of {owner} ({mode:?}, fence {fence}, {left:?} left{reentrant})"
        )
    }
}
