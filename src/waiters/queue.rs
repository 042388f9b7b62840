//! `KeyQueue`: the waiters for one key in this process, and when the first one sends a request. `queue/outcomes.rs` has
//! what the answers to requests change. Pure: times come in as arguments.
//!
//! Invariants:
//!
//! - Only the first waiter sends requests, one at a time. While readers are let in together ([`WaiterList`]), each of
//!   them sends one instead.
//! - A report says that the key may be free: a release in this process, or a store that reports freed keys, causes it.
//!   A report that comes while a request is under way may be newer than the answer to the request. So the report is
//!   kept, and decides when the next request is sent after a refusal.
//! - A waiter is notified whenever its next step may be earlier than it was told.

mod first_request;
mod last_answer;
mod outcomes;
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
    kind::WaiterKind,
    place::OwnPlace,
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
    /// How many releases the store has reported since then, while the first waiter waited for permits.
    releases: usize,
    /// How many processes come next before this one, as the last of these reports said that named this one.
    ahead_at_release: Option<usize>,
    /// When the last answer came. Before the first answer, when the queue was made.
    answered: Instant,
    /// How many pauses there were since the key was last seen to become free or to change hands.
    pauses: u32,
    /// The leases that were granted to waiters of this queue and are not known to have ended, except those of permits.
    /// While there is one, its release wakes the queue, and reports of the store do not.
    own_leases: Vec<LeaseId>,
    /// The place of this process among the processes that wait for the key.
    place: OwnPlace,
    /// Whether the last request of the first waiter came before all processes that wait.
    is_before_all: bool,
    /// Whether the first waiter needs the store's reports of freed keys: see [`pace::needs_reports`]. While an
    /// exclusive lease of this process holds the key, it does not, because the end of that lease wakes it.
    needs_reports: bool,
}

