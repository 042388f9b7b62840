//! The question for a lease, and its answer.

use std::{sync::Arc, time::Duration};

use chrono::{DateTime, Utc};

use crate::model::{Access, Fence, Held, Key, LeaseId, between};

/// A question of [`Store::acquire`](crate::Store::acquire).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct AcquireRequest {
    /// The key.
    pub key: Key,
    /// The name of the grant, new for each acquire and the same in its retries.
    pub lease: LeaseId,
    /// The owner that the holders of the key are told by.
    pub owner: Arc<str>,
    /// How long the grant lives, in whole milliseconds.
    pub ttl: Duration,
    /// The part of the key that the lease is to have.
    pub access: Access,
    /// Whether holders of the same owner do not count.
    pub reentrant: bool,
    /// A remark for people.
    pub note: Option<Arc<str>>,
    /// A lease that makes way: its holder hands the key on. It is dropped in the same step, and does
    /// not conflict. If it is not among the holders, nothing is granted, be the key free or not; a lease
    /// that was granted before is told as granted.
    pub in_place_of: Option<LeaseId>,
    /// Whether no earlier request with this lease id can have been granted, or can be yet. A store may
    /// then take a lease that it finds for one that was granted just now.
    pub fresh: bool,
    /// Whether the key was held a moment ago, so that this request is likely to be refused. A store may then look
    /// at the document first, and refuse by what it sees.
    pub likely_held: bool,
}

impl AcquireRequest {
    /// A request for an exclusive grant.
    pub fn exclusive(key: Key, lease: LeaseId, owner: Arc<str>, ttl: Duration) -> Self {
        Self {
            key,
            lease,
            owner,
            ttl,
            access: Access::Exclusive,
            reentrant: false,
            note: None,
            in_place_of: None,
            fresh: false,
            likely_held: false,
        }
    }

    /// The same for a grant that other shared holders may stand beside.
    pub fn shared(mut self) -> Self {
        self.access = Access::Shared;
        self
    }

    /// The same for so many permits of those that there are.
    pub fn permits(mut self, permits: i64, capacity: i64) -> Self {
        self.access = Access::Permits {
            n: permits,
            of: capacity,
        };
        self
    }

    /// The same, beside other holders of the same owner.
    pub fn reentrant(mut self) -> Self {
        self.reentrant = true;
        self
    }

    /// The same with a remark for people.
    pub fn note(mut self, note: impl Into<Arc<str>>) -> Self {
        self.note = Some(note.into());
        self
    }

    /// The same in the place of this lease, which goes.
    pub fn in_place_of(mut self, lease: LeaseId) -> Self {
        self.in_place_of = Some(lease);
        self
    }

    /// The same for a key that was held a moment ago.
    pub fn likely_held(mut self) -> Self {
        self.likely_held = true;
        self
    }

    /// The same for a lease id that was in no request before.
    pub fn fresh(mut self) -> Self {
        self.fresh = true;
        self
    }
}

/// An answer of [`Store::acquire`](crate::Store::acquire).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AcquireAnswer {
    /// The lease is a live holder: granted now, or by an earlier request with the same lease id.
    Granted(Grant),
    /// Other holders are live, and in conflict or [too many](crate::rules::is_full); or the lease in
    /// whose place it was to be granted is not among the holders.
    Held(Held),
}

/// A lease as its store knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The fencing token.
    pub fence: Fence,
    /// When it was granted, on the server's clock.
    pub acquired_at: DateTime<Utc>,
    /// When it ends unless it is renewed, on the server's clock.
    pub expires_at: DateTime<Utc>,
    /// The server's time as it answered.
    pub now: DateTime<Utc>,
}

impl Grant {
    /// How long the lease had to live when the server answered.
    pub fn expires_in(&self) -> Duration {
        between(self.now, self.expires_at)
    }
}
