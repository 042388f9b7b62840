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
    pub(super) lease: LeaseId,
    owner: Arc<str>,
    held_as: HeldAs,
    fence: Fence,
    /// When the lease was granted, by the server's clock. No later grant under the same id has the same time, and an
    /// upgrade keeps it.
    acquired_at_ms: i64,
    ttl_ms: u64,
    #[serde(default, skip_serializing_if = "is_default")]
    hold: Hold,
    #[serde(default, skip_serializing_if = "is_default")]
    unclear: Unclear,
}

/// The present mode of the lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum HeldAs {
    Exclusive,
    Shared,
    Permits(i64),
}

/// For how long the lease is held, counted from the grant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Hold {
    min_ms: Option<u64>,
    max_ms: Option<u64>,
}

/// What may still be carried out for the lease.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Unclear {
    conversions: Option<Unanswered>,
    /// Whether it is an acquire request. The release is then repeated.
    acquire: bool,
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

impl Ticket {
    /// The minimum hold and the maximum hold, which count from the grant.
    pub(crate) fn holds(&self) -> [Option<Duration>; 2] {
        [self.hold.min_ms, self.hold.max_ms].map(|ms| ms.map(Duration::from_millis))
    }

    /// Whether this grant, which a renewal has found, is that of the ticket. A late request may have been granted the
    /// lease anew, after another process held the key.
    pub(crate) fn is_of(&self, grant: &Grant) -> bool {
        grant.acquired_at.timestamp_millis() == self.acquired_at_ms
    }

    /// Records in the state of the resumed lease what may still be carried out for it.
    pub(crate) fn note_unclear(&self, state: &LeaseState) {
        state.set_release_terms(|terms| terms.maybe_in_flight = self.unclear.acquire);
        if let Some(unanswered) = self.unclear.conversions {
            state.set_unanswered(self.fence, unanswered);
        }
    }

    /// The ticket of the lease in the store that this guard is under. The maximum hold is that of the guard.
    pub(super) fn of(guard: &Arc<LeaseState>) -> Self {
        let state = guard.stored();
        let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let (request, release) = (state.request(), state.release_terms());
        let max_hold = guard
            .max_hold_deadline()
            .map(|end| end.saturating_duration_since(state.times.granted_at));
        let (mode, fence, unanswered) = state.mode_and_conversions();
        Self {
            key: request.key.clone(),
            lease: request.lease,
            owner: request.owner.clone(),
            held_as: match mode {
                Mode::Exclusive => HeldAs::Exclusive,
                Mode::Shared => HeldAs::Shared,
                Mode::Permits => HeldAs::Permits(request.access.permits()),
            },
            fence,
            acquired_at_ms: state.acquired_at().timestamp_millis(),
            ttl_ms: millis(request.ttl),
            hold: Hold {
                min_ms: release.min_hold.map(millis),
                max_ms: max_hold.map(millis),
            },
            unclear: Unclear {
                conversions: (unanswered != Unanswered::default()).then_some(unanswered),
                acquire: release.maybe_in_flight,
            },
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
        request.access = match self.held_as {
            HeldAs::Exclusive => Access::Exclusive,
            HeldAs::Shared => Access::Shared,
            // Only an acquire compares `of` with the permits that are taken, and this request is only renewed and
            // released. So `of` can be any valid number.
            HeldAs::Permits(count) => Access::Permits(Permits::new(count, count)?),
        };
        Ok(request)
    }
}
