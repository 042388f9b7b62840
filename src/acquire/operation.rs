//! One acquire, from its first request to its last. The caller's future runs it, or a task (see `InlineTask`).
//!
//! All requests of an acquire have the same lease id. A request that was sent is never dropped: when the caller's
//! future is dropped, a task goes on, waits for the answers, and releases what they granted. Background renewals and
//! the minimum hold begin only when the caller has the lease, so a future that is not polled does not keep a key
//! locked. An acquire that begins during a close sees the close; a close waits for every other one.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use futures::future::BoxFuture;
use tokio::{
    sync::oneshot,
    time::{Instant, sleep},
};
use tokio_util::task::task_tracker::TaskTrackerToken;
use tracing::Instrument;

use super::{
    attempt::Attempt,
    cleanup::{Cleanup, Leftover},
    context::AcquireContext,
    options::LeaseOptions,
};
use crate::{
    lease::Lease,
    lease_state::{GrantTerms, LeaseState},
    messages::{AcquireAnswer, AcquireRequest},
    model::{Error, Held, Key, WaitPolicy},
    retry::{TRIES, Tries},
    rules,
    runtime::{in_flight::InFlight, inline_task::InlineTask},
    telemetry::{self, AcquireSpan},
    waiters::{HandoffOffer, HandoffOutcome, WaitOutcome, Waiter, ensure_listener},
};

/// An acquire waits for late renewals for this part of its ttl at most: a third.
const SLOWED_DOWN: u32 = 3;

/// Whether an acquire that does not wait sends its request again after an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Retries {
    /// A few times.
    Some,
    /// No. Not even if there is no answer: a set that asks for its keys in another way then would otherwise wait for
    /// what the repeated request was granted.
    None,
}

/// Acquires one key. The minimum hold applies as soon as the caller has the lease.
pub(crate) async fn acquire(
    ask: LeaseOptions,
    key: Result<Key, Error>,
    patience: WaitPolicy,
) -> Result<Attempt, Error> {
    let min_hold = ask.min_hold;
    let end = acquire_one_of_several(ask, key, patience, Retries::Some).await;
    if let Ok(Attempt::Acquired(lease)) = &end {
        lease.state().set_min_hold(min_hold);
    }
    end
}

/// Acquires one key of a set, without the minimum hold. If another key is not granted, the set releases this one and
/// asks for it again; a minimum hold would keep the key from the set itself.
pub(crate) async fn acquire_one_of_several(
    ask: LeaseOptions,
    key: Result<Key, Error>,
    patience: WaitPolicy,
    retries: Retries,
) -> Result<Attempt, Error> {
    let waits = patience != WaitPolicy::None;
    let span = AcquireSpan::begin(key.as_ref().ok(), ask.fields(), waits);
    let (context, keep_alive) = (ask.context.clone(), ask.keep_alive);
    let (reply, outcome) = oneshot::channel();
    let mut end = match begin(ask, key, patience, retries, span.since(), reply) {
        Ok((work, asking)) => {
            let waiting = context
                .registry
                .lifecycle
                .wait_for(work, span.since(), asking, outcome);
            let outcome = waiting.instrument(span.span()).await;
            outcome.flatten()
        }
        Err(error) => Err(error),
    };
    let now = Instant::now();
    if let Ok(Attempt::Acquired(lease)) = &end
        && let Err(error) = in_hand(&context, lease, keep_alive, now)
    {
        end = Err(error);
    }
    match &end {
        Ok(Attempt::Acquired(lease)) => span.granted(lease.state().fields(), lease.owner(), now),
        Ok(Attempt::Held(held)) => span.refused(held, now),
        Err(error) => span.failed(error, now),
    }
    end
}

fn begin(
    ask: LeaseOptions,
    key: Result<Key, Error>,
    patience: WaitPolicy,
    retries: Retries,
    since: Instant,
    reply: Reply,
) -> Result<(Arc<InlineTask>, BoxFuture<'static, ()>), Error> {
    // The token comes before the check for a close. So a close either waits for this acquire, or is seen here.
    let at_work = ask.context.registry.lifecycle.at_work();
    let work = InlineTask::new()?;
    let acquisition = AcquireOperation::new(ask, key?, retries, since, &work)?;
    // Boxed here, because every future that is passed this one by value would grow by its size.
    let asking = Box::pin(acquisition.run(patience, reply, at_work));
    Ok((work, asking))
}

