//! What can be waited for: the loss of a lease, and the risk of its loss.

use tokio::{
    sync::watch::Receiver,
    time::{Instant, timeout_at},
};

use super::{LeaseState, status::Status};
use crate::model::LossReason;

impl LeaseState {
    /// Whether the holder has given up the lease.
    pub(crate) fn has_ended(&self) -> bool {
        self.state.borrow().has_ended
    }

    /// Waits until the lease is lost, and returns the reason. If the holder gives it up before that, it is
    /// [closed](LossReason::Closed).
    pub(crate) async fn lost(&self) -> LossReason {
        let reason = self.lost_or_ended().await;
        self.check_loss();
        reason.unwrap_or(LossReason::Closed)
    }

    /// Waits until the lease is lost, or its holder gives it up, without an event.
    pub(crate) async fn lost_or_ended(&self) -> Option<LossReason> {
        self.until(|now| match self.loss(now) {
            // A renewal that is under way at the deadline does not delay the loss, because its answer would come too
            // late.
            None if !self.has_ended() => Err(self.deadline()),
            loss => Ok(loss),
        })
        .await
    }

    /// Waits until the lease is at risk, or lost.
    pub(crate) async fn at_risk(&self) {
        self.until(|now| {
            let at = self.risk();
            let at = self.backing.as_ref().map_or(at, |it| at.min(it.risk()));
            if now >= at || !self.is_live(now) {
                Ok(())
            } else {
                Err(at)
            }
        })
        .await;
    }

    /// When the lease itself is at risk, or lost if it is at no risk before.
    fn risk(&self) -> Instant {
        let state = self.state.borrow();
        let risk = state.validity.risk(self.ttl(), self.unrenewed(&state));
        drop(state);
        risk.unwrap_or_else(|| self.deadline())
    }

    /// Waits until `look` returns something. It looks after each change, and at the instant that it returns as its error.
    async fn until<T>(&self, look: impl Fn(Instant) -> Result<T, Instant>) -> T {
        let mut own = self.state.subscribe();
        let mut backing = self.backing.as_ref().map(|it| it.state.subscribe());
        loop {
            own.mark_unchanged();
            backing.iter_mut().for_each(Receiver::mark_unchanged);
            match look(Instant::now()) {
                Ok(seen) => return seen,
                Err(at) => drop(timeout_at(at, changed(&mut own, backing.as_mut())).await),
            }
        }
    }
}

/// Waits until one of the two changes.
async fn changed(own: &mut Receiver<Status>, backing: Option<&mut Receiver<Status>>) {
    // The states are there for as long as somebody waits.
    let _ = match backing {
        None => own.changed().await,
        Some(backing) => tokio::select! {
            changed = own.changed() => changed,
            changed = backing.changed() => changed,
        },
    };
}
