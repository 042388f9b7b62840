//! `LossWatcher`: waits for the loss of a lease without keeping its state in memory.

use tokio::{
    sync::watch,
    time::{Instant, timeout_at},
};

use super::status::Status;
use crate::model::LossReason;

/// Watches a lease until it is lost or given up.
pub(crate) struct LossWatcher {
    pub(super) lease: watch::Receiver<Status>,
    /// The lease in the store, if the lease was granted from memory.
    pub(super) backing: Option<watch::Receiver<Status>>,
}

impl LossWatcher {
    /// Waits until the lease is lost, and returns the reason. `None` if the lease is given up before that.
    pub(crate) async fn lost(mut self) -> Option<LossReason> {
        loop {
            let (loss, mut deadline, has_ended) = look(&mut self.lease);
            let mut loss = loss;
            if let Some(backing) = &mut self.backing {
                let (its_loss, its_deadline, _) = look(backing);
                (loss, deadline) = (loss.or(its_loss), deadline.min(its_deadline));
            }
            if loss.is_some() || has_ended {
                return loss;
            }
            // A renewal that is under way at the deadline does not delay the loss, because its answer would come too
            // late.
            let changed = changed(&mut self.lease, self.backing.as_mut());
            if let Ok(Err(_)) = timeout_at(deadline, changed).await {
                return None;
            }
        }
    }
}

/// Waits until one of the two changes. Fails when the state of one is gone.
pub(super) async fn changed(
    lease: &mut watch::Receiver<Status>,
    backing: Option<&mut watch::Receiver<Status>>,
) -> Result<(), watch::error::RecvError> {
    match backing {
        None => lease.changed().await,
        Some(backing) => tokio::select! {
            changed = lease.changed() => changed,
            changed = backing.changed() => changed,
        },
    }
}

fn look(lease: &mut watch::Receiver<Status>) -> (Option<LossReason>, Instant, bool) {
    let state = &*lease.borrow_and_update();
    let loss = state.validity.loss(Instant::now());
    (loss, state.validity.deadline(), state.has_ended)
}