/// Checks the lease that the caller gets. It has expired if the caller's future was not polled for too long.
fn in_hand(
    context: &AcquireContext,
    lease: &Lease,
    keep_alive: bool,
    now: Instant,
) -> Result<(), Error> {
    match lease.is_live_at(now) {
        // Renewals begin only now. Else a future that is never polled again would hold the key without end.
        true if keep_alive => lease.keep(),
        true => Ok(()),
        false if context.registry.lifecycle.is_closing() => Err(Error::Closed),
        false => Err(Error::NotTaken {
            key: lease.key().clone(),
            ttl: lease.ttl(),
        }),
    }
}

/// Waits while the renewals of this handle are late, because one more lease to renew would delay them further.
pub(super) async fn give_way(
    context: &AcquireContext,
    key: &Key,
    ttl: Duration,
    patience: WaitPolicy,
    since: Instant,
) {
    let longest = ttl / SLOWED_DOWN;
    let limit = match patience {
        WaitPolicy::For(wait) => longest.min(wait),
        WaitPolicy::None | WaitPolicy::Endless => longest,
    };
    if context.registry.renewals.renewals_in_time(limit).await {
        telemetry::slowed_down(key, since.elapsed());
    }
}

type Reply = oneshot::Sender<Result<Attempt, Error>>;

struct AcquireOperation {
    context: Arc<AcquireContext>,
    /// The next request. After one that failed it is not fresh, because that one may have been granted.
    request: Arc<AcquireRequest>,
    /// Whether the acquire waits while renewals are late.
    gives_way: bool,
    /// When the caller began to wait.
    since: Instant,
    calls: InFlight<AcquireAnswer>,
    /// What the requests that have ended may have left in the store.
    left: Leftover,
    /// The inline task that runs this operation. The wait queue detaches it when another waiter depends on it.
    work: Weak<InlineTask>,
    retries: Retries,
}

impl AcquireOperation {
    fn new(
        ask: LeaseOptions,
        key: Key,
        retries: Retries,
        since: Instant,
        work: &Arc<InlineTask>,
    ) -> Result<Self, Error> {
        let request = ask.request(key)?.fresh();
        let context = ask.context;
        if context.registry.lifecycle.is_closing() {
            return Err(Error::Closed);
        }
        context.registry.renewals.ensure_running()?;
        Ok(Self {
            context,
            request: Arc::new(request),
            gives_way: ask.gives_way,
            since,
            calls: InFlight::new(),
            left: Leftover::Nothing,
            work: Arc::downgrade(work),
            retries,
        })
    }

    async fn run(mut self, patience: WaitPolicy, mut reply: Reply, at_work: TaskTrackerToken) {
        let closing = self.context.registry.lifecycle.closing().clone();
        let outcome = tokio::select! {
            biased;
            // The caller's future was dropped.
            () = reply.closed() => Err(Error::Closed),
            () = closing.cancelled() => Err(Error::Closed),
            outcome = self.ask(patience) => outcome,
        };
        let state = match &outcome {
            Ok(Attempt::Acquired(lease)) => Some(lease.state()),
            _ => None,
        };
        // If the caller has gone, `send` gives the lease back. Its drop releases it.
        let _ = reply.send(outcome);
        self.calls.stop_sending();
        let cleanup = Cleanup {
            context: self.context,
            request: self.request,
            calls: self.calls,
            left: self.left,
        };
        match state {
            None => cleanup.run(at_work).await,
            Some(_) if cleanup.calls.is_empty() => {}
            // Boxed, because every waiter's future has room for it, and few need it.
            Some(state) => Box::pin(cleanup.outlive(state, at_work)).await,
        }
    }

