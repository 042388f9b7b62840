//! Which renewals a store was asked for, and which of them it answered.

use std::{collections::HashMap, fmt, sync::Arc};

use async_trait::async_trait;
use leasehold::{
    Error, Store,
    store::{LeaseId, RenewAnswer, RenewAnswers, RenewRequest},
};
use parking_lot::Mutex;
use tokio::time::Instant;

use super::layer::{Layer, Layered};

/// A log of the renewals of all stores that it is put around.
#[derive(Clone, Default)]
pub struct RenewalLog {
    leases: Arc<Mutex<HashMap<LeaseId, Vec<Attempt>>>>,
}

/// A renewal that a store was asked for.
#[derive(Clone, Copy, Debug)]
struct Attempt {
    sent: Instant,
    /// When the answer came that the lease is renewed.
    renewed: Option<Instant>,
}

/// The outcome of the renewals of a lease.
#[derive(Clone, Debug, PartialEq)]
pub struct Renewals {
    /// When the last renewal that was answered was sent, and when its answer came.
    pub last: Option<(Instant, Instant)>,
    /// When the renewals after it were sent.
    pub in_vain: Vec<Instant>,
}

impl RenewalLog {
    /// The store, with its renewals recorded in this log.
    pub fn around(&self, store: Arc<dyn Store>) -> Arc<dyn Store> {
        let log = self.clone();
        Arc::new(Layered(Logged { store, log }))
    }

    /// The outcome, by this instant, of the renewals that were sent before it.
    pub fn of(&self, lease: LeaseId, until: Instant) -> Renewals {
        let leases = self.leases.lock();
        let attempts = leases.get(&lease).into_iter().flatten().rev();
        let mut in_vain = Vec::new();
        for attempt in attempts.filter(|attempt| attempt.sent < until) {
            if let Some(renewed) = attempt.renewed.filter(|at| *at < until) {
                let last = Some((attempt.sent, renewed));
                return Renewals { last, in_vain };
            }
            in_vain.push(attempt.sent);
        }
        Renewals {
            last: None,
            in_vain,
        }
    }
}

struct Logged {
    store: Arc<dyn Store>,
    log: RenewalLog,
}

impl fmt::Debug for Logged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.store.fmt(f)
    }
}

#[async_trait]
impl Layer for Logged {
    fn inner(&self) -> &dyn Store {
        &*self.store
    }

    async fn renew(&self, requests: &[RenewRequest]) -> Result<RenewAnswers, Error> {
        let sent = Instant::now();
        for request in requests {
            let mut leases = self.log.leases.lock();
            let attempts = leases.entry(request.lease).or_default();
            attempts.push(Attempt {
                sent,
                renewed: None,
            });
        }
        let answers = self.store.renew(requests).await?;
        let now = Instant::now();
        for (request, answer) in requests.iter().zip(&answers) {
            if let Ok(RenewAnswer::Renewed(_)) = answer {
                let mut leases = self.log.leases.lock();
                let attempts = leases.get_mut(&request.lease).into_iter().flatten();
                attempts
                    .filter(|attempt| attempt.sent == sent)
                    .for_each(|attempt| attempt.renewed = Some(now));
            }
        }
        Ok(answers)
    }
}
