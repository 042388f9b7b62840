//! The answer of an eviction.

use crate::model::{Fence, Holder};

/// The answer of [`Leases::evict`](crate::Leases::evict).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Eviction {
    /// The key's fence after the eviction, greater than that of any evicted holder.
    pub fence: Fence,
    /// The holders that were live and lost their lease, oldest first, as they were: each would have ended
    /// at its `expires_at`.
    pub evicted: Vec<Holder>,
}