    async fn ask(&mut self, patience: WaitPolicy) -> Result<Attempt, Error> {
        if self.gives_way {
            let (context, key, ttl) = (&self.context, &self.request.key, self.request.ttl);
            give_way(context, key, ttl, patience, self.since).await;
        }
        match patience {
            WaitPolicy::None | WaitPolicy::For(Duration::ZERO) => self.ask_now(patience).await,
            // A reentrant owner may hold the key already. Behind waiters that wait for its release it would deadlock.
            _ if self.request.reentrant => match self.attempt().await {
                Ok(Attempt::Held(_)) => self.ask_in_turn(patience).await,
                Err(error) if error.is_retryable() => self.ask_in_turn(patience).await,
                answer => answer,
            },
            _ => self.ask_in_turn(patience).await,
        }
    }

    /// Asks without waiting for a holder to leave.
    async fn ask_now(&mut self, patience: WaitPolicy) -> Result<Attempt, Error> {
        let start = self.since;
        let mut tries = Tries::default();
        let context = self.context.clone();
        let refused = &context.refused;
        if refused.is_likely_held(&self.request.key, start) {
            Arc::make_mut(&mut self.request).likely_held = true;
        }
        loop {
            let attempt = self.attempt().await;
            match &attempt {
                Ok(Attempt::Held(held)) => refused.refused(held, Instant::now()),
                Ok(Attempt::Acquired(lease)) => refused.granted(lease.key()),
                Err(_) => {}
            }
            match attempt {
                Err(error) if self.retries == Retries::None => return Err(error),
                Ok(Attempt::Held(held))
                    if patience != WaitPolicy::None || rules::is_full(&held, &self.request) =>
                {
                    return Err(self.refusal(start.elapsed(), held));
                }
                Err(error) => match tries.pause_after(&error) {
                    Some(pause) => {
                        self.calls.select_response(sleep(pause)).await;
                    }
                    None => return Err(error),
                },
                answer => return answer,
            }
        }
    }

