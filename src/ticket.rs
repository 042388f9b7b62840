//! A lease that goes from one process to another.

use std::{future::IntoFuture, sync::Arc, time::Duration};

use futures::future::BoxFuture;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;
use tracing::Instrument;

use crate::{
    hold::{Hold, Terms},
    keeper,
    lease::Lease,
    leases::Shared,
    messages::{AcquireRequest, RenewAnswer, RenewRequest},
    model::{Error, Fence, Key, LeaseId, LossReason, Mode},
    retry::Tries,
    runtime,
    telemetry::{self, ResumeEnd},
};

/// A lease without its guard: what another process needs to go on with it, made by
/// [`Lease::into_ticket`] and taken by [`Leases::resume`](crate::Leases::resume).
///
/// It can be sent with `serde`, beside a job in a queue for example. Hand it to one process only: two
/// that go on with the same lease do not exclude each other.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ticket {
    key: Key,
    lease: LeaseId,
    owner: Arc<str>,
    mode: Mode,
    permits: i64,
    fence: Fence,
    ttl_ms: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    min_hold_ms: Option<u64>,
}

impl Ticket {
    pub(crate) fn of(hold: &Hold) -> Self {
        let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let request = hold.request();
        Self {
            key: request.key.clone(),
            lease: request.lease,
            owner: request.owner.clone(),
            mode: hold.mode(),
            permits: request.permits,
            fence: hold.fence(),
            ttl_ms: millis(request.ttl),
            min_hold_ms: hold.min_hold().map(millis),
        }
    }

    /// The key that is held.
    pub fn key(&self) -> &Key {
        &self.key
    }

    /// The fencing token, which stays the same.
    pub fn fence(&self) -> Fence {
        self.fence
    }

    fn request(&self) -> AcquireRequest {
        let ttl = Duration::from_millis(self.ttl_ms);
        let (key, owner) = (self.key.clone(), self.owner.clone());
        let mut request = AcquireRequest::exclusive(key, self.lease, owner, ttl);
        (request.mode, request.permits) = (self.mode, self.permits);
        request
    }
}

/// The answer to [`Leases::resume`](crate::Leases::resume).
#[derive(Debug)]
#[must_use = "a lease that is dropped is released at once"]
pub enum Resumed {
    /// The lease goes on here, with its whole ttl from now.
    Live(Lease),
    /// The lease is over.
    Gone(LossReason),
}

/// A request to go on with a lease, made by [`Leases::resume`](crate::Leases::resume). Await it.
///
/// # Errors
///
/// What the store answers, after three tries if a retry could help; [`Error::InvalidTtl`] if this handle
/// has a clock margin that the ttl is too short for; [`Error::Closed`].
///
/// # Cancel safety
///
/// Dropping the future leaves the lease as it is, or renewed. The ticket can be used again.
#[derive(Debug)]
#[must_use = "nothing is sent until it is awaited"]
pub struct Resume {
    shared: Arc<Shared>,
    ticket: Ticket,
    keep_alive: bool,
}

impl Resume {
    pub(crate) fn new(shared: Arc<Shared>, ticket: Ticket) -> Self {
        Self {
            shared,
            ticket,
            keep_alive: false,
        }
    }

    /// Renews the lease in the background from now on: see
    /// [`Acquire::keep_alive`](crate::Acquire::keep_alive).
    pub fn keep_alive(mut self) -> Self {
        self.keep_alive = true;
        self
    }

    async fn run(self) -> Result<Resumed, Error> {
        let shared = self.shared;
        let mut request = self.ticket.request();
        request.ttl = crate::model::validation::checked_ttl(request.ttl, shared.clock_margin)?;
        if shared.keeper.closing().is_cancelled() {
            return Err(Error::Closed);
        }
        shared.keeper.ensure_running()?;
        let mut tries = Tries::default();
        let (sent, grant) = loop {
            let sent = Instant::now();
            match renew(&shared, &request).await {
                Ok(RenewAnswer::Renewed(grant)) => break (sent, grant),
                Ok(RenewAnswer::Expired) => return Ok(Resumed::Gone(LossReason::Expired)),
                Ok(RenewAnswer::TakenOver) => return Ok(Resumed::Gone(LossReason::TakenOver)),
                Err(error) => match tries.pause_after(&error) {
                    Some(pause) => tokio::time::sleep(pause).await,
                    None => return Err(error),
                },
            }
        };
        let terms = Terms {
            request: Arc::new(request),
            clock_margin: shared.clock_margin,
            // What was sent by whom the ticket comes from is not known.
            asked_once: false,
        };
        // The answer took so long that nothing is left of it.
        let Some(hold) = Hold::new(terms, &grant, sent) else {
            return Ok(Resumed::Gone(LossReason::Expired));
        };
        hold.set_min_hold(self.ticket.min_hold_ms.map(Duration::from_millis));
        let lease = Lease::new(shared.clone(), hold);
        if shared.keeper.closing().is_cancelled() {
            return Err(Error::Closed);
        }
        if self.keep_alive {
            lease.keep()?;
        }
        Ok(Resumed::Live(lease))
    }
}

async fn renew(shared: &Shared, request: &AcquireRequest) -> Result<RenewAnswer, Error> {
    let store = shared.store.clone();
    let limit = shared.call_timeout.min(request.ttl);
    let request = [RenewRequest::new(
        request.key.clone(),
        request.lease,
        request.ttl,
    )];
    runtime::call("renew", limit, async move {
        keeper::only(store.renew(&request).await)
    })
    .await
}

impl IntoFuture for Resume {
    type Output = Result<Resumed, Error>;
    type IntoFuture = BoxFuture<'static, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let ticket = self.ticket.clone();
            let (key, fence) = (ticket.key(), ticket.fence());
            let span = telemetry::resume(key, fence);
            let resumed = self.run().instrument(span.clone()).await;
            let end = match &resumed {
                Ok(Resumed::Live(lease)) => ResumeEnd::Live(lease.id()),
                Ok(Resumed::Gone(reason)) => ResumeEnd::Gone(reason),
                Err(error) => ResumeEnd::Failed(error),
            };
            telemetry::resumed(&span, key, fence, end);
            resumed
        })
    }
}
