//! The ticket with which a lease goes from one process to another.

use std::{sync::Arc, time::Duration};

use serde::{Deserialize, Serialize};

use crate::{
    lease_state::LeaseState,
    messages::AcquireRequest,
    model::{Access, Fence, Key, LeaseId, Mode},
};

/// A lease without its guard: what another process needs to go on with the lease, made by
/// [`Lease::into_ticket`](crate::Lease::into_ticket) and taken by [`Leases::resume`](crate::Leases::resume).
///
/// A ticket can be serialized with `serde` and sent, beside a job in a queue for example. Hand a ticket to one process
/// only: two processes that go on with the same lease do not exclude each other.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ticket {
    key: Key,
    lease: LeaseId,
    owner: Arc<str>,
    mode: Mode,
    permits: i64,
    fence: Fence,
    ttl_ms: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    min_hold_ms: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    max_hold_ms: Option<u64>,
}

impl Ticket {
    /// For how long, counted from the grant, the key stays held although the lease is released.
    pub(crate) fn min_hold(&self) -> Option<Duration> {
        self.min_hold_ms.map(Duration::from_millis)
    }

    /// For how long, counted from the grant, the lease is held at most.
    pub(crate) fn max_hold(&self) -> Option<Duration> {
        self.max_hold_ms.map(Duration::from_millis)
    }

    pub(crate) fn of(state: &LeaseState) -> Self {
        let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let request = state.request();
        Self {
            key: request.key.clone(),
            lease: request.lease,
            owner: request.owner.clone(),
            mode: state.mode(),
            permits: request.access.permits(),
            fence: state.fence(),
            ttl_ms: millis(request.ttl),
            min_hold_ms: state.min_hold().map(millis),
            max_hold_ms: state.max_hold().map(millis),
        }
    }

    /// The key that is held.
    pub fn key(&self) -> &Key {
        &self.key
    }

    /// The fencing token. A resumed lease has the same fence.
    pub fn fence(&self) -> Fence {
        self.fence
    }

    /// The request for the lease, with its present mode.
    pub(crate) fn request(&self) -> AcquireRequest {
        let ttl = Duration::from_millis(self.ttl_ms);
        let (key, owner) = (self.key.clone(), self.owner.clone());
        let mut request = AcquireRequest::exclusive(key, self.lease, owner, ttl);
        request.access = match self.mode {
            Mode::Exclusive => Access::Exclusive,
            Mode::Shared => Access::Shared,
            // Only an acquire compares `of` with the permits that are taken, and this request is only renewed and
            // released. So `of` is any valid number.
            Mode::Permits => Access::Permits {
                n: self.permits,
                of: self.permits,
            },
        };
        request
    }
}
