//! One acquire, from its first request to its last. The caller's future polls the operation, or a task does (see
//! `InlineTask`).
//!
//! Invariants:
//!
//! - All requests of an acquire have the same lease id.
//! - A request that was sent is never dropped. When the caller's future is dropped, a task waits for the answers, and
//!   releases what they grant.
//! - Background renewals and the minimum hold begin only when the caller has the lease. So a future that is not polled
//!   any more does not keep a key locked. A lease that stays with this process is renewed from its grant on, but what
//!   is granted under it ends with its own ttl.
//! - An acquire that begins during a close fails; a close waits for every other acquire.

mod in_turn;
mod reentrant;
mod shared_turn;
mod tick;

use std::{
    num::NonZeroU16,
    panic::AssertUnwindSafe,
    sync::{Arc, Weak},
    time::Duration,
};

use futures::FutureExt;
use tokio::{
    sync::oneshot,
    time::{Instant, sleep},
};
use tokio_util::task::task_tracker::TaskTrackerToken;

use super::{
    attempt::Attempt,
    backpressure::wait_for_renewals,
    cleanup::{Cleanup, Leftover},
    context::AcquireContext,
    options::LeaseOptions,
};
use crate::{
    coalescer::Repeats,
    lease::Lease,
    lease_state::{GrantTerms, LeaseState},
    messages::{AcquireAnswer, AcquireRequest},
    model::{Access, Error, Held, Key, WaitPolicy, WaiterId},
    retry::{self, Tries},
    rules,
    runtime::{self, in_flight::InFlight, inline_task::InlineTask, suspension},
    sticky::Fences,
    telemetry,
    waiters::{HandoffOffer, HandoffOutcome, Waiter},
};

/// Whether an acquire that does not wait sends its request again after an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Retries {
    /// A few times.
    Some,
    /// Never, not even when no answer comes. A set then acquires its keys one after the other, and would have to wait
    /// for a lease that the repeated request was granted.
    None,
}

pub(super) type Reply = oneshot::Sender<AcquireReport>;

/// What an acquire reports at its end.
pub(super) struct AcquireReport {
    pub(super) outcome: Result<Attempt, Error>,
    /// How many waiting processes came first when a request was first refused. `None` if no request was refused.
    pub(super) ahead: Option<usize>,
}

pub(super) struct AcquireOperation {
    context: Arc<AcquireContext>,
    /// The next request. After a [failed](Self::has_failed) request, or beside one that is not answered, it is not
    /// `fresh`, because the other one may have been granted.
    request: Arc<AcquireRequest>,
    /// When the caller began to wait.
    since: Instant,
    calls: InFlight<AcquireAnswer>,
    /// What the requests that have ended may have left in the store.
    leftover: Leftover,
    /// The inline task that runs this operation. The wait queue detaches it when another waiter depends on it.
    work: Weak<InlineTask>,
    retries: Retries,
    has_failed: bool,
    /// How many waiting processes came first when a request was first refused.
    ahead: Option<usize>,
    /// The waiter of this operation, while it is in the queue of the key.
    waiter: Option<Arc<Waiter>>,
    /// Whether the lease may have been granted by a handoff whose request said that this process has no place. Such a
    /// grant leaves a place that the late request of another task has taken meanwhile.
    may_have_left_place: bool,
    /// The place in the document that an earlier waiter of this operation was the last to wait in.
    place_to_give_up: Option<WaiterId>,
    options: LeaseOptions,
    /// For how long the lease stays with this process, if the store grants it. `None` if it does not stay.
    stays_for: Option<Duration>,
    /// How long the machine had been suspended in all when the first of the requests was sent that are not answered.
    suspended: Duration,
}

