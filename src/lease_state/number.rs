//! Numbers that tell the leases of this process apart.

use std::sync::atomic::{AtomicU64, Ordering};

/// The number of a [`LeaseState`](super::LeaseState). Two of them may be of the same lease: a ticket can be resumed
/// twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct LeaseNumber(u64);

impl LeaseNumber {
    /// A number that no other lease of this process has.
    pub(crate) fn next() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}
