//! The fencing token.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The fencing token of a grant: of two grants of one key, the later has the greater fence.
///
/// A lease cannot stop a holder that was paused past its expiry and then goes on writing. The resource can, if every
/// write carries the fence and the resource refuses a fence that is smaller than the greatest it has seen (Martin
/// Kleppmann, "How to do distributed locking", 2016).
///
/// Fences are ordered but not consecutive. The next grant has a greater fence even after a release, a takeover, an
/// eviction, or the clean-up of the lock's document. Only a [reentrant](crate::Acquire::reentrant) lease has the fence
/// of the lease that its owner holds already. The first fence of a key is the server's time in milliseconds × 1,024.
///
/// A store never grants a fence beyond 2^53 − 1, so that JavaScript and JSON parsers that read numbers as doubles hold
/// each of them exactly.
///
/// serde writes a fence as a plain 64-bit integer, which can be stored beside the data or sent with a request.
/// `docs/fencing.md` shows how a resource checks it, in SQL and over HTTP. For documents in MongoDB, Elasticsearch and
/// OpenSearch this crate has the check, with the feature `fencing`: `GuardedCollection`, `Lease::enforce`,
/// `GuardedIndex`.
///
/// ```
/// use leasehold::Fence;
///
/// assert!(Fence::new(7) < Fence::new(8));
/// assert_eq!(i64::from(Fence::new(7)), 7);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Fence(i64);

impl Fence {
    /// The name of the field in which a guarded document keeps the newest fence that it was written under. The value is
    /// a 64-bit integer.
    pub const FIELD: &str = "leasehold_fence";

    /// A fence with this value, to compare with the one that a resource has stored.
    pub const fn new(value: i64) -> Self {
        Self(value)
    }

    /// The value, to store beside the protected data or to send with a request.
    pub const fn get(self) -> i64 {
        self.0
    }
}

impl From<Fence> for i64 {
    fn from(fence: Fence) -> Self {
        fence.0
    }
}

impl fmt::Display for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_a_number_to_serde() {
        let fence = Fence::new(1_838_375_174_269_952);
        let json = serde_json::to_string(&fence).unwrap();
        assert_eq!(json, "1838375174269952");
        assert_eq!(serde_json::from_str::<Fence>(&json).unwrap(), fence);
    }
}