impl AcquireOperation {
    pub(super) fn new(
        options: LeaseOptions,
        key: Key,
        retries: Retries,
        since: Instant,
        work: &Arc<InlineTask>,
    ) -> Result<Self, Error> {
        let mut request = options.request(key)?.fresh();
        let context = options.context.clone();
        if context.registry.lifecycle.is_closing() {
            return Err(Error::Closed);
        }
        context.registry.renewals.ensure_running()?;
        let may_stay = || context.registry.stays.may_stay(&request.key, since);
        let stays_for = options.stays_for().filter(|_| may_stay());
        if stays_for.is_some() && request.access == Access::Exclusive {
            request.fences = Fences::COUNT;
        }
        Ok(Self {
            context,
            request: Arc::new(request),
            since,
            options,
            stays_for,
            suspended: Duration::ZERO,
            calls: InFlight::new(),
            leftover: Leftover::Nothing,
            work: Arc::downgrade(work),
            retries,
            has_failed: false,
            ahead: None,
            waiter: None,
            may_have_left_place: false,
            place_to_give_up: None,
        })
    }

    pub(super) async fn run(
        mut self,
        wait_policy: WaitPolicy,
        mut reply: Reply,
        at_work: TaskTrackerToken,
    ) {
        let closing = self.context.registry.lifecycle.closing().clone();
        let asked = AssertUnwindSafe(async {
            tokio::select! {
                biased;
                // The caller's future was dropped.
                () = reply.closed() => Err(Error::Closed),
                () = closing.cancelled() => Err(Error::Closed),
                outcome = self.ask(wait_policy) => outcome,
            }
        });
        // A subscriber of the application that panics in an event must not keep this from cleaning up.
        let asked = asked.catch_unwind().await;
        let outcome = asked.unwrap_or_else(|_| Err(runtime::panicked()));
        let state = match &outcome {
            Ok(Attempt::Acquired(lease)) if lease.id() == self.request.lease => {
                Some(lease.stored())
            }
            // Either no lease was granted, or one from memory, for which the requests of this acquire are not needed.
            _ => None,
        };
        let place_to_give_up = self.waiter.take().and_then(|waiter| waiter.leave());
        let place_to_give_up = place_to_give_up.or(self.place_to_give_up);
        // If the caller has dropped its future, `send` returns the lease, and the drop of the lease releases it.
        let ahead = self.ahead;
        let _ = reply.send(AcquireReport { outcome, ahead });
        self.calls.stop_sending();
        let place_if_refused = self.request.turn.waiter();
        // If the lease was granted, the grant has ended the place, whatever an earlier request did. If it has not, the
        // queue knows, and the last waiter gives the place up.
        let may_be_taken = state.is_none() && self.leftover == Leftover::Unclear;
        let place = place_to_give_up.or_else(|| place_if_refused.filter(|_| may_be_taken));
        let cleanup = Cleanup {
            context: self.context,
            request: self.request,
            calls: self.calls,
            leftover: self.leftover,
            place,
            place_if_refused,
        };
        match state {
            None => cleanup.run(at_work).await,
            Some(_) if cleanup.calls.is_empty() => cleanup.give_up_place().await,
            // Boxed, so that the future of a waiter does not contain the clean-up, which few waiters need.
            Some(state) => Box::pin(cleanup.outlive(state, at_work)).await,
        }
    }

    async fn ask(&mut self, wait_policy: WaitPolicy) -> Result<Attempt, Error> {
        if self.options.waits_for_renewals {
            let (context, key, ttl) = (&self.context, &self.request.key, self.request.ttl);
            wait_for_renewals(context, key, ttl, wait_policy, self.since).await;
        }
        match wait_policy {
            WaitPolicy::None | WaitPolicy::For(Duration::ZERO) => self.ask_now(wait_policy).await,
            WaitPolicy::For(wait) => {
                let wait_ends = retry::wait_end(self.since, wait);
                self.ask_until(Some(wait_ends)).await
            }
            WaitPolicy::Endless => self.ask_until(None).await,
        }
    }

    /// Sends requests until the key is granted or the time is over. `wait_ends` is `None` if the wait has no bound.
    async fn ask_until(&mut self, wait_ends: Option<Instant>) -> Result<Attempt, Error> {
        let end = if self.request.reentrant {
            let attempt = self.attempt().await;
            self.ask_as_owner(attempt, wait_ends).await
        } else if self.enter_shared_turn() {
            let attempt = self.ask_in_shared_turn().await;
            self.end_of_wait(attempt, wait_ends)
        } else if self.depends_on_first_waiter() {
            self.read_tick(retry::LONGEST_PAUSE).await.map(Err)
        } else {
            None
        };
        match end {
            Some(end) => end,
            None => self.ask_in_turn(wait_ends).await,
        }
    }

