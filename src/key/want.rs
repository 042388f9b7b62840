//! `Want`: what a task wants of a key, and how long it waits for it.

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;

use crate::{
    messages::{AcquireRequest, Turn},
    model::{Access, Held, Mode},
};

/// What a task wants of a key.
#[derive(Clone, Debug)]
pub(crate) struct Want {
    /// The terms of the lease, with the id of the claim that is made if no other one serves the task.
    pub(crate) request: Arc<AcquireRequest>,
    /// For how long the lease stays with this process although no task uses it. `None` if it does not stay.
    pub(crate) stays_for: Option<Duration>,
    pub(crate) memory: FromMemory,
    /// When the task began to ask.
    pub(crate) since: Instant,
    pub(crate) wait: Wait,
}

/// How long a task waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    /// It does not wait: the first answer counts. After an error the request is sent again, if `repeats`.
    No {
        repeats: bool,
    },
    /// Until this instant.
    Until(Instant),
    Endless,
}

/// Whether a task may get its guard from memory, under a lease that this process has already; and whether the lease
/// that it gets from the store may serve others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FromMemory {
    /// Never: the task needs the document of the key.
    Never,
    /// Only under a lease that stays: the caller has chosen the name of the owner, which another handle may bear too, or
    /// the lease has a maximum hold of its own.
    IfItStays,
    Always,
}

impl Want {
    pub(super) fn is_barging(&self) -> bool {
        self.request.turn == Turn::Barging
    }

    pub(super) fn waits(&self) -> bool {
        !matches!(self.wait, Wait::No { .. })
    }

    /// Whether the time of the task is over.
    pub(super) fn is_over(&self, now: Instant) -> bool {
        !self.waits() || self.until().is_some_and(|until| until <= now)
    }

    /// When the time of the task is over.
    pub(super) fn until(&self) -> Option<Instant> {
        match self.wait {
            Wait::Until(until) => Some(until),
            Wait::No { .. } | Wait::Endless => None,
        }
    }

    /// Whether a lease with these terms is what the task wants of the store.
    pub(super) fn has_terms_of(&self, other: &AcquireRequest) -> bool {
        let mine = &self.request;
        (&mine.owner, mine.access, mine.reentrant, mine.ttl)
            == (&other.owner, other.access, other.reentrant, other.ttl)
            && (&mine.note, mine.tick) == (&other.note, other.tick)
    }

    /// Whether the owner of the task has the key, by this answer, so that it comes before all who wait.
    pub(super) fn has_own_holder(&self, held: &Held) -> bool {
        let owner = &self.request.owner;
        self.request.reentrant && held.holders().iter().any(|holder| holder.owner == *owner)
    }

    /// Whether a task of this process that has the key keeps this one from it.
    pub(super) fn conflicts_with(&self, held: Mode) -> bool {
        match self.request.access {
            Access::Exclusive => true,
            Access::Shared => held != Mode::Shared,
            Access::Permits(_) => held != Mode::Permits,
        }
    }
}
