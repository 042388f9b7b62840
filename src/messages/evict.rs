//! The answer of an eviction.

use crate::model::{Fence, Holder};

/// The answer of [`Leases::evict`](crate::Leases::evict).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Eviction {
    /// The key's fence after the eviction. It is greater than the fence of each evicted holder.
    pub fence: Fence,
    /// The live holders that the eviction ended, oldest first, with the `expires_at` that each had before it.
    pub evicted: Vec<Holder>,
}
