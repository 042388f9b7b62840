//! `Queue`: the waiters for one key in this process, and when the first one sends a request. Pure: times come in as
//! arguments.
//!
//! Invariants:
//!
//! - Only the first waiter sends requests, one at a time.
//! - A report that comes while a request is under way may be newer than the answer to the request. So the report is
//!   kept, and decides when the next request is sent after a refusal.
//! - A waiter is notified whenever its next step may be earlier than it was told.

mod last_answer;

use std::{
    collections::VecDeque,
    sync::{Arc, Weak},
    time::Duration,
};

use tokio::{
    sync::{Notify, oneshot},
    time::Instant,
};

use self::last_answer::LastAnswer;
use super::{
    handoff::{HandoffOffer, HandoffOutcome, HandoffStreak},
    kind::WaiterKind,
    pace::Behind,
    place::{EndedTurn, OwnPlace, PlaceToAsk, Refusal},
};
use crate::{
    model::{Error, Held, LeaseId, Mode, WaiterId},
    retry,
    runtime::inline_task::InlineTask,
};

#[derive(Debug)]
pub(super) struct Queue {
    waiters: VecDeque<QueuedWaiter>,
    request: Request,
    last: LastAnswer,
    /// When the last request was sent.
    asked: Instant,
    /// When the last answer came. Before the first answer, when the queue was made.
    answered: Instant,
    /// How many pauses there were since the key was last seen to become free or to change hands.
    pauses: u32,
    /// The leases that were granted to waiters of this queue and are not known to have ended. While there is one, its
    /// release wakes the queue, and reports of the store do not.
    here: Vec<LeaseId>,
    /// The place of this process among the processes that wait for the key.
    place: OwnPlace,
}

#[derive(Debug)]
struct QueuedWaiter {
    turn: Arc<Notify>,
    kind: WaiterKind,
    /// The operation that waits. It is detached when others depend on it.
    work: Weak<InlineTask>,
}

/// The request of the first waiter.
#[derive(Debug)]
enum Request {
    /// No request is under way. This is when the next one is sent. If there is an offer, the request replaces a lease
    /// of this process.
    Next(Due, Option<HandoffOffer>),
    /// A request is under way. A report that came since it was sent says when the next one is sent.
    UnderWay(Option<Due>),
}

/// When the next request is sent.
#[derive(Clone, Copy, Debug)]
enum Due {
    /// After a pause, which ends at this instant. The key is not known to be free.
    Paused(Instant),
    /// At once: the key may have become free since the last request.
    AtOnce,
}

/// The next step of a waiter.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// The waiter sends a request.
    Ask,
    /// The waiter gives up without a request.
    GiveUp,
    /// The waiter waits until it is notified, or until this instant.
    Wait(Option<Instant>),
}

