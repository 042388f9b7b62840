//! What is under a stay, and whether its lease goes back.

use std::sync::Arc;

use tokio::{sync::OwnedSemaphorePermit, time::Instant};

use crate::{
    lease_state::{BackingLease, LeaseState},
    messages::AcquireRequest,
    model::Fence,
    sticky::{
        fences::Fences,
        holders::{Holders, LocalHolder},
    },
};

#[derive(Debug)]
pub(super) struct StayState {
    /// `None` if the lease in the store is shared.
    pub(super) fences: Option<Fences>,
    pub(super) holders: Holders,
    pub(super) end: End,
    pub(super) conversion: StoredConversion,
    /// Whether the client closes, and gives the lease in the store back itself.
    pub(super) is_closed: bool,
}

/// Whether a conversion of the lease in the store has begun. From then on its mode is not known here, so nothing more
/// is granted from memory, not even to a reentrant owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum StoredConversion {
    None,
    /// One has begun, and nothing is granted any more.
    Begun,
    /// A request was sent, so the lease in the store may have another mode than its holder.
    Sent,
}

/// Whether the lease goes back to the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// The lease stays.
    None,
    /// The lease goes back as soon as no lease under it is left.
    Due,
    /// As [`Due`](End::Due), but the lease is not released: another process has its ticket, or it was detached.
    DueDetached,
    /// The lease was sent back.
    Sent,
}

/// What is left when a lease under the stay is given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Left {
    /// The lease stays, or other leases under it are left.
    Nothing,
    /// The caller releases the lease in the store.
    Release,
    /// The caller gives up the lease in the store without a release.
    Detach,
}

impl StayState {
    pub(super) fn push(
        &mut self,
        behind: &BackingLease,
        request: AcquireRequest,
        fence: Fence,
        units: Arc<OwnedSemaphorePermit>,
        now: Instant,
    ) -> Arc<LeaseState> {
        let lease = LeaseState::local(behind.clone(), Arc::new(request), fence, now);
        let lease = Arc::new(lease);
        self.holders.push(LocalHolder {
            lease: lease.clone(),
            units,
        });
        lease
    }

    /// What the caller does with the lease in the store, if it is due to go back.
    pub(super) fn take_due(&mut self) -> Left {
        let left = match self.end {
            _ if !self.holders.is_empty() => Left::Nothing,
            End::None | End::Sent => Left::Nothing,
            End::Due => Left::Release,
            End::DueDetached => Left::Detach,
        };
        if left != Left::Nothing {
            self.end = End::Sent;
        }
        left
    }
}
