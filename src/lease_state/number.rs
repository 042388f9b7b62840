//! `LeaseNumber`: tells the leases of this process apart.

use std::sync::atomic::{AtomicU64, Ordering};

/// The number of a [`LeaseState`](super::LeaseState). The lease id cannot be used for that: a ticket can be resumed
/// twice, and then two states have the same id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct LeaseNumber(u64);

impl LeaseNumber {
    /// A number that no other state of this process has.
    pub(crate) fn next() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}