impl Queue {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            waiters: VecDeque::new(),
            request: Request::Next(Due::Paused(now), None),
            last: LastAnswer::Unknown,
            asked: now,
            answered: now,
            pauses: 0,
            here: Vec::new(),
            place: OwnPlace::new(),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiters.is_empty()
    }

    /// Adds a waiter at the end. If there are waiters before it, returns the operation of the first one, on which the
    /// new waiter depends.
    pub(super) fn push(
        &mut self,
        turn: Arc<Notify>,
        kind: WaiterKind,
        work: Weak<InlineTask>,
    ) -> Option<Weak<InlineTask>> {
        let first = self.waiters.front().map(|first| first.work.clone());
        self.waiters.push_back(QueuedWaiter { turn, kind, work });
        first
    }

    /// Removes a waiter, if it is in the queue. If it was the last waiter in the place of this process, returns the
    /// place, which is to be given up.
    pub(super) fn remove(&mut self, turn: &Arc<Notify>, now: Instant) -> Option<WaiterId> {
        let is_here = self.waiters.iter().any(|it| Arc::ptr_eq(&it.turn, turn));
        if !is_here {
            return None;
        }
        self.take_out(turn, now);
        if self.waits_in_turn() {
            None
        } else {
            self.place.leave()
        }
    }

    fn take_out(&mut self, turn: &Arc<Notify>, now: Instant) {
        if !self.is_first(turn) {
            self.waiters.retain(|it| !Arc::ptr_eq(&it.turn, turn));
            return;
        }
        self.waiters.pop_front();
        // The answer to a request of the removed waiter is not reported to this queue, so the next waiter sends its own
        // request at once.
        if let Request::UnderWay(news) = &self.request {
            self.request = Request::Next(news.unwrap_or(Due::Paused(now)), None);
        }
        self.notify_first();
    }

    /// The next step of this waiter. At `last_look` its time is over: the first waiter sends a last request, unless a
    /// recent answer makes that needless, and the others give up. From `gives_up` on, a final failure ends the wait.
    pub(super) fn step(
        &self,
        turn: &Arc<Notify>,
        last_look: Option<Instant>,
        gives_up: Option<Instant>,
        now: Instant,
    ) -> Step {
        let passed = |at: Option<Instant>| at.is_some_and(|at| now >= at);
        if self.last.is_final() && passed(gives_up) {
            return Step::GiveUp;
        }
        let is_over = passed(last_look);
        if !self.is_first(turn) {
            return if is_over {
                Step::GiveUp
            } else {
                Step::Wait(None)
            };
        }
        if is_over {
            return if self.can_skip_last_request(now) {
                Step::GiveUp
            } else {
                Step::Ask
            };
        }
        match self.request {
            Request::UnderWay(_) => Step::Wait(None),
            Request::Next(Due::AtOnce, _) => Step::Ask,
            Request::Next(Due::Paused(at), _) if now >= at => Step::Ask,
            Request::Next(Due::Paused(at), _) => Step::Wait(Some(at)),
        }
    }

    /// Records that the first waiter sends a request now. If a lease is offered, returns the offer: the request
    /// replaces that lease.
    pub(super) fn ask(&mut self, now: Instant) -> Option<HandoffOffer> {
        self.asked = now;
        match std::mem::replace(&mut self.request, Request::UnderWay(None)) {
            Request::Next(_, offer) => offer,
            Request::UnderWay(_) => None,
        }
    }

    /// What the next request says about the place of this process.
    pub(super) fn turn(&mut self) -> PlaceToAsk {
        let behind = self.waiters.iter().skip(1);
        let beside = behind.take_while(|waiter| waiter.kind == WaiterKind::Shared);
        let is_shared = |first: &QueuedWaiter| first.kind == WaiterKind::Shared;
        let lets_in = self.waiters.front().is_some_and(is_shared);
        self.place.turn(if lets_in { beside.count() } else { 0 })
    }

    /// Takes over the place of a task that has left, whose request may still take that place. Returns whether tasks
    /// wait in it. If so, the last of them gives it up.
    pub(super) fn take_over(&mut self, place: WaiterId) -> bool {
        let is_taken_over = self.place.take_over(place);
        if self.waits_in_turn() {
            return is_taken_over;
        }
        if is_taken_over {
            // The next task that waits in turn uses another place.
            self.place.leave();
        }
        false
    }

    /// Records that a request was refused, and plans the next one. `is_told` says whether the store reports freed keys.
    /// If the refusal has taken a new place, returns how many processes are ahead.
    pub(super) fn refused(
        &mut self,
        held: Held,
        is_in_turn: bool,
        is_told: bool,
        now: Instant,
    ) -> Option<usize> {
        let expires_in = (!held.holders().is_empty()).then(|| held.expires_in());
        self.answered = now;
        // A lease that is not among the holders has ended, even if its release is not known here. It may have been
        // evicted.
        let holds = |lease: &LeaseId| held.holders().iter().any(|it| it.lease == *lease);
        self.here.retain(holds);
        // If the holder is not the same as at the last refusal, the key was free in between, and may soon be free
        // again. So the pauses start again with the shortest one.
        let first = |held: &Held| held.holders().first().map(|holder| holder.lease);
        if matches!(&self.last, LastAnswer::Held(before) if first(before) != first(&held)) {
            self.pauses = 0;
        }
        let least = if is_told { retry::SLOWEST } else { 0 };
        let pause = self.next_pause(least, expires_in);
        let behind = match is_in_turn {
            true => Behind::others(&held),
            false => Behind::NOBODY,
        };
        let taken_behind = is_in_turn.then(|| self.place.refused(&held, now)).flatten();
        let refusal = Refusal {
            held: &held,
            behind,
            otherwise: pause,
            is_told,
            took: now.saturating_duration_since(self.asked),
        };
        let pause = self.place.pause(refusal, now, fastrand::f64());
        self.last = LastAnswer::Held(held);
        self.plan_after(pause, now);
        taken_behind
    }

    /// Records that a request failed, and plans the next one. Returns how many have failed in a row, and when the last
    /// answer came.
    pub(super) fn failed(&mut self, error: Error, now: Instant) -> (u32, Instant) {
        let times = self.last.fail(error);
        self.pause(0, None, now);
        (times, self.answered)
    }

    /// Records that a waiter gives up, because no request was answered for the whole call timeout. The other waiters
    /// that have waited for as long give up too.
    pub(super) fn give_up(&mut self) {
        if let LastAnswer::Failed { is_final, .. } = &mut self.last {
            *is_final = true;
        }
        self.waiters
            .iter()
            .for_each(|waiter| waiter.turn.notify_one());
    }

    /// Records that the first waiter was granted this lease. `in_place_of` is the lease of this process that it
    /// replaces, if it replaces one. Returns the streak of the lease, and what telemetry reports about the place, if
    /// the grant has ended one.
    ///
    /// After an exclusive grant the next waiter uses the longest pause, because the release of the lease wakes it.
    /// After a shared grant, or a grant of permits, it sends a request at once, because it may be granted the key too.
    pub(super) fn granted(
        &mut self,
        lease: LeaseId,
        mode: Mode,
        remaining: Duration,
        is_in_turn: bool,
        in_place_of: Option<(LeaseId, HandoffStreak)>,
        now: Instant,
    ) -> (HandoffStreak, Option<EndedTurn>) {
        self.answered = now;
        self.last = LastAnswer::Unknown;
        let (from, before) = in_place_of.unzip();
        self.here.retain(|here| Some(*here) != from);
        self.here.push(lease);
        // The grant of a barging request does not end the place, which stays with the tasks that wait in it.
        let ended = is_in_turn.then(|| self.place.granted(now)).flatten();
        match mode {
            Mode::Exclusive => {
                // Reports that came before this grant do not matter any more.
                self.request = Request::UnderWay(None);
                self.pause(retry::SLOWEST, Some(remaining), now);
            }
            Mode::Shared | Mode::Permits => {
                self.request = Request::Next(Due::AtOnce, None);
                self.wake();
            }
        }
        (HandoffStreak::next(before, now), ended)
    }

    /// Records that a lease of this process was released. The first waiter sends a request at once.
    pub(super) fn released(&mut self, lease: LeaseId) {
        let before = self.here.len();
        self.here.retain(|here| *here != lease);
        if before > 0 && self.here.len() == before {
            // Another lease of this queue holds the key.
            return;
        }
        self.wake();
    }

    /// Records that the key may be free. The first waiter sends a request at once.
    pub(super) fn wake(&mut self) {
        self.pauses = 0;
        self.plan(Due::AtOnce);
    }

    /// Records that the store reported that the key became free. `next` are the processes that come next, if the store
    /// names them. Other processes do not send a request: all of them would send it at the same moment, and be refused.
    pub(super) fn freed(&mut self, next: Option<&[WaiterId]>) {
        let barges = self
            .waiters
            .front()
            .is_some_and(|first| first.kind == WaiterKind::Barging);
        if barges || self.place.comes_next(next, self.last.ahead()) {
            self.wake_unless_held_here();
        }
    }

    /// Records that the key may have become free. While a lease of this queue holds the key, this does nothing, because
    /// the release of that lease wakes the queue.
    pub(super) fn wake_unless_held_here(&mut self) {
        if self.here.is_empty() {
            self.wake();
        }
    }

    /// Offers a lease to the first waiter, which then sends its request at once. Returns the receiver of the outcome,
    /// and the operation of the waiter, which the caller detaches so that it is polled. `None` if there is no waiter,
    /// or if a request is under way, because the waiter could take the offer only after the answer.
    pub(super) fn offer(
        &mut self,
        lease: LeaseId,
        streak: HandoffStreak,
    ) -> Option<(oneshot::Receiver<HandoffOutcome>, Weak<InlineTask>)> {
        if matches!(self.request, Request::UnderWay(_)) {
            return None;
        }
        let work = self.waiters.front()?.work.clone();
        let (offer, outcome) = HandoffOffer::new(lease, streak);
        self.request = Request::Next(Due::AtOnce, Some(offer));
        self.notify_first();
        Some((outcome, work))
    }

    /// Takes back the offer of this lease. Returns whether the offer was still there.
    pub(super) fn take_back(&mut self, lease: LeaseId) -> bool {
        match &mut self.request {
            Request::Next(_, offer) => offer.take_if(|offer| offer.from() == lease).is_some(),
            Request::UnderWay(_) => false,
        }
    }

    /// The outcome of the last request, whichever waiter sent it.
    pub(super) fn last(&self) -> Option<Result<Held, Error>> {
        self.last.outcome()
    }

    /// Plans the next request, and notifies the first waiter.
    fn plan(&mut self, due: Due) {
        match &mut self.request {
            Request::Next(next, _) => *next = due,
            Request::UnderWay(news) => *news = Some(due),
        }
        self.notify_first();
    }

    /// Plans the next request after an answer: as a kept report says, or else after a pause. The pause is at least the
    /// pause after `least` pauses, but does not last longer than `expires_in`.
    fn pause(&mut self, least: u32, expires_in: Option<Duration>, now: Instant) {
        let pause = self.next_pause(least, expires_in);
        self.plan_after(pause, now);
    }

    fn next_pause(&mut self, least: u32, expires_in: Option<Duration>) -> Duration {
        let pauses = self.pauses.max(least);
        self.pauses = self.pauses.saturating_add(1);
        retry::pause_until_free(pauses, expires_in, fastrand::f64())
    }

    fn plan_after(&mut self, pause: Duration, now: Instant) {
        let paused = Due::Paused(now + pause);
        match &mut self.request {
            Request::UnderWay(news) => {
                self.request = Request::Next(news.unwrap_or(paused), None);
            }
            // The answer belongs to a request before the last one.
            Request::Next(due @ Due::Paused(_), _) => *due = paused,
            Request::Next(Due::AtOnce, _) => {}
        }
    }

    /// Whether the first waiter can give up without a last request: the last answer is recent, no report says that the
    /// key became free since, and another waiter will send the next request.
    fn can_skip_last_request(&self, now: Instant) -> bool {
        self.waiters.len() > 1
            && matches!(
                self.request,
                Request::Next(Due::Paused(_), _) | Request::UnderWay(None)
            )
            && matches!(self.last, LastAnswer::Held(_))
            && now.saturating_duration_since(self.answered) < retry::WAITING / 2
    }

    fn waits_in_turn(&self) -> bool {
        self.waiters
            .iter()
            .any(|waiter| waiter.kind != WaiterKind::Barging)
    }

    fn is_first(&self, turn: &Arc<Notify>) -> bool {
        self.waiters
            .front()
            .is_some_and(|first| Arc::ptr_eq(&first.turn, turn))
    }

    fn notify_first(&self) {
        if let Some(first) = self.waiters.front() {
            first.turn.notify_one();
        }
    }
}

#[cfg(test)]
mod tests;
