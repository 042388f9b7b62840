//! The end of a lease in this process, and what is reported of it.

use tokio::time::Instant;

use super::{
    LeaseState,
    status::{EndReason, Ended, EndedBefore},
};
use crate::{model::LossReason, telemetry};

impl LeaseState {
    /// Ends the lease: its holder does not count on it any more. The first call decides how the lease ends. Its caller
    /// releases the lease if it ends as [`EndReason::Released`], and passes the answer to
    /// [`report_end`](Self::report_end) after that, because the subscriber of the application may panic.
    pub(crate) fn end(&self, how: EndReason, now: Instant) -> Result<Ended, EndedBefore> {
        let mut loss = self.loss(now);
        let is_first = self.state.send_if_modified(|state| {
            // A loss by expiry is reported only when a call checks the lease, and this may be the first such call.
            loss = state.take_unreported_loss(loss.take());
            !std::mem::replace(&mut state.has_ended, true)
        });
        if !is_first {
            return Err(EndedBefore);
        }
        Ok(Ended {
            how,
            loss,
            held: now.saturating_duration_since(self.granted.since),
        })
    }

    /// Reports the end of the lease to telemetry.
    pub(crate) fn report_end(&self, ended: Ended) {
        self.report_loss(ended.loss);
        if self.is_guard() {
            match ended.how {
                EndReason::Released => telemetry::given_up(self.fields(), ended.held),
                EndReason::Detached => telemetry::detached(self.fields(), ended.held),
            }
        }
    }

    /// Records that the end of the client loses the lease for this reason, without an event.
    pub(crate) fn lose_by_close(&self, why: &LossReason) {
        self.state.send_modify(|state| {
            state.validity.lose(why.clone(), Instant::now());
        });
    }
}
