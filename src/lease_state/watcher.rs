//! Waiting for the end of a lease.

use tokio::{
    sync::watch,
    time::{Instant, timeout_at},
};

use super::status::Status;
use crate::model::LossReason;

/// Sees the end of a lease.
pub(crate) struct LossWatcher(pub(super) watch::Receiver<Status>);

impl LossWatcher {
    /// Waits until the lease is lost; `None` if it was given up before that.
    pub(crate) async fn lost(mut self) -> Option<LossReason> {
        loop {
            let deadline = {
                let Status { validity, end, .. } = &*self.0.borrow_and_update();
                match (validity.loss(Instant::now()), end) {
                    (None, None) => validity.deadline(),
                    (loss, _) => return loss,
                }
            };
            // At the deadline it is lost, whatever a renewal under way may bring.
            if let Ok(Err(_)) = timeout_at(deadline, self.0.changed()).await {
                return None;
            }
        }
    }
}
