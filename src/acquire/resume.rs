//! `Resume`: continues a lease that a process turned into a ticket.

use std::{future::IntoFuture, sync::Arc};

use futures::future::BoxFuture;
use tokio::time::Instant;
use tracing::Instrument;

use super::options::AcquireContext;
use crate::{
    lease::{Lease, Ticket},
    lease_state::{GrantTerms, LeaseState},
    messages::{AcquireRequest, RenewAnswer, RenewRequest, only_renewal},
    model::{Error, LossReason, validation},
    retry::{LONGEST_PAUSE, Tries},
    runtime::suspension::SentAt,
    telemetry::{self, ResumeEnd},
};

/// The answer to [`Leases::resume`](crate::Leases::resume), which has an example.
#[derive(Debug)]
#[must_use = "a lease that is dropped is released at once"]
pub enum Resumed {
    /// The lease continues in this process, with a new ttl from now.
    Live(Lease),
    /// The lease was lost before it was resumed, for this reason. If it is held nevertheless, this process releases it in
    /// the background, while its runtime runs: its [`max_hold`](crate::Acquire::max_hold) is over, a late request was
    /// granted it anew, or this process is about to release it.
    Gone(LossReason),
}

/// A request to continue a lease, made by [`Leases::resume`](crate::Leases::resume). Await it: it resolves to a
/// [`Resumed`].
///
/// # Errors
///
/// [`Error::InvalidTtl`] if the ttl is too short for the clock margin of this handle; [`Error::NoRuntime`] outside a
/// tokio runtime; [`Error::RuntimeEnded`]; [`Error::Closed`]; otherwise the error of the store, after three tries if a retry could help. After
/// an error the lease is unchanged or renewed, and the ticket can be used again.
///
/// # Cancel safety
///
/// Dropping the future leaves the lease unchanged or renewed. The ticket can be used again.
#[derive(Debug)]
#[must_use = "nothing is sent until it is awaited"]
pub struct Resume {
    pub(crate) context: Arc<AcquireContext>,
    pub(crate) ticket: Ticket,
    pub(crate) keep_alive: bool,
}

impl Resume {
    /// Renews the resumed lease in the background: see [`Acquire::keep_alive`](crate::Acquire::keep_alive).
    pub fn keep_alive(mut self) -> Self {
        self.keep_alive = true;
        self
    }

    async fn run(self) -> Result<Resumed, Error> {
        let context = self.context;
        let mut request = self.ticket.request()?;
        request.ttl = validation::checked_ttl(request.ttl, context.keys.clock_margin)?;
        context.keys.begin_use()?;
        let (sent, grant) = match renew(&context, &request).await? {
            (sent, RenewAnswer::Renewed(grant)) => (sent, grant),
            (_, RenewAnswer::Expired) => return Ok(Resumed::Gone(LossReason::Expired)),
            (_, RenewAnswer::TakenOver) => return Ok(Resumed::Gone(LossReason::TakenOver)),
        };
        let terms = GrantTerms {
            request: Arc::new(request),
            clock_margin: context.keys.clock_margin,
            // The process that made the ticket may have sent more than one request.
            asked_once: false,
        };
        // `None` if the answer took so long that the renewed lease has expired on the clock of this process.
        let Some(state) = LeaseState::new(terms, &grant, sent) else {
            return Ok(Resumed::Gone(LossReason::Expired));
        };
        self.ticket.note_unclear(&state);
        let Some(resumed) = context.keys.resume(state)? else {
            return Ok(Resumed::Gone(LossReason::TakenOver));
        };
        let lease = Lease::new(context.keys.clone(), resumed);
        let loss = if self.ticket.is_of(&grant) {
            lease.set_holds(self.ticket.holds(), lease.state.times.granted_at);
            lease.state.loss(Instant::now())
        } else {
            // Another lease, which an acquire request was granted that arrived late.
            Some(LossReason::TakenOver)
        };
        // If the client closes meanwhile, it releases the lease, and the caller learns of it from the lease.
        if self.keep_alive && loss.is_none() {
            let _ = lease.keys.keep(&lease.state);
        }
        Ok(match loss {
            None | Some(LossReason::Closed) => Resumed::Live(lease),
            // The drop of the guard releases the lease, which the renewal has extended in the store.
            Some(reason) => Resumed::Gone(reason),
        })
    }
}

/// Renews the lease of a ticket. Returns the first answer, and when its request was sent.
async fn renew(
    context: &AcquireContext,
    request: &AcquireRequest,
) -> Result<(SentAt, RenewAnswer), Error> {
    let mut tries = Tries::default();
    let limit = context.keys.call_timeout().min(request.ttl);
    let renewal = RenewRequest::new(request.key.clone(), request.lease, request.ttl);
    loop {
        let (requests, sent) = ([renewal.clone()], SentAt::now());
        let renewal = context.keys.call("renew", limit, async move |store| {
            only_renewal(store.renew(&requests).await)
        });
        match renewal.await {
            Ok(answer) => return Ok((sent, answer)),
            Err(error) => tries.pause(error, LONGEST_PAUSE).await?,
        }
    }
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
