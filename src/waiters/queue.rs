//! The queue of the waiters for one key in this process: which is first, and when the first one asks. Pure: times come
//! in as arguments.
//!
//! Invariants:
//!
//! - Only the first waiter sends requests, one at a time.
//! - News that come while a request is under way may be newer than its answer. So they are kept, and decide when the
//!   next request goes after a refusal.
//! - A waiter is notified whenever it may have to do something earlier than it knows.

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
    /// When the last answer came; before the first answer, when the queue began.
    answered: Instant,
    /// How many pauses there were since the key was last seen to become free or to change hands.
    pauses: u32,
    /// The leases that were granted to waiters of this queue and are not known to be over. While there is one, its
    /// release wakes the queue, and not what the store tells.
    here: Vec<LeaseId>,
    /// The place of this process among those that wait for the key.
    place: OwnPlace,
}

#[derive(Debug)]
struct QueuedWaiter {
    turn: Arc<Notify>,
    kind: WaiterKind,
    /// The operation that waits, to be detached when others depend on it.
    work: Weak<InlineTask>,
}

/// The request of the first waiter.
#[derive(Debug)]
enum Request {
    /// The next one. If there is an offer, it asks for the key in the place of a lease of this process.
    Next(Due, Option<HandoffOffer>),
    /// One is under way. What has come since it was sent says when the next one goes.
    UnderWay(Option<Due>),
}

/// When the next request goes.
#[derive(Clone, Copy, Debug)]
enum Due {
    /// After a pause, which ends at this instant. The key is not known to be free.
    Paused(Instant),
    /// At once: the key may have become free since the last request.
    AtOnce,
}

