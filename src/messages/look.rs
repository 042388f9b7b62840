//! The look at leases that stay with their process: its requests and its answers.

use crate::model::{Key, LeaseId};

/// A lease that a process keeps although it may not need it, and looks at.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LookRequest {
    /// The key.
    pub key: Key,
    /// The lease.
    pub lease: LeaseId,
}

impl LookRequest {
    /// A look at this lease.
    pub fn new(key: Key, lease: LeaseId) -> Self {
        Self { key, lease }
    }
}

/// What a look tells of a lease and its key. The default, without either, is that of a key without a document.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LookAnswer {
    /// Whether the lease is among the holders of its key. If it is not, it was evicted, released, or taken over. A store
    /// may count a lease that has expired, and was not removed yet, as a holder.
    pub is_held: bool,
    /// Whether a process waits for the key: it has a live [place](crate::Place) in the queue.
    pub is_waited_for: bool,
}

impl LookAnswer {
    /// This answer.
    pub fn new(is_held: bool, is_waited_for: bool) -> Self {
        Self {
            is_held,
            is_waited_for,
        }
    }
}