/// A lease that a waiter was granted.
#[derive(Debug)]
pub(super) struct Granted {
    pub(super) lease: LeaseId,
    pub(super) mode: Mode,
    pub(super) remaining: Duration,
    pub(super) is_in_turn: bool,
    /// Whether the request that was granted is the last planned one, so that the place has ended unless that request
    /// was to keep it. `false` if an earlier request of the waiter, which was to keep the place, may have been granted
    /// instead, and if a handoff may have been granted that said that there was no place.
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
            releases: 0,
            ahead_at_release: None,
            answered: now,
            pauses: 0,
            own_leases: Vec::new(),
            place: OwnPlace::new(),
            is_before_all: false,
            needs_reports: false,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiters.is_empty()
    }

    /// Whether anybody waits, but for those that are [abandoned](Self::abandon).
    pub(super) fn has_waiters(&self) -> bool {
        self.waiters.first_kind().is_some()
    }

    /// Whether there is a waiter that needs the store's reports of freed keys.
    pub(super) fn needs_reports(&self) -> bool {
        self.needs_reports && self.has_waiters()
    }

    pub(super) fn is_first(&self, wake: &Arc<Notify>) -> bool {
        self.waiters.is_first(wake)
    }

    /// Adds a waiter whose acquire began at `since`. If there are waiters before it, returns the operation of the first
    /// one, on which the new waiter depends.
    pub(super) fn push(
        &mut self,
        wake: Arc<Notify>,
        kind: WaiterKind,
        since: Instant,
        work: Weak<InlineTask>,
    ) -> Option<Weak<InlineTask>> {
        let first = self.waiters.first_work();
        self.waiters.push(wake, kind, since, work);
        first
    }

    /// Removes a waiter, if it is in the queue. If it was the last waiter in the place of this process, returns the
    /// place, which is to be given up.
    pub(super) fn remove(&mut self, wake: &Arc<Notify>, now: Instant) -> Option<WaiterId> {
        let before = self.waiters.first_kind();
        if self.waiters.remove(wake)? {
            self.follow_first(before, now);
        }
        if self.waiters.wait_in_turn() {
            None
        } else {
            self.place.leave()
        }
    }

    /// Moves the waiter of this operation behind all others, because the future of its caller was dropped. The
    /// operation [removes](Self::remove) it when it is polled.
    pub(super) fn abandon(&mut self, work: &Weak<InlineTask>, now: Instant) {
        let before = self.waiters.first_kind();
        if self.waiters.abandon(work) == Some(true) {
            self.follow_first(before, now);
            if self.waiters.first_kind().is_none() {
                // No waiter is left to take an offer, and the drop of the offer tells the holder. A waiter that comes
                // later begins anew.
                self.request = FirstRequest::AtOnce(None);
                self.last = LastAnswer::Unknown;
                self.pauses = 0;
                self.needs_reports = false;
            }
        }
    }

    /// Plans the request of the next waiter, after a first waiter of this kind has left.
    fn follow_first(&mut self, before: Option<WaiterKind>, now: Instant) {
        self.is_before_all = false;
        // The answer to a request of the removed waiter is not reported to this queue, so the next waiter sends its own
        // request at once.
        self.request.give_up_answer(now);
        let first = self.waiters.first_kind();
        let may_be_granted = match first {
            // The removed waiter was refused because of readers, and this one can read beside them.
            Some(WaiterKind::Shared) => self.last.is_refusal_by(Mode::Shared),
            // The removed waiter wanted the whole key, and permits may be left.
            Some(WaiterKind::Permits) => self.last.is_refusal_by(Mode::Permits),
            // The removed waiter may have been refused because of the processes ahead.
            Some(WaiterKind::Barging) => self.last.ahead() > 0,
            Some(WaiterKind::Exclusive) | None => false,
        };
        if first != before && may_be_granted {
            self.end_pause(now);
        }
    }

    /// The next step of this waiter. At `last_request_at` its time is over: the first waiter sends a last request,
    /// unless a recent answer makes that needless, and the others give up. From `errors_end_wait` on, the wait ends if
    /// another waiter has [given up](Self::give_up) because no request was answered.
    pub(super) fn step(
        &self,
        wake: &Arc<Notify>,
        last_request_at: Option<Instant>,
        errors_end_wait: Option<Instant>,
        now: Instant,
    ) -> Step {
        let passed = |at: Option<Instant>| at.is_some_and(|at| now >= at);
        if self.last.is_final() && passed(errors_end_wait) {
            return Step::GiveUp;
        }
        let is_over = passed(last_request_at);
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
        // A waiter that was abandoned meanwhile sends a request too, but the next one is not that of the first waiter.
        if self.waiters.send(wake) || !self.waiters.is_first(wake) {
            return None;
        }
        self.asked = now;
        (self.releases, self.ahead_at_release) = (0, None);
        self.request.send()
    }

    /// Plans the next request of a waiter, and returns what it says about the place of this process.
    pub(super) fn plan_request(&mut self, wake: &Arc<Notify>) -> InTurn {
        // A waiter that was abandoned meanwhile says nothing about those that wait.
        if self.waiters.admission(wake) != Admission::None || !self.waiters.is_first(wake) {
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

    /// Records that a lease of this process was released. The first waiter sends a request at once.
    pub(super) fn released(&mut self, lease: LeaseId) {
        let before = self.own_leases.len();
        self.own_leases.retain(|own| *own != lease);
        if before > 0 && self.own_leases.len() == before {
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

    /// Records that an exclusive lease of this process holds the key.
    pub(super) fn note_held_here(&mut self) {
        self.needs_reports = false;
    }

    /// Records that a lease of this process is not released, although this process gives it up. The store reports its
    /// end, but the first waiter may not listen to the store yet, so it sends a request.
    pub(super) fn detached(&mut self, lease: LeaseId) {
        self.own_leases.retain(|own| *own != lease);
        self.wake();
    }

    /// Records that the key may be free. The first waiter sends a request at once.
    pub(super) fn wake(&mut self) {
        self.pauses = 0;
        self.request.report();
        self.waiters.notify_first();
    }

    /// Records that the store reported that the key became free. `next` are the processes that come next, if the store
    /// names them. Other processes do not send a request: all of them would send it at the same moment, and be refused.
    ///
    /// Of the processes that wait for permits, the store names all that are next to each other in the queue. As many of
    /// them send a request as there is room for after this release and those before it.
    pub(super) fn freed(&mut self, next: Option<&[WaiterId]>) {
        let ahead = self.last.ahead();
        let comes_next = match self.waiters.first_kind() {
            Some(WaiterKind::Barging) => true,
            Some(WaiterKind::Permits) => {
                self.releases = self.releases.saturating_add(1);
                // The store names the processes only if they are not the same as at the release before.
                if next.is_some() {
                    self.ahead_at_release = self.place.ahead_in(next);
                }
                let room = self.last.room_after(self.releases);
                match self.ahead_at_release {
                    Some(ahead) => ahead < room,
                    None => self.place.comes_next(next, ahead),
                }
            }
            _ => self.place.comes_next(next, ahead),
        };
        if self.is_before_all {
            // The owner of the first waiter may have the key by a lease of this process.
            self.wake();
        } else if comes_next {
            self.wake_unless_held_locally();
        }
    }

    /// Records that the key may have become free. While a lease of this queue holds the key, this does nothing, because
    /// the release of that lease wakes the queue.
    pub(super) fn wake_unless_held_locally(&mut self) {
        if self.own_leases.is_empty() {
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

    /// Whether the first waiter can give up without a last request: the last answer is recent, no report says that the
    /// key became free since, and another waiter will send the next request.
    fn can_skip_last_request(&self, now: Instant) -> bool {
        self.waiters.has_others()
            && !self.request.next_is_at_once()
            && matches!(self.last, LastAnswer::Held(_))
            && now.saturating_duration_since(self.answered) < retry::LONGEST_PAUSE / 2
    }
}

#[cfg(test)]
mod tests;