/// What a waiter does now.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// It sends a request.
    Ask,
    /// It gives up without a request.
    GiveUp,
    /// It waits until it is notified, or until this instant.
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

    /// Puts a waiter last. Gives the operation of the first waiter before it, on which it depends, if there is one.
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

    /// Takes a waiter out of the queue, if it is in it. Gives the place of this process that is to be given up, if the waiter was the last
    /// that waits in it.
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
        // The answer to a request of the waiter that has left is not reported here, so the next waiter asks at once.
        if let Request::UnderWay(news) = &self.request {
            self.request = Request::Next(news.unwrap_or(Due::Paused(now)), None);
        }
        self.notify_first();
    }

    /// What this waiter does now. At `last_look` it asks for the last time, if it is the first and does not know enough
    /// by then. From `gives_up` on, a final failure ends its wait.
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

    /// Records that the first waiter asks now. Gives the lease in whose place it asks, if one is offered.
    pub(super) fn ask(&mut self, now: Instant) -> Option<HandoffOffer> {
        self.asked = now;
        match std::mem::replace(&mut self.request, Request::UnderWay(None)) {
            Request::Next(_, offer) => offer,
            Request::UnderWay(_) => None,
        }
    }

    /// The place of this process in the queue of the processes, for a request that waits in it.
    pub(super) fn turn(&mut self) -> PlaceToAsk {
        let behind = self.waiters.iter().skip(1);
        let beside = behind.take_while(|waiter| waiter.kind == WaiterKind::Shared);
        let is_shared = |first: &QueuedWaiter| first.kind == WaiterKind::Shared;
        let lets_in = self.waiters.front().is_some_and(is_shared);
        self.place.turn(if lets_in { beside.count() } else { 0 })
    }

    /// Takes over a place from a task that has left and whose request may still take it. Says whether it was: whether tasks
    /// wait in that place, of which the last gives it up.
    pub(super) fn take_over(&mut self, place: WaiterId) -> bool {
        let is_taken_over = self.place.take_over(place);
        if self.waits_in_turn() {
            return is_taken_over;
        }
        if is_taken_over {
            // The next task that waits in turn takes another place.
            self.place.leave();
        }
        false
    }

    /// Records that the key is held, and plans the next request. Its pause is that after `least` pauses at least, unless it
    /// competes with other processes. Gives
    /// how many processes are ahead, if the refusal has taken a place.
    pub(super) fn refused(
        &mut self,
        held: Held,
        is_in_turn: bool,
        least: u32,
        now: Instant,
    ) -> Option<usize> {
        let expires_in = (!held.holders().is_empty()).then(|| held.expires_in());
        self.answered = now;
        // A lease that is not among the holders is over, also if its release is not known here: it was evicted, say.
        let holds = |lease: &LeaseId| held.holders().iter().any(|it| it.lease == *lease);
        self.here.retain(holds);
        // If the holder is another than at the last refusal, the key was free in between, and may soon be free again.
        // So the pauses begin anew with the shortest.
        let first = |held: &Held| held.holders().first().map(|holder| holder.lease);
        if matches!(&self.last, LastAnswer::Held(before) if first(before) != first(&held)) {
            self.pauses = 0;
        }
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
            took: now.saturating_duration_since(self.asked),
        };
        let pause = self.place.pause(refusal, now, fastrand::f64());
        self.last = LastAnswer::Held(held);
        self.plan_after(pause, now);
        taken_behind
    }

    /// Records that a request failed, and plans the next one. Gives how many have failed in a row, and when the last
    /// answer came.
    pub(super) fn failed(&mut self, error: Error, now: Instant) -> (u32, Instant) {
        let times = self.last.fail(error);
        self.pause(0, None, now);
        (times, self.answered)
    }

    /// Records that a waiter gives up, because no request was answered for the whole call timeout. The others that have
    /// waited as long give up too.
    pub(super) fn give_up(&mut self) {
        if let LastAnswer::Failed { is_final, .. } = &mut self.last {
            *is_final = true;
        }
        self.waiters
            .iter()
            .for_each(|waiter| waiter.turn.notify_one());
    }

    /// Records that the first waiter was granted this lease, in the place of another of this process if there is one.
    /// Gives the streak of the lease, and the turn of the process that has ended, if it had a place.
    ///
    /// After an exclusive grant the next waiter asks at the slowest pace, because the release of the lease wakes it.
    /// After a shared grant, or one of permits, it asks at once, because it may be granted the key too.
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
        // The grant of a request that overtakes leaves the place to the tasks that wait in it.
        let ended = is_in_turn.then(|| self.place.granted(now)).flatten();
        match mode {
            Mode::Exclusive => {
                // What was heard until now led to this grant.
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

    /// Records that a lease of this process is released. The first waiter asks at once.
    pub(super) fn released(&mut self, lease: LeaseId) {
        let before = self.here.len();
        self.here.retain(|here| *here != lease);
        if before > 0 && self.here.len() == before {
            // Another lease of this queue holds the key.
            return;
        }
        self.wake();
    }

    /// Records that the key may be free: the first waiter asks at once.
    pub(super) fn wake(&mut self) {
        self.pauses = 0;
        self.plan(Due::AtOnce);
    }

    /// Records that the store says that the key became free, and which processes come next, if it tells. The others do not
    /// ask: they would all do so at the same moment, to be refused.
    pub(super) fn freed(&mut self, next: Option<&[WaiterId]>) {
        let barges = self
            .waiters
            .front()
            .is_some_and(|first| first.kind == WaiterKind::Barging);
        if barges || self.place.comes_next(next, self.last.ahead()) {
            self.wake_unless_held_here();
        }
    }

    /// Records that the key may have become free, or that the store began to tell such things. While a lease of this queue
    /// holds the key, that is ignored: its release wakes the queue.
    pub(super) fn wake_unless_held_here(&mut self) {
        if self.here.is_empty() {
            self.wake();
        }
    }

    /// Offers a lease to the first waiter, which then asks at once. Gives the outcome, and the operation of the waiter,
    /// which must not stand still. `None` if a request is under way: the waiter could take the offer only after that.
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

    /// Takes back the offer of this lease. Says whether it was still there.
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

    /// Plans the next request after an answer: as the news say, or else after a pause. The pause is at least as long as
    /// after `least` pauses, but never reaches past `expires_in`.
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
            // The answer came to a request before the last one.
            Request::Next(due @ Due::Paused(_), _) => *due = paused,
            Request::Next(Due::AtOnce, _) => {}
        }
    }

    /// Whether the first waiter can give up without a last request: the last answer is recent, nothing says that the
    /// key became free since, and another waiter is there to ask again.
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
