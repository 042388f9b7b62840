//! `ReleaseJob`: a lease that is to be released, and the requests for its release.

use std::{sync::Arc, time::Duration};

use crate::{
    coalescer::PlannedRelease,
    lease_state::LeaseState,
    messages::{AcquireRequest, DoneTick, MinHold, ReleaseKind, ReleaseRequest},
    model::{Fence, LeaseId, Mode},
    telemetry::ReleaseFields,
};

/// A lease that is to be released: its holder has given it up, or no caller took it. It is in the store, or may be.
pub(crate) struct ReleaseJob {
    /// The first request.
    pub(super) first: PlannedRelease,
    /// `None` if no caller got the lease.
    fence: Option<Fence>,
    pub(super) ttl: Duration,
    /// Whether an acquire request that could be granted this lease again may still be on its way to the server.
    pub(super) maybe_in_flight: bool,
}

impl ReleaseJob {
    /// The release of a lease that was held.
    ///
    /// A failover may undo it until the local deadline of the lease, so until then a majority need not confirm it. If a
    /// failover undoes such a release, the key stays held until the ttl is over, as it may with any lease.
    ///
    /// After the deadline, a new primary may have granted the key to another lease. A former primary, which does not
    /// know yet that it was replaced, would still confirm the release. So a majority has to confirm it.
    ///
    /// A majority always has to confirm a release that writes a minimum hold or a done tick, which must not be undone,
    /// or for which other processes wait. The same holds if a late acquire request may be granted the lease again, or no
    /// caller got the lease, because then it is not known how long the key would stay held.
    pub(super) fn of(state: &Arc<LeaseState>) -> Self {
        let (mode, fence) = state.mode_and_fence();
        let terms = state.release_terms();
        let mut job = Self::of_nobody(state.request(), terms.maybe_in_flight);
        job.fence = Some(fence);
        let request = &mut job.first.request;
        request.likely_sole = mode == Mode::Exclusive;
        request.kind = kind(terms.done, terms.min_hold);
        let is_plain = matches!(request.kind, ReleaseKind::Plain { .. });
        let may_be_undone = is_plain && !terms.maybe_in_flight && !terms.is_awaited;
        job.first.undoable_until = may_be_undone.then(|| state.deadline());
        job.first.is_single = terms.done.is_some();
        job
    }

    /// The release of what a claim may have left that nobody holds. `maybe_in_flight` says whether a request for it may
    /// still be on its way.
    pub(crate) fn of_nobody(claim: &AcquireRequest, maybe_in_flight: bool) -> Self {
        let mut request = ReleaseRequest::new(claim.key.clone(), claim.lease);
        // An exclusive lease is likely to be the only holder of its key.
        request.likely_sole = claim.access.mode() == Mode::Exclusive;
        Self {
            first: PlannedRelease {
                request,
                undoable_until: None,
                is_single: false,
            },
            fence: None,
            ttl: claim.ttl,
            maybe_in_flight,
        }
    }

    /// The fields of the events of this release.
    pub(super) fn fields(&self, has_caller: bool) -> ReleaseFields<'_> {
        ReleaseFields {
            key: &self.first.request.key,
            lease: self.first.request.lease,
            fence: self.fence,
            has_caller,
        }
    }
}

/// What a release writes besides removing the lease. A done tick keeps the job from running again, so a minimum hold has no
/// use beside it.
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
