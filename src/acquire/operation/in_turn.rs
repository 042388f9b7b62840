//! An acquire that waits for its key in the queue of this process.

use std::{pin::pin, sync::Arc, task::Poll};

use tokio::time::Instant;

use super::AcquireOperation;
use crate::{
    acquire::{attempt::Attempt, cleanup, local},
    lease::Lease,
    messages::{KnownPlace, Turn},
    model::{Access, Error, Held, LeaseId, Mode},
    retry::TRIES,
    sticky::Fit,
    telemetry::StayEndReason,
    waiters::{
        HandoffOffer, HandoffStreak, Standing, WaitOutcome, Waiter, WaiterKind, ensure_listener,
    },
};

impl AcquireOperation {
    /// Waits in the queue of the key, and sends a request whenever it is this waiter's turn, until the key is granted
    /// or the time is over.
    pub(super) async fn ask_in_turn(
        &mut self,
        wait_ends: Option<Instant>,
    ) -> Result<Attempt, Error> {
        let start = self.since;
        let context = self.context.clone();
        let mut waiter = match self.waiter.clone() {
            Some(first) => first,
            None => self.enter_queue(),
        };
        let mut last_request_at = wait_ends;
        // The tasks of this process that had the key from memory when its lease went back.
        let mut held_locally = None;
        // Without a bound, a waiter gives up if it got nothing but errors for the whole call timeout.
        let errors_end_wait = match wait_ends {
            None => start.checked_add(context.registry.call_timeout),
            Some(_) => None,
        };
        loop {
            // The lease of this process that the request asks to replace, and the streak of that lease.
            let mut from = None;
            let attempt = match self
                .calls
                .select_response(waiter.until_next_step(last_request_at, errors_end_wait))
                .await
            {
                Some(WaitOutcome::Ask) => {
                    if context.registry.stays.is_used() {
                        // Boxed, so that the future of a waiter does not contain this one.
                        match Box::pin(self.enter_local(&waiter, wait_ends)).await {
                            LocalOutcome::Entered(Ok(lease)) => {
                                return Ok(Attempt::Acquired(lease));
                            }
                            LocalOutcome::Entered(Err(held)) => {
                                return Err(self.refusal(start.elapsed(), held));
                            }
                            LocalOutcome::StoreAfterQueue(held) => {
                                waiter = self.enter_queue();
                                held_locally = Some(held);
                                continue;
                            }
                            LocalOutcome::Store => {}
                        }
                    }
                    self.plan_request(&waiter);
                    let offer = self.begin_to_ask(&waiter);
                    from = offer.as_ref().map(|offer| (offer.from(), offer.streak()));
                    match offer {
                        Some(offer) => self.take(offer).await,
                        None => self.attempt().await,
                    }
                }
                Some(WaitOutcome::GiveUp) => {
                    let error = self.error_of_giving_up(&waiter, held_locally);
                    let is_over = wait_ends.is_some_and(|at| Instant::now() >= at);
                    if is_over && self.depends_on_first_waiter() {
                        // The waiters behind this one do not wait for the read.
                        let place = self.waiter.take().and_then(|waiter| waiter.leave());
                        self.place_to_give_up = place.or(self.place_to_give_up);
                        let told = self.read_tick(self.longest()).await;
                        return Err(told.unwrap_or(error));
                    }
                    return Err(error);
                }
                // An earlier request was answered meanwhile.
                None => self.answer().await,
            };
            let now = Instant::now();
            let over = wait_ends.is_some_and(|at| now >= at);
            if over {
                last_request_at = None;
            }
            match attempt {
                Ok(Attempt::Acquired(lease)) => {
                    self.record_grant(&waiter, &lease, from, now);
                    return Ok(Attempt::Acquired(lease));
                }
                Ok(Attempt::Held(held)) => {
                    let standing = self.standing(&held, from.is_some());
                    if waiter.refused(held.clone(), standing) && !over {
                        ensure_listener(
                            &context.registry.queues,
                            &context.registry.store,
                            context.registry.lifecycle.closing(),
                        );
                    }
                    if over {
                        return Err(self.refusal(now - start, held));
                    }
                    let answer = Ok(Attempt::Held(held));
                    if let Some(end) = self.go_on_as_owner(&waiter, answer, wait_ends).await {
                        return end;
                    }
                }
                Err(error) if error.is_retryable() => {
                    let is_silent = self.record_error(&waiter, &error, from.is_some(), now);
                    if is_silent && wait_ends.is_none() {
                        waiter.fail_waiters();
                        return Err(error);
                    }
                    if over {
                        return Err(error);
                    }
                    if let Some(end) = self.go_on_as_owner(&waiter, Err(error), wait_ends).await {
                        return end;
                    }
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// After this answer to a reader that was let in behind the first waiter: if its owner may have the key, sends
    /// further requests, because it must not wait until it is the first. Returns how the wait ends, if it does.
    async fn go_on_as_owner(
        &mut self,
        waiter: &Waiter,
        answer: Result<Attempt, Error>,
        wait_ends: Option<Instant>,
    ) -> Option<Result<Attempt, Error>> {
        if !self.request.reentrant || waiter.is_first() {
            return None;
        }
        // Boxed, so that the future of a waiter does not contain this one.
        Box::pin(self.ask_as_owner(answer, wait_ends)).await
    }

    /// Prepares the request for its next sending: what it says about the place of this process, and whether it is
    /// likely to be refused.
    fn plan_request(&mut self, waiter: &Waiter) {
        let Some(place) = waiter.plan_request() else {
            return;
        };
        // If no process is ahead, the request goes when the key is about to be free, so it is not likely to be refused.
        // If the place is due to be written again, a read alone is not enough.
        let last = waiter.last_answer().and_then(Result::ok);
        let is_behind = last.is_some_and(|held| {
            held.turns_ahead() > 0 && self.standing(&held, false) == Standing::InTurn
        });
        let request = Arc::make_mut(&mut self.request);
        request.turn = Turn::InTurn(place);
        request.likely_held = is_behind && place.known != KnownPlace::Due;
    }

    /// Records that the request is sent now. Returns the lease of this process that it may replace.
    ///
    /// The holder that offers its lease waits for the answer to exactly this request. While earlier requests are under
    /// way, the next answer may be to one of those, so no offer is taken. A request for a tick takes none either: it
    /// may find the tick done, and then does not end the holder's lease. Nor does one after a failed request, which may
    /// have been granted: a repeated grant changes nothing, and so does not end the holder's lease.
    fn begin_to_ask(&self, waiter: &Waiter) -> Option<HandoffOffer> {
        let offer = waiter.begin_to_ask();
        offer.filter(|_| self.calls.is_empty() && self.request.tick.is_none() && !self.has_failed)
    }

    /// The error of a waiter that gives up. `held_locally` are the tasks of this process that had the key from memory
    /// when its lease went back.
    fn error_of_giving_up(&self, waiter: &Waiter, held_locally: Option<Held>) -> Error {
        let waited = self.since.elapsed();
        match waiter.last_answer() {
            Some(Ok(held)) => self.refusal(waited, held),
            Some(Err(error)) => error,
            // No request of this queue was refused last. Either a task of this process has or had the key from memory,
            // or the last answer was a grant to another waiter.
            None => {
                let stay = self.context.registry.stays.get(&self.request.key);
                let held = stay.map(|stay| stay.held(Instant::now()));
                match held.or(held_locally).or_else(|| waiter.last_grant()) {
                    Some(held) => self.refusal(waited, held),
                    None => self.too_late(waited),
                }
            }
        }
    }

    /// How a request that was refused with this answer stands to the processes that wait. One that asked to replace a
    /// lease of this process (`is_replacement`) takes no place.
    fn standing(&self, held: &Held, is_replacement: bool) -> Standing {
        if is_replacement || self.waiter_kind() == WaiterKind::Barging {
            Standing::Outside
        } else if self.request.reentrant && self.has_own_holder(held) {
            Standing::BeforeAll
        } else {
            Standing::InTurn
        }
    }

    /// Reports a grant to the queue. `from` is the lease of this process that the request asked to replace, and the
    /// streak of that lease.
    fn record_grant(
        &self,
        waiter: &Waiter,
        lease: &Lease,
        from: Option<(LeaseId, HandoffStreak)>,
        now: Instant,
    ) {
        // If the lease stays here, its release does not wake the queue. So the next waiter asks at once, as after a
        // grant to a reader, and gets its turn from memory.
        let mode = if lease.is_local() {
            Mode::Shared
        } else {
            lease.mode()
        };
        // An exclusive grant ends the place whichever request it answers, but for a handoff that leaves it.
        let is_only_request = self.request.fresh && self.calls.is_empty();
        let ends_place = (is_only_request || self.request.access == Access::Exclusive)
            && !self.may_have_left_place;
        // An earlier request, one in place of a lease, and one of an owner that has the key already may have come
        // before processes that wait.
        let may_have_passed = !is_only_request || from.is_some() || self.request.reentrant;
        let is_in_turn = !may_have_passed && !lease.is_local();
        if self.waiter_kind() == WaiterKind::Shared && is_in_turn {
            self.begin_shared_turn(now);
        }
        let refusal = (!lease.is_local()).then(|| lease.state().refusal(now));
        let remaining = lease.remaining();
        waiter.granted(lease.id(), mode, remaining, refusal, from, ends_place);
    }

    /// Reports an error to the queue. Returns whether all requests have failed for the whole call timeout, and not only
    /// a few of them. A request that asked to replace a lease of this process (`is_replacement`) takes no place.
    fn record_error(
        &self,
        waiter: &Waiter,
        error: &Error,
        is_replacement: bool,
        now: Instant,
    ) -> bool {
        let takes_place = !is_replacement && self.waiter_kind() != WaiterKind::Barging;
        let failed = waiter.failed(error.clone(), takes_place && error.leaves_doubt());
        let (failures, answered) = failed.unwrap_or((TRIES, now));
        let silence = now.saturating_duration_since(answered.max(self.since));
        silence >= self.context.registry.call_timeout && failures >= TRIES
    }

    fn waiter_kind(&self) -> WaiterKind {
        match (self.request.turn, self.request.access) {
            (Turn::Barging, _) => WaiterKind::Barging,
            (_, Access::Exclusive) => WaiterKind::Exclusive,
            (_, Access::Shared) => WaiterKind::Shared,
            (_, Access::Permits(_)) => WaiterKind::Permits,
        }
    }

    /// Enters the queue of the key.
    pub(super) fn enter_queue(&mut self) -> Arc<Waiter> {
        let queues = &self.context.registry.queues;
        let (key, kind) = (&self.request.key, self.waiter_kind());
        let waiter = Arc::new(Waiter::enter(
            queues,
            key,
            kind,
            self.since,
            self.work.clone(),
        ));
        self.waiter = Some(waiter.clone());
        waiter
    }

    /// Acquires the key from memory, if its lease has begun to stay with this process since the waiter began to wait.
    async fn enter_local(&mut self, waiter: &Waiter, until: Option<Instant>) -> LocalOutcome {
        let context = self.context.clone();
        let key = &self.request.key.clone();
        let Some(stay) = context.registry.stays.get(key) else {
            return LocalOutcome::Store;
        };
        // The options were checked when the operation began.
        let request = self.options.request_under(key.clone(), stay.stored().id());
        let request = match (stay.fit(self.options.wanted(self.request.access)), request) {
            (Fit::Local, Ok(request)) => request,
            (Fit::Local | Fit::Beside, _) => return LocalOutcome::Store,
            (Fit::After, _) => {
                let why = StayEndReason::DocumentNeeded;
                context.registry.end_stay_now(&stay, why, until).await;
                return LocalOutcome::Store;
            }
        };
        let mut entering = pin!(stay.enter(request, until));
        let (entry, has_left) = match futures::poll!(entering.as_mut()) {
            Poll::Ready(entry) => (entry, false),
            Poll::Pending => {
                // This task now waits for its turn among those that get the key from memory. The next one in the queue
                // of the key comes after it.
                let stored = stay.stored();
                waiter.record_wait_for_memory(stored.id(), stored.remaining(Instant::now()));
                if let Some(place) = waiter.leave() {
                    // Otherwise this process would find its own place in the document, and send the lease back for it.
                    cleanup::give_up_place(&context, key, place);
                    // A request that is under way may take it again.
                    let again = Some(place).filter(|_| !self.calls.is_empty());
                    self.place_to_give_up = again.or(self.place_to_give_up);
                }
                (self.calls.drive_while(entering).await, true)
            }
        };
        match local::entered(&context, &stay, entry, until).await {
            Some(entered) => LocalOutcome::Entered(entered),
            None if has_left => LocalOutcome::StoreAfterQueue(stay.held(Instant::now())),
            None => LocalOutcome::Store,
        }
    }
}

/// How an acquire from memory ends.
enum LocalOutcome {
    /// The key was granted, or other tasks had it until the time was over.
    Entered(Result<Lease, Held>),
    /// The store has to be asked.
    Store,
    /// As [`Store`](LocalOutcome::Store), but the task has left the queue of the key meanwhile. These tasks had the key
    /// last.
    StoreAfterQueue(Held),
}
