//! One lease in this process: what its guard, the keeper and those who wait for its end share.

use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

use chrono::{DateTime, Utc};
use tokio::{
    sync::watch,
    time::{Instant, timeout_at},
};
use tokio_util::sync::CancellationToken;

use crate::{
    AcquireRequest, Error, Fence, Grant, Key, LossReason, RenewAnswer, RenewRequest,
    deadline::{Validity, deadline},
    record::LeaseId,
    release::Unused,
};

/// What becomes of the lease when nobody holds its guard any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// It is released.
    Released,
    /// It stays until its ttl is over.
    Detached,
}

#[derive(Clone, Debug)]
struct State {
    validity: Validity,
    end: Option<End>,
}

#[derive(Debug)]
pub(crate) struct Hold {
    pub(crate) key: Key,
    pub(crate) id: LeaseId,
    pub(crate) owner: Arc<str>,
    pub(crate) fence: Fence,
    pub(crate) ttl: Duration,
    pub(crate) acquired_at: DateTime<Utc>,
    clock_margin: Duration,
    state: watch::Sender<State>,
    pub(crate) token: OnceLock<CancellationToken>,
}

impl Hold {
    /// A grant, which was asked for at this instant; `None` if the answer took so long that nothing
    /// is left of it.
    pub(crate) fn new(
        request: &AcquireRequest,
        grant: &Grant,
        sent: Instant,
        clock_margin: Duration,
    ) -> Option<Self> {
        let validity = Validity::until(deadline(sent, grant, clock_margin));
        if !validity.is_live(Instant::now()) {
            return None;
        }
        Some(Self {
            key: request.key.clone(),
            id: request.lease,
            owner: request.owner.clone(),
            fence: grant.fence,
            ttl: request.ttl,
            acquired_at: grant.acquired_at,
            clock_margin,
            state: watch::Sender::new(State {
                validity,
                end: None,
            }),
            token: OnceLock::new(),
        })
    }

    pub(crate) fn is_live(&self) -> bool {
        self.state.borrow().validity.is_live(Instant::now())
    }

    pub(crate) fn loss(&self) -> Option<LossReason> {
        self.state.borrow().validity.loss(Instant::now())
    }

    pub(crate) fn remaining(&self) -> Duration {
        self.state.borrow().validity.remaining(Instant::now())
    }

    pub(crate) fn deadline(&self) -> Instant {
        self.state.borrow().validity.deadline()
    }

    pub(crate) fn lost_error(&self, reason: LossReason) -> Error {
        Error::Lost {
            key: self.key.clone(),
            reason,
        }
    }

    pub(crate) fn renewal(&self) -> RenewRequest {
        RenewRequest::new(self.key.clone(), self.id, self.ttl)
    }

    /// Whether somebody counts on it, so that it is worth a renewal.
    pub(crate) fn wants_renewal(&self) -> bool {
        let state = self.state.borrow();
        state.end.is_none() && state.validity.is_live(Instant::now())
    }

    pub(crate) fn unused(&self) -> Unused {
        Unused {
            key: self.key.clone(),
            lease: self.id,
            ttl: self.ttl,
            open: false,
        }
    }

    /// Takes in that a renewal failed.
    pub(crate) fn failed(&self, error: Error) {
        self.state
            .send_modify(|state| state.validity.failed(error, Instant::now()));
    }

    /// Takes in the answer to a renewal that was sent at this instant.
    pub(crate) fn take_in(
        &self,
        sent: Instant,
        answer: Result<RenewAnswer, Error>,
    ) -> Result<(), Error> {
        let mut outcome = Ok(());
        self.state.send_modify(|State { validity, .. }| {
            let now = Instant::now();
            let lost = |reason| Err(self.lost_error(reason));
            outcome = match answer {
                Ok(RenewAnswer::Renewed(grant)) => {
                    let until = deadline(sent, &grant, self.clock_margin);
                    validity.renewed(until, now).or_else(lost)
                }
                Ok(RenewAnswer::Expired) => lost(validity.lose(LossReason::Expired, now)),
                Ok(RenewAnswer::TakenOver) => lost(validity.lose(LossReason::TakenOver, now)),
                Err(error) => {
                    validity.failed(error.clone(), now);
                    Err(error)
                }
            };
        });
        outcome
    }

    /// Nobody counts on the lease any more. Says whether this was the first to say so, who then has
    /// to see to it that it is released.
    pub(crate) fn end(&self, end: End) -> bool {
        self.state.send_if_modified(|state| {
            let first = state.end.is_none();
            state.end.get_or_insert(end);
            first
        })
    }

    /// As [`end`](Self::end), with the guard still in somebody's hand.
    pub(crate) fn close(&self) -> bool {
        self.state.send_modify(|State { validity, .. }| {
            validity.lose(LossReason::Closed, Instant::now());
        });
        self.end(End::Released)
    }

    /// Waits until nobody counts on the lease any more.
    pub(crate) async fn ended(&self) -> End {
        let mut states = self.state.subscribe();
        loop {
            if let Some(end) = states.borrow_and_update().end {
                return end;
            }
            // The sender is part of `self`, so this cannot fail.
            let _ = states.changed().await;
        }
    }

    /// Waits until the lease is lost.
    pub(crate) async fn lost(&self) -> LossReason {
        self.watch().lost().await.unwrap_or(LossReason::Closed)
    }

    /// Waits until the lease is at risk, or lost.
    pub(crate) async fn at_risk(&self) {
        let mut states = self.state.subscribe();
        loop {
            let (risk, deadline) = {
                let State { validity, .. } = &*states.borrow_and_update();
                if !validity.is_live(Instant::now()) {
                    return;
                }
                (validity.risk(self.ttl), validity.deadline())
            };
            let at = risk.unwrap_or(deadline);
            if Instant::now() >= at {
                return;
            }
            let _ = timeout_at(at, states.changed()).await;
        }
    }

    /// Watches the lease without being part of it.
    pub(crate) fn watch(&self) -> Watch {
        Watch(self.state.subscribe())
    }
}

/// Sees the end of a lease.
pub(crate) struct Watch(watch::Receiver<State>);

impl Watch {
    /// Waits until the lease is lost; `None` if it was given up before that.
    pub(crate) async fn lost(mut self) -> Option<LossReason> {
        loop {
            let deadline = {
                let State { validity, end } = &*self.0.borrow_and_update();
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
