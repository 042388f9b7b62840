//! `KeyQueue`: the waiters for one key in this process, and when the first one sends a request. Pure: times come in as
//! arguments.
//!
//! Invariants:
//!
//! - Only the first waiter sends requests, one at a time. While readers are let in together ([`WaiterList`]), each of
//!   them sends one instead.
//! - A report that comes while a request is under way may be newer than the answer to the request. So the report is
//!   kept, and decides when the next request is sent after a refusal.
//! - A waiter is notified whenever its next step may be earlier than it was told.

mod first_request;
mod last_answer;
mod waiter_list;

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use tokio::{
    sync::{Notify, oneshot},
    time::Instant,
};

pub(super) use self::first_request::Step;
use self::{
    first_request::FirstRequest,
    last_answer::LastAnswer,
    waiter_list::{Admission, WaiterList},
};
use super::{
    handoff::{HandoffOffer, HandoffOutcome, HandoffStreak},
    kind::{Standing, WaiterKind},
    pace::Ahead,
    place::{EndedTurn, OwnPlace, PlaceNews, Refusal},
};
use crate::{
    messages::InTurn,
    model::{Error, Held, LeaseId, Mode, WaiterId},
    retry,
    runtime::inline_task::InlineTask,
};

#[derive(Debug)]
pub(super) struct KeyQueue {
    waiters: WaiterList,
    request: FirstRequest,
    /// When waiters were let in last. Before the first time, when the queue was made.
    let_in_at: Instant,
    last: LastAnswer,
    /// When the last request was sent.
    asked: Instant,
    /// When the last answer came. Before the first answer, when the queue was made.
    answered: Instant,
    /// How many pauses there were since the key was last seen to become free or to change hands.
    pauses: u32,
    /// The leases that were granted to waiters of this queue and are not known to have ended, except those of permits.
    /// While there is one, its release wakes the queue, and reports of the store do not.
    here: Vec<LeaseId>,
    /// The place of this process among the processes that wait for the key.
    place: OwnPlace,
    /// Whether the last request of the first waiter came before all processes that wait.
    is_before_all: bool,
}

/// A lease that a waiter was granted.
#[derive(Debug)]
pub(super) struct Granted {
    pub(super) lease: LeaseId,
    pub(super) mode: Mode,
    pub(super) remaining: Duration,
    pub(super) is_in_turn: bool,
    /// Whether the request that was granted is the last planned one, so that the place has ended unless that request was to
    /// keep it. `false` if an earlier request of the waiter, which was to keep the place, may have been granted instead.
    pub(super) ends_place: bool,
    /// What other requests are refused with from now on; `None` for a grant from memory.
    pub(super) refusal: Option<Held>,
    /// The lease of this process that it replaces, if it replaces one.
    pub(super) in_place_of: Option<(LeaseId, HandoffStreak)>,
}