    /// How the wait ends with this answer: with a grant, with an error that a retry cannot fix, or because the time is
    /// over. `None` if it goes on.
    fn end_of_wait(
        &self,
        attempt: Result<Attempt, Error>,
        wait_ends: Option<Instant>,
    ) -> Option<Result<Attempt, Error>> {
        let now = Instant::now();
        let is_over = wait_ends.is_some_and(|at| now >= at);
        match attempt {
            Ok(Attempt::Held(held)) if is_over => Some(Err(self.refusal(now - self.since, held))),
            Ok(Attempt::Held(_)) => None,
            Err(error) if error.is_retryable() && !is_over => None,
            end => Some(end),
        }
    }

    /// Sends the request, again after an error, but does not wait until a holder releases the key.
    async fn ask_now(&mut self, wait_policy: WaitPolicy) -> Result<Attempt, Error> {
        let start = self.since;
        let mut tries = Tries::default();
        let context = self.context.clone();
        if context.likely_held.contains(&self.request.key, start) {
            Arc::make_mut(&mut self.request).likely_held = true;
        }
        let mut attempt = self.attempt().await;
        loop {
            match &attempt {
                Ok(Attempt::Held(held)) => {
                    let now = Instant::now();
                    if let Some(until) = now.checked_add(held.expires_in()) {
                        context.likely_held.insert(held.key(), until, (), now);
                    }
                }
                Ok(Attempt::Acquired(lease)) => context.likely_held.remove(lease.key()),
                Err(_) => {}
            }
            match attempt {
                Err(error) if self.retries == Retries::None => return Err(error),
                Ok(Attempt::Held(held))
                    if wait_policy != WaitPolicy::None || rules::is_full(&held, &self.request) =>
                {
                    return Err(self.refusal(start.elapsed(), held));
                }
                Err(error) => match tries.pause_after(&error) {
                    Some(pause) => {
                        attempt = match self.calls.select_response(sleep(pause)).await {
                            Some(()) => self.attempt().await,
                            // An earlier request was answered meanwhile.
                            None => self.answer().await,
                        };
                    }
                    None => return Err(error),
                },
                answer => return answer,
            }
        }
    }

    /// The error for a key that was still held when the time was over.
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

    /// Requests the key in place of a lease of this process, which its holder offers, and reports the outcome to that
    /// holder.
    async fn take(&mut self, offer: HandoffOffer) -> Result<Attempt, Error> {
        let request = AcquireRequest::clone(&self.request).in_place_of(offer.from());
        let sent = offer.sent();
        let attempt = self.send(Arc::new(request)).await;
        let may_be_granted = !matches!(attempt, Ok(Attempt::Held(_)));
        self.may_have_left_place |= may_be_granted && !self.request.turn.may_have_place();
        match &attempt {
            Ok(Attempt::Acquired(_)) => sent.tell(HandoffOutcome::HandedOver),
            Ok(Attempt::Held(_)) => sent.tell(HandoffOutcome::NotHandedOver),
            // The request may have been carried out, so the drop reports an unclear outcome to the holder.
            Err(_) => drop(sent),
        }
        attempt
    }

    async fn send(&mut self, mut request: Arc<AcquireRequest>) -> Result<Attempt, Error> {
        // The store takes the time of the grant for the time of the answer to a fresh request, and the grant may be
        // that of an earlier request.
        let is_fresh = !self.has_failed && self.calls.is_empty();
        if self.request.fresh != is_fresh {
            Arc::make_mut(&mut self.request).fresh = is_fresh;
            Arc::make_mut(&mut request).fresh = is_fresh;
        }
        if request.reentrant {
            self.context.registry.end_stay_to_reenter(&request.key);
        }
        if self.stays_for.is_some() && self.calls.is_empty() {
            self.suspended = suspension::total();
        }
        let repeats = match self.retries {
            Retries::Some => Repeats::Once,
            Retries::None => Repeats::Never,
        };
        let call = self.context.coalescer.acquire(request, repeats);
        self.calls.start(call);
        self.answer().await
    }

