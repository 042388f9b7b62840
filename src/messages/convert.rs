//! The request to change the mode of a lease, and its answer.

use super::acquire::Grant;
use crate::model::{Conversion, Fence, Held, Holder, Key, LeaseId};

/// A request of [`Store::convert`](crate::Store::convert): to change the mode of a lease.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ConvertRequest {
    /// The key.
    pub key: Key,
    /// The id of the lease.
    pub lease: LeaseId,
    /// The change: an upgrade or a downgrade.
    pub conversion: Conversion,
    /// The fence of the lease that is to be changed. A lease with another one keeps its mode. `None` if the fence does
    /// not matter.
    pub fence: Option<Fence>,
}

impl ConvertRequest {
    /// A request to make a shared lease exclusive, whatever its fence is.
    pub fn upgrade(key: Key, lease: LeaseId) -> Self {
        Self::new(key, lease, Conversion::Upgrade)
    }

    /// A request to make an exclusive lease shared, whatever its fence is.
    pub fn downgrade(key: Key, lease: LeaseId) -> Self {
        Self::new(key, lease, Conversion::Downgrade)
    }

    fn new(key: Key, lease: LeaseId, conversion: Conversion) -> Self {
        Self {
            key,
            lease,
            conversion,
            fence: None,
        }
    }

    /// The same request, for the lease with this fence only.
    ///
    /// A request may be carried out long after its sender has given up waiting for the answer. An upgrade gives the
    /// lease a greater fence, so a request that names the fence before it can undo no later upgrade.
    pub fn of_fence(mut self, fence: Fence) -> Self {
        self.fence = Some(fence);
        self
    }

    /// Whether the request is for a lease with this fence.
    pub(crate) fn is_of(&self, holder: &Holder) -> bool {
        self.fence.is_none_or(|fence| fence == holder.fence)
    }
}

/// An answer of [`Store::convert`](crate::Store::convert).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConvertAnswer {
    /// The lease has the wanted mode, by this request or an earlier one.
    Converted(Grant),
    /// Other holders are live, so the lease keeps its mode. Nothing was written.
    Held(Held),
    /// The lease has neither the wanted mode nor the fence that the request [names](ConvertRequest::of_fence). Nothing
    /// was written.
    OtherFence(Grant),
    /// The lease has expired. Nothing was written.
    Expired,
    /// The lease was evicted, or is not among the holders of its key. Nothing was written.
    TakenOver,
}
