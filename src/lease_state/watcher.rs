//! `LossWatcher`: waits for the loss of a lease without keeping its state in memory.

use tokio::{
    sync::watch,
    time::{Instant, timeout_at},
};

use super::status::{Phase, Status};
use crate::model::LossReason;

/// Watches a lease until it is lost or given up.
pub(crate) struct LossWatcher(pub(super) watch::Receiver<Status>);

impl LossWatcher {
    /// Waits until the lease is lost, and returns the reason. `None` if the lease is given up before that.
    pub(crate) async fn lost(mut self) -> Option<LossReason> {
        loop {
            let deadline = {
                let Status {
                    validity, phase, ..
                } = &*self.0.borrow_and_update();
                match (validity.loss(Instant::now()), phase) {
                    (None, Phase::Held) => validity.deadline(),
                    (loss, _) => return loss,
                }
            };
            // A renewal that is under way at the deadline does not delay the loss, because its answer would come too
            // late.
            if let Ok(Err(_)) = timeout_at(deadline, self.0.changed()).await {
                return None;
            }
        }
    }
}