impl KeyQueue {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            waiters: WaiterList::default(),
            request: FirstRequest::Paused(now),
            let_in_at: now,
            last: LastAnswer::Unknown,
            asked: now,
            answered: now,
            pauses: 0,
            here: Vec::new(),
            place: OwnPlace::new(),
            is_before_all: false,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiters.is_empty()
    }

    pub(super) fn is_first(&self, wake: &Arc<Notify>) -> bool {
        self.waiters.is_first(wake)
    }

    /// Adds a waiter at the end. If there are waiters before it, returns the operation of the first one, on which the
    /// new waiter depends.
    pub(super) fn push(
        &mut self,
        wake: Arc<Notify>,
        kind: WaiterKind,
        work: Weak<InlineTask>,
    ) -> Option<Weak<InlineTask>> {
        let first = self.waiters.first_work();
        self.waiters.push(wake, kind, work);
        first
    }

    /// Removes a waiter, if it is in the queue. If it was the last waiter in the place of this process, returns the
    /// place, which is to be given up.
    pub(super) fn remove(&mut self, wake: &Arc<Notify>, now: Instant) -> Option<WaiterId> {
        let before = self.waiters.first_kind();
        if self.waiters.remove(wake)? {
            self.is_before_all = false;
            // The answer to a request of the removed waiter is not reported to this queue, so the next waiter sends its
            // own request at once.
            self.request.give_up_answer(now);
            let first = self.waiters.first_kind();
            let may_be_granted = match first {
                // The removed waiter was refused because of readers, and this one can read beside them.
                Some(WaiterKind::Shared) => self.last.is_refusal_by_readers(),
                // The removed waiter may have been refused because of the processes ahead.
                Some(WaiterKind::Barging) => self.last.ahead() > 0,
                Some(WaiterKind::Exclusive | WaiterKind::Permits) | None => false,
            };
            if first != before && may_be_granted {
                self.end_pause(now);
            }
        }
        if self.waiters.wait_in_turn() {
            None
        } else {
            self.place.leave()
        }
    }

    /// The next step of this waiter. At `last_look` its time is over: the first waiter sends a last request, unless a
    /// recent answer makes that needless, and the others give up. From `errors_end_wait` on, the wait ends if another
    /// waiter has [given up](Self::give_up) because no request was answered.
    pub(super) fn step(
        &self,
        wake: &Arc<Notify>,
        last_look: Option<Instant>,
        errors_end_wait: Option<Instant>,
        now: Instant,
    ) -> Step {
        let passed = |at: Option<Instant>| at.is_some_and(|at| now >= at);
        if self.last.is_final() && passed(errors_end_wait) {
            return Step::GiveUp;
        }
        let is_over = passed(last_look);
        match self.waiters.admission(wake) {
            Admission::LetIn => return Step::Ask,
            Admission::UnderWay => return Step::Wait(None),
            Admission::None => {}
        }
        if !self.waiters.is_first(wake) {
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
        // The first waiter waits for the answers to those that were let in, but at most for a second, because an answer
        // may be lost.
        let answered_by = self.let_in_at + retry::LONGEST_PAUSE;
        if self.waiters.is_letting_in() && now < answered_by {
            return Step::Wait(Some(answered_by));
        }
        self.request.step(now)
    }

    /// Records that a waiter sends a request now. If a lease is offered to it, returns the offer: the request replaces
    /// that lease.
    pub(super) fn ask(&mut self, wake: &Arc<Notify>, now: Instant) -> Option<HandoffOffer> {
        if self.waiters.send(wake) {
            return None;
        }
        self.asked = now;
        self.request.send()
    }

    /// Plans the next request of a waiter, and returns what it says about the place of this process.
    pub(super) fn plan_request(&mut self, wake: &Arc<Notify>) -> InTurn {
        if self.waiters.admission(wake) != Admission::None {
            return self.place.plan_request_to_be_let_in();
        }
        self.place.plan_request(self.waiters.beside_first())
    }

    /// Takes over the place of a task that has left, whose request may still take that place. Returns whether tasks
    /// wait in it. If so, the last of them gives it up.
    pub(super) fn take_over(&mut self, place: WaiterId) -> bool {
        let is_taken_over = self.place.take_over(place);
        if self.waiters.wait_in_turn() {
            return is_taken_over;
        }
        if is_taken_over {
            // The next task that waits in turn uses another place.
            self.place.leave();
        }
        false
    }

    /// Records that a request was refused, and plans the next one. `reports_freed` says whether the store reports freed
    /// keys. Returns what the refusal says about the place for the first time.
    pub(super) fn refused(
        &mut self,
        wake: &Arc<Notify>,
        held: Held,
        standing: Standing,
        reports_freed: bool,
        now: Instant,
    ) -> Option<PlaceNews> {
        let takes_place = standing != Standing::Outside;
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
        let was_let_in = self.waiters.answered(wake);
        let place_news = takes_place
            .then(|| self.place.refused(&held, now))
            .flatten();
        if was_let_in || !self.waiters.is_first(wake) {
            // This does not say when the first waiter sends its next request.
            self.last = LastAnswer::Held(held);
            return place_news;
        }
        self.is_before_all = standing == Standing::BeforeAll;
        let least = if reports_freed {
            retry::PAUSES_TO_LONGEST
        } else {
            0
        };
        let pause = self.count_pause(least, expires_in);
        let ahead = match standing {
            Standing::InTurn => Ahead::others(&held),
            Standing::BeforeAll | Standing::Outside => Ahead::NOBODY,
        };
        let refusal = Refusal {
            held: &held,
            ahead,
            otherwise: pause,
            reports_freed,
            took: now.saturating_duration_since(self.asked),
        };
        let pause = self.place.pause(refusal, now, fastrand::f64());
        if self.place.holders_leave() {
            // This pause is shorter than the planned one, which does not count.
            self.pauses = self.pauses.saturating_sub(1);
        }
        self.last = LastAnswer::Held(held);
        self.request.pause_until(now + pause);
        place_news
    }

    /// Records that a request failed, and plans the next one. Returns how many have failed in a row, and when the last
    /// answer came. Only failures of the first waiter count. Those of waiters that were let in may all have the same
    /// reason.
    pub(super) fn failed(
        &mut self,
        wake: &Arc<Notify>,
        error: Error,
        now: Instant,
    ) -> (u32, Instant) {
        if self.waiters.answered(wake) || !self.waiters.is_first(wake) {
            return (0, self.answered);
        }
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
        self.waiters.notify_all();
    }

    /// Records that a waiter was granted a lease. Returns the streak of the lease, and what telemetry reports about the
    /// place, if the grant has ended one.
    ///
    /// After an exclusive grant the next waiter uses the longest pause, because the release of the lease wakes it.
    /// After a shared grant, or a grant of permits, it sends a request at once, because it may be granted the key too.
    pub(super) fn granted(
        &mut self,
        wake: &Arc<Notify>,
        granted: Granted,
        now: Instant,
    ) -> (HandoffStreak, Option<EndedTurn>) {
        let Granted {
            lease,
            mode,
            remaining,
            is_in_turn,
            refusal,
            in_place_of,
            ends_place,
        } = granted;
        self.answered = now;
        self.last = refusal.map_or(LastAnswer::Unknown, LastAnswer::Granted);
        let replaces = in_place_of.is_some();
        let (from, before) = in_place_of.unzip();
        self.here.retain(|here| Some(*here) != from);
        // A release elsewhere may free a permit while this process has others.
        if mode != Mode::Permits {
            self.here.push(lease);
        }
        let streak = HandoffStreak::next(before, now);
        let is_let_in = self.waiters.answered(wake);
        if is_let_in || !self.waiters.is_first(wake) {
            // A waiter that is neither let in nor the first was granted the key by an earlier request.
            if is_in_turn {
                self.place.let_one_in();
            }
            if is_let_in || mode != Mode::Exclusive {
                self.wake();
            }
            return (streak, None);
        }
        // The grant of a barging request does not end the place, which stays with the tasks that wait in it.
        let ended = is_in_turn
            .then(|| self.place.granted(ends_place, now))
            .flatten();
        match mode {
            Mode::Exclusive => {
                // Reports that came before this grant do not matter any more.
                self.request = FirstRequest::UnderWay { is_reported: false };
                self.pause(retry::PAUSES_TO_LONGEST, Some(remaining), now);
            }
            Mode::Shared | Mode::Permits => {
                self.request = FirstRequest::AtOnce(None);
                self.wake();
                // How many more permits are free is not known. A request that replaces a lease comes before the places
                // of other processes, and the readers behind it do not.
                if is_in_turn && mode == Mode::Shared && !replaces {
                    self.waiters.let_in_behind_first(self.place.still_let_in());
                    self.let_in_at = now;
                }
            }
        }
        (streak, ended)
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

    /// Ends the pause of the first waiter, and notifies it.
    pub(super) fn end_pause(&mut self, now: Instant) {
        self.request.pause_until(now);
        self.waiters.notify_first();
    }

    /// Records that a lease of this process is not released, although this process gives it up. The store reports its
    /// end.
    pub(super) fn detached(&mut self, lease: LeaseId) {
        self.here.retain(|here| *here != lease);
    }

    /// Records that the key may be free. The first waiter sends a request at once.
    pub(super) fn wake(&mut self) {
        self.pauses = 0;
        self.request.report();
        self.waiters.notify_first();
    }

    /// Records that the store reported that the key became free. `next` are the processes that come next, if the store
    /// names them. Other processes do not send a request: all of them would send it at the same moment, and be refused.
    pub(super) fn freed(&mut self, next: Option<&[WaiterId]>) {
        let barges = self.waiters.first_kind() == Some(WaiterKind::Barging);
        if self.is_before_all {
            // The owner of the first waiter may have the key by a lease of this process.
            self.wake();
        } else if barges || self.place.comes_next(next, self.last.ahead()) {
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
    /// or if requests are under way, because the waiter could take the offer only after their answers.
    pub(super) fn offer(
        &mut self,
        lease: LeaseId,
        streak: HandoffStreak,
    ) -> Option<(oneshot::Receiver<HandoffOutcome>, Weak<InlineTask>)> {
        if self.request.is_under_way() || self.waiters.is_letting_in() {
            return None;
        }
        let work = self.waiters.first_work()?;
        let (offer, outcome) = HandoffOffer::new(lease, streak);
        self.request = FirstRequest::AtOnce(Some(offer));
        self.waiters.notify_first();
        Some((outcome, work))
    }

    /// Takes back the offer of this lease. Returns whether the offer was still there.
    pub(super) fn take_back(&mut self, lease: LeaseId) -> bool {
        self.request.take_back(lease)
    }

    /// The outcome of the last request, whichever waiter sent it.
    pub(super) fn last(&self) -> Option<Result<Held, Error>> {
        self.last.outcome()
    }

    /// What other requests are refused with after a grant to a waiter of this process, if that was the last answer.
    pub(super) fn last_grant(&self) -> Option<Held> {
        self.last.grant()
    }

    /// Plans the next request after an answer: as a kept report says, or else after a pause. The pause is at least the
    /// pause after `least` pauses, but does not last longer than `expires_in`.
    fn pause(&mut self, least: u32, expires_in: Option<Duration>, now: Instant) {
        let pause = self.count_pause(least, expires_in);
        self.request.pause_until(now + pause);
    }

    fn count_pause(&mut self, least: u32, expires_in: Option<Duration>) -> Duration {
        let pauses = self.pauses.max(least);
        self.pauses = self.pauses.saturating_add(1);
        retry::pause_until_free(pauses, expires_in, fastrand::f64())
    }

    /// Whether the first waiter can give up without a last request: the last answer is recent, no report says that the
    /// key became free since, and another waiter will send the next request.
    fn can_skip_last_request(&self, now: Instant) -> bool {
        self.waiters.len() > 1
            && !self.request.next_is_at_once()
            && matches!(self.last, LastAnswer::Held(_))
            && now.saturating_duration_since(self.answered) < retry::LONGEST_PAUSE / 2
    }
}

#[cfg(test)]
mod tests;
