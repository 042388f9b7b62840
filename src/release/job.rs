//! `ReleaseJob`: a lease that is to be released, and the requests for its release.

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;

use crate::{
    coalescer::PlannedRelease,
    lease_state::LeaseState,
    messages::{AcquireRequest, DoneTick, MinHold, ReleaseKind, ReleaseRequest},
    model::{Fence, Key, LeaseId, Mode},
    telemetry::ReleaseFields,
};

/// A lease that is to be released: its holder has given it up, or no caller took it. It is in the store, or may be.
#[derive(Clone, Debug)]
pub(crate) struct ReleaseJob {
    pub(crate) key: Key,
    pub(crate) lease: LeaseId,
    pub(crate) ttl: Duration,
    /// Whether the lease is exclusive, and so likely to be the only holder of its key.
    pub(crate) is_exclusive: bool,
    /// Whether an acquire request that could be granted this lease again may still be on its way to the server.
    pub(crate) maybe_in_flight: bool,
    /// `None` if no caller got the lease.
    pub(crate) held: Option<HeldLease>,
}

/// What the holder knew about the lease.
#[derive(Clone, Debug)]
pub(crate) struct HeldLease {
    pub(super) fence: Fence,
    /// The local deadline.
    pub(super) deadline: Instant,
    /// What the release writes besides removing the lease: a minimum hold, a done tick, or nothing.
    pub(super) kind: ReleaseKind,
    /// Whether other processes wait for the release.
    pub(super) is_awaited: bool,
}

impl ReleaseJob {
    /// The release of a lease that was held.
    pub(super) fn of(state: &Arc<LeaseState>) -> Self {
        let (mode, fence) = state.mode_and_fence();
        let terms = state.release_terms();
        Self {
            key: state.key().clone(),
            lease: state.id(),
            ttl: state.ttl(),
            is_exclusive: mode == Mode::Exclusive,
            maybe_in_flight: terms.maybe_in_flight,
            held: Some(HeldLease {
                fence,
                deadline: state.deadline(),
                kind: kind(terms.done, terms.min_hold),
                is_awaited: terms.is_awaited,
            }),
        }
    }

    /// The release of what a claim may have left that nobody holds. `maybe_in_flight` says whether a request for it may
    /// still be on its way.
    pub(crate) fn of_nobody(claim: &AcquireRequest, maybe_in_flight: bool) -> Self {
        Self {
            key: claim.key.clone(),
            lease: claim.lease,
            ttl: claim.ttl,
            is_exclusive: claim.access.mode() == Mode::Exclusive,
            maybe_in_flight,
            held: None,
        }
    }

    /// The fields of the events of this release.
    pub(super) fn fields(&self, has_caller: bool) -> ReleaseFields<'_> {
        ReleaseFields {
            key: &self.key,
            lease: self.lease,
            fence: self.held.as_ref().map(|held| held.fence),
            has_caller,
        }
    }

    /// Whether other processes wait for the release.
    fn is_awaited(&self) -> bool {
        self.held.as_ref().is_some_and(|held| held.is_awaited)
    }

    /// Until when a failover may undo the release, so that a majority need not confirm it: until the local deadline of
    /// the lease. If a failover undoes such a release, the key stays held until the ttl is over, as it may with any
    /// lease.
    ///
    /// After the deadline, a new primary may have granted the key to another lease. A former primary, which does not
    /// know yet that it was replaced, would still confirm the release. So a majority has to confirm it.
    ///
    /// `None` means that a majority always has to confirm the release. It is `None` if the release writes a minimum
    /// hold or a done tick, which must not be undone. It is also `None` if a late acquire request may be granted the
    /// lease again, or no caller got the lease, because then it is not known how long the key would stay held.
    fn undoable_until(&self) -> Option<Instant> {
        let is_plain = |held: &HeldLease| matches!(held.kind, ReleaseKind::Plain { .. });
        let held = self.held.as_ref().filter(|held| is_plain(held))?;
        (!self.maybe_in_flight).then_some(held.deadline)
    }

    /// The first request.
    pub(crate) fn first_request(&self) -> PlannedRelease {
        let mut request = ReleaseRequest::new(self.key.clone(), self.lease);
        if let Some(held) = &self.held {
            request.kind = held.kind;
        }
        request.likely_sole = self.is_exclusive;
        PlannedRelease {
            request,
            undoable_until: self.undoable_until().filter(|_| !self.is_awaited()),
            is_repeated: false,
        }
    }

    /// A later request. `answered` says whether an earlier request was answered. After an answer, no request writes a
    /// minimum hold or a tick: it only releases what a late acquire request was granted, and no work was done under
    /// that grant.
    pub(super) fn repeated_request(&self, answered: bool) -> PlannedRelease {
        let mut again = self.first_request();
        if answered {
            again.request.kind = ReleaseKind::Plain { undoable: false };
        }
        again.is_repeated = true;
        again
    }
}

/// What the release of this lease writes besides removing it. A done tick keeps the job from running again, so a
/// minimum hold has no use beside it.
fn kind(done: Option<DoneTick>, min_hold: Option<Duration>) -> ReleaseKind {
    match (done, min_hold) {
        (Some(done), _) => ReleaseKind::Done(done),
        (None, Some(time)) => ReleaseKind::MinHold(MinHold {
            time,
            placeholder: LeaseId::random(),
        }),
        (None, None) => ReleaseKind::Plain { undoable: false },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Tick;

    #[test]
    fn a_done_tick_comes_before_a_minimum_hold() {
        let time = Duration::from_secs(9);
        let done = DoneTick {
            tick: Tick::counter(7),
            kept_for: time,
        };
        assert_eq!(kind(Some(done), Some(time)), ReleaseKind::Done(done));
        assert!(matches!(
            kind(None, Some(time)),
            ReleaseKind::MinHold(hold) if hold.time == time
        ));
        let plain = ReleaseKind::Plain { undoable: false };
        assert_eq!(kind(None, None), plain);
    }
}