    /// Waits in the queue of the key, and asks whenever it is this waiter's turn, until the key is granted or the time
    /// is over.
    async fn ask_in_turn(&mut self, patience: WaitPolicy) -> Result<Attempt, Error> {
        let start = self.since;
        let give_up = match patience {
            // `None` if the instant is beyond what the clock can show: then there is no bound.
            WaitPolicy::For(wait) => start.checked_add(wait),
            WaitPolicy::None | WaitPolicy::Endless => None,
        };
        let context = self.context.clone();
        let place = Waiter::enter(
            &context.registry.queues,
            &self.request.key,
            self.work.clone(),
        );
        let mut last_look = give_up;
        // Without a bound, a waiter gives up after nothing but errors for the call timeout.
        let gives_up = match give_up {
            None => start.checked_add(context.registry.call_timeout),
            Some(_) => None,
        };
        loop {
            // The lease of this process that hands its key to this one, and its streak.
            let mut from = None;
            let attempt = match self
                .calls
                .select_response(place.turn(last_look, gives_up))
                .await
            {
                Some(WaitOutcome::Ask) => {
                    // The holder waits for the answer to this request. With others under way, the next answer may
                    // be to one of those.
                    let offer = place.begin_to_ask().filter(|_| self.calls.is_empty());
                    from = offer.as_ref().map(|offer| (offer.from(), offer.streak()));
                    match offer {
                        Some(offer) => self.take(offer).await,
                        None => self.attempt().await,
                    }
                }
                Some(WaitOutcome::GiveUp) => {
                    let waited = start.elapsed();
                    return Err(match place.last_answer() {
                        Some(Ok(held)) => self.refusal(waited, held),
                        Some(Err(error)) => error,
                        None => too_late(waited),
                    });
                }
                // An earlier request was answered meanwhile.
                None => self.answer().await,
            };
            let now = Instant::now();
            let over = give_up.is_some_and(|at| now >= at);
            if over {
                last_look = None;
            }
            match attempt {
                Ok(Attempt::Acquired(lease)) => {
                    place.granted(lease.id(), lease.mode(), lease.remaining(), from);
                    return Ok(Attempt::Acquired(lease));
                }
                Ok(Attempt::Held(held)) => {
                    place.refused(held.clone());
                    ensure_listener(
                        &context.registry.queues,
                        &context.registry.store,
                        context.registry.lifecycle.closing(),
                    );
                    if over {
                        return Err(self.refusal(now - start, held));
                    }
                }
                Err(error) if error.is_retryable() => {
                    let (failures, answered) = place.failed(error.clone()).unwrap_or((TRIES, now));
                    let silence = now.saturating_duration_since(answered.max(start));
                    let is_silent = give_up.is_none() && silence >= context.registry.call_timeout;
                    if is_silent && failures >= TRIES {
                        place.fail_waiters();
                        return Err(error);
                    }
                    if over {
                        return Err(error);
                    }
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// The error for a key that stayed held until the time was over.
    fn refusal(&self, waited: Duration, held: Held) -> Error {
        if rules::is_full(&held, &self.request) {
            Error::TooManyHolders {
                key: self.request.key.clone(),
            }
        } else {
            Error::WaitTimedOut { waited, held }
        }
    }

    /// Sends one request and waits for an answer.
    async fn attempt(&mut self) -> Result<Attempt, Error> {
        self.send(self.request.clone()).await
    }

    /// Asks for the key in the place of a lease of this process, and tells its holder the outcome.
    async fn take(&mut self, offer: HandoffOffer) -> Result<Attempt, Error> {
        let request = AcquireRequest::clone(&self.request).in_place_of(offer.from());
        let sent = offer.sent();
        let attempt = self.send(Arc::new(request)).await;
        match &attempt {
            Ok(Attempt::Acquired(_)) => sent.tell(HandoffOutcome::Over),
            Ok(Attempt::Held(_)) => sent.tell(HandoffOutcome::NotOver),
            // The request may have been carried out, so the drop tells the holder that the outcome is unclear.
            Err(_) => drop(sent),
        }
        attempt
    }

    async fn send(&mut self, request: Arc<AcquireRequest>) -> Result<Attempt, Error> {
        let call = self.context.coalescer.acquire(request);
        self.calls.start(match self.retries {
            Retries::Some => call,
            Retries::None => call.not_repeated(),
        });
        let attempt = self.answer().await;
        if attempt.is_err() {
            Arc::make_mut(&mut self.request).fresh = false;
        }
        attempt
    }

    fn failed(&self, error: Error) -> Error {
        let about = (&self.request.key, self.request.lease);
        telemetry::store_failed("acquire", Some(about), &error);
        error
    }

    /// How long to wait for an answer. A lease that is granted later than its ttl has expired.
    fn longest(&self) -> Duration {
        self.context.registry.call_timeout.min(self.request.ttl)
    }

    /// Takes the next answer to any request of this acquire.
    async fn answer(&mut self) -> Result<Attempt, Error> {
        let limit = self.longest();
        let answered = self.calls.next(limit).await;
        // The next attempt is the same request.
        self.calls.stop_sending();
        let Some((sent, answer)) = answered else {
            return Err(self.failed(too_late(limit)));
        };
        if let Err(error) = &answer {
            self.left = self.left.max(Leftover::of_error(error));
        }
        let grant = match answer.map_err(|error| self.failed(error))? {
            AcquireAnswer::Granted(grant) => grant,
            AcquireAnswer::Held(held) => return Ok(Attempt::Held(held)),
        };
        let terms = GrantTerms {
            request: self.request.clone(),
            clock_margin: self.context.clock_margin,
            asked_once: self.request.fresh
                && self.left == Leftover::Nothing
                && self.calls.is_empty(),
        };
        let Some(state) = LeaseState::new(terms, &grant, sent) else {
            self.left = self.left.max(Leftover::Granted);
            return Err(self.failed(too_late(limit)));
        };
        if self.left == Leftover::Unclear {
            state.set_maybe_in_flight();
        }
        let lease = Lease::new(self.context.registry.clone(), state);
        // A close that came before the registry had the lease did not release it. The drop of the lease does.
        if self.context.registry.lifecycle.is_closing() {
            Err(Error::Closed)
        } else {
            Ok(Attempt::Acquired(lease))
        }
    }
}

fn too_late(limit: Duration) -> Error {
    Error::TimedOut {
        operation: "acquire",
        limit,
    }
}

#[cfg(test)]
mod tests;
