//! `Ticket`: what moves a lease from one process to another.

use std::{sync::Arc, time::Duration};

use serde::{Deserialize, Serialize};

use crate::{
    lease_state::{LeaseState, Unanswered},
    messages::{AcquireRequest, Grant},
    model::{Access, Error, Fence, Key, LeaseId, Mode, Permits},
};

/// A lease without its guard. [`Lease::into_ticket`](crate::Lease::into_ticket) makes a ticket, and another process
/// continues the lease with [`Leases::resume`](crate::Leases::resume).
///
/// A ticket can be serialized with `serde` and sent, together with a job in a queue for example. Pass a ticket to one
/// process only: two processes that resume the same lease do not exclude each other.
///
/// ```
/// # use std::time::Duration;
/// # use leasehold::{Leases, MemoryStore, Ticket};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let leases = Leases::new(MemoryStore::new());
/// let lease = leases.acquire("upload:7", Duration::from_secs(30)).await?;
/// let text = serde_json::to_string(&lease.into_ticket())?;
/// let ticket: Ticket = serde_json::from_str(&text)?;
/// assert_eq!(ticket.key().as_str(), "upload:7");
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ticket {
    key: Key,
    lease: LeaseId,
    owner: Arc<str>,
    mode: Mode,
    permits: i64,
    fence: Fence,
    /// When the lease was granted, by the server's clock. No later grant under the same id has the same time, and an
    /// upgrade keeps it.
    acquired_at_ms: i64,
    ttl_ms: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    min_hold_ms: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    max_hold_ms: Option<u64>,
    /// The conversions of the lease that may still be carried out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    unanswered: Option<Unanswered<bool>>,
    /// Whether a request for the lease may still reach the store. The release is then repeated.
    #[serde(default, skip_serializing_if = "is_false")]
    maybe_in_flight: bool,
}

#[allow(clippy::trivially_copy_pass_by_ref)] // `serde` passes a reference.
fn is_false(flag: &bool) -> bool {
    !flag
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

    /// Whether this grant, which a renewal has found, is that of the ticket. A late request may have been granted the
    /// lease anew, after another process held the key.
    pub(crate) fn is_of(&self, grant: &Grant) -> bool {
        grant.acquired_at.timestamp_millis() == self.acquired_at_ms
    }

    /// Which conversions of the lease had no answer, if any.
    pub(crate) fn unanswered(&self) -> Option<Unanswered<bool>> {
        self.unanswered
    }

    /// Whether a request for the lease may still reach the store.
    pub(crate) fn maybe_in_flight(&self) -> bool {
        self.maybe_in_flight
    }

    /// The ticket of this lease in the store. The holds are those of `held`, which is another lease if the holder was
    /// granted it from memory.
    pub(crate) fn of(state: &LeaseState, held: &LeaseState) -> Self {
        let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let request = state.request();
        let (mode, fence, unanswered) = state.mode_and_conversions();
        Self {
            key: request.key.clone(),
            lease: request.lease,
            owner: request.owner.clone(),
            mode,
            permits: request.access.permits(),
            fence,
            acquired_at_ms: state.acquired_at().timestamp_millis(),
            ttl_ms: millis(request.ttl),
            min_hold_ms: held.release_terms().min_hold.map(millis),
            max_hold_ms: held.max_hold_from(state.granted_at()).map(millis),
            unanswered: (unanswered != Unanswered::default()).then_some(unanswered),
            maybe_in_flight: state.release_terms().maybe_in_flight,
        }
    }

    /// The same ticket, but of a lease that does not exist. It cannot be resumed.
    pub(crate) fn of_no_lease(self) -> Self {
        Self {
            lease: LeaseId::random(),
            ..self
        }
    }

    /// The key that is held.
    pub fn key(&self) -> &Key {
        &self.key
    }

    /// The fencing token. A resumed lease has the same fence, unless an upgrade without an answer has given it another
    /// one.
    pub fn fence(&self) -> Fence {
        self.fence
    }

    /// The request for the lease, with its present mode.
    pub(crate) fn request(&self) -> Result<AcquireRequest, Error> {
        let ttl = Duration::from_millis(self.ttl_ms);
        let (key, owner) = (self.key.clone(), self.owner.clone());
        let mut request = AcquireRequest::exclusive(key, self.lease, owner, ttl);
        request.access = match self.mode {
            Mode::Exclusive => Access::Exclusive,
            Mode::Shared => Access::Shared,
            // Only an acquire compares `of` with the permits that are taken, and this request is only renewed and
            // released. So `of` can be any valid number.
            Mode::Permits => Access::Permits(Permits::new(self.permits, self.permits)?),
        };
        Ok(request)
    }
}