    fn report_failure(&self, error: Error) -> Error {
        let about = (&self.request.key, self.request.lease);
        telemetry::store_failed("acquire", Some(about), &error);
        error
    }

    /// How long to wait for an answer. It is at most the ttl, because a lease that is granted later has expired.
    fn longest(&self) -> Duration {
        self.context.registry.call_timeout.min(self.request.ttl)
    }

    /// Records a refusal. If other processes use the key too, the lease does not stay here.
    fn stop_staying_if_contended(&mut self, held: &Held) {
        if self.stays_for.is_none() {
            return;
        }
        let (own, registry) = (&self.request.owner, &self.context.registry);
        // A request that is not in turn is refused behind the place of this process too.
        let is_behind_own =
            self.request.turn.waiter().is_none() && registry.queues.has_waiters(&self.request.key);
        let others_wait = held.ahead() > usize::from(is_behind_own);
        if others_wait || held.holders().iter().any(|it| it.owner != *own) {
            registry.stays.recalled(&self.request.key, Instant::now());
            self.stays_for = None;
            Arc::make_mut(&mut self.request).fences = NonZeroU16::MIN;
        }
    }

    /// Waits for the next answer to any request of this acquire.
    async fn answer(&mut self) -> Result<Attempt, Error> {
        let attempt = self.next_answer().await;
        self.has_failed |= attempt.is_err();
        attempt
    }

    async fn next_answer(&mut self) -> Result<Attempt, Error> {
        let limit = self.longest();
        let answered = self.calls.next(limit).await;
        // A request that waits to be sent is dropped, because the next attempt sends the same request.
        self.calls.stop_sending();
        let Some((sent, answer)) = answered else {
            return Err(self.report_failure(self.too_late(limit)));
        };
        if let Err(error) = &answer {
            self.leftover = self.leftover.max(Leftover::of_error(error));
        }
        let grant = match answer.map_err(|error| self.report_failure(error))? {
            AcquireAnswer::Granted(grant) => grant,
            AcquireAnswer::Held(held) => {
                self.stop_staying_if_contended(&held);
                self.ahead.get_or_insert(held.ahead());
                return Ok(Attempt::Held(held));
            }
            // This is not a failure of the store, so it makes no event.
            AcquireAnswer::Done(done) => return Err(self.not_due(done)),
        };
        let terms = GrantTerms {
            request: self.request.clone(),
            clock_margin: self.context.clock_margin,
            asked_once: self.request.fresh
                && self.leftover == Leftover::Nothing
                && self.calls.is_empty(),
        };
        let Some(state) = LeaseState::new(terms, &grant, sent) else {
            self.leftover = self.leftover.max(Leftover::Granted);
            return Err(self.report_failure(self.too_late(limit)));
        };
        if self.leftover == Leftover::Unclear {
            state.set_maybe_in_flight();
        }
        let registry = self.context.registry.clone();
        // The key may have been recalled since this acquire began, and a grant in place of a lease of this process is
        // never refused first.
        let may_stay = |_: &_| registry.stays.may_stay(&self.request.key, Instant::now());
        let lease = match self.stays_for.filter(may_stay) {
            Some(idle) => Lease::staying(registry, state, idle, self.suspended),
            None => Lease::new(registry, state),
        };
        // A close that began before the lease was registered does not release the lease, so the drop of the lease does.
        if self.context.registry.lifecycle.is_closing() {
            Err(Error::Closed)
        } else {
            Ok(Attempt::Acquired(lease))
        }
    }

    fn too_late(&self, limit: Duration) -> Error {
        Error::TimedOut {
            store: self.context.registry.store.name(),
            operation: "acquire",
            limit,
        }
    }
}

#[cfg(test)]
mod tests;
