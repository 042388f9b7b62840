//! The end of a lease in this process, and what is reported of it.

use std::time::Duration;

use tokio::time::Instant;

use super::{
    LeaseState,
    status::{EndReason, Phase},
};
use crate::{model::LossReason, telemetry};

/// How a call has ended a lease.
#[derive(Debug)]
#[must_use = "it is to be reported"]
pub(crate) struct Ended {
    /// Whether no call has ended the lease before.
    pub(crate) is_first: bool,
    how: EndReason,
    /// The loss of the lease, if it was not reported before.
    loss: Option<LossReason>,
    held: Duration,
}

impl LeaseState {
    /// Ends the lease: its holder does not count on it any more. Returns whether this was the first such call. The
    /// caller of the first one must release the lease, if it ends as [`EndReason::Released`].
    pub(crate) fn end(&self, end: EndReason, now: Instant) -> bool {
        let ended = self.end_without_events(end, now);
        let is_first = ended.is_first;
        self.report_end(ended);
        is_first
    }

    /// As [`end`](Self::end), for a caller that has to give up the lease before the subscriber of the application,
    /// which may panic, is told. The caller passes the answer to [`report_end`](Self::report_end).
    pub(crate) fn end_without_events(&self, how: EndReason, now: Instant) -> Ended {
        let backing = self.loss_of_backing(now);
        let mut loss = None;
        let is_first = self.state.send_if_modified(|state| {
            // A loss by expiry is reported only when a call checks the lease, and this may be the first such call.
            loss = state.take_unreported_loss(backing, now);
            let is_first = state.phase == Phase::Held;
            if is_first {
                state.phase = match how {
                    EndReason::Released => Phase::Releasing,
                    EndReason::Detached => Phase::Detached,
                };
            }
            is_first
        });
        if how == EndReason::Detached {
            self.given_back.notify_waiters();
        }
        Ended {
            is_first,
            how,
            loss,
            held: now.saturating_duration_since(self.since),
        }
    }

    /// Reports the end of the lease to telemetry.
    pub(crate) fn report_end(&self, ended: Ended) {
        self.report_loss(ended.loss);
        if ended.is_first && self.has_guard() {
            match ended.how {
                EndReason::Released => telemetry::given_up(self.fields(), ended.held),
                EndReason::Detached => telemetry::detached(self.fields(), ended.held),
            }
        }
    }

    /// Records that the release of the lease was answered, or given up.
    pub(crate) fn mark_released(&self) {
        self.state
            .send_modify(|state| state.phase = Phase::Released);
        self.given_back.notify_waiters();
    }
}
