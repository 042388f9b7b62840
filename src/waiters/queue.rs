//! The queue of the waiters for one key in this process: which is first, and when the first one asks.

use std::{
    collections::VecDeque,
    sync::{Arc, Weak},
    time::Duration,
};

use tokio::{sync::Notify, time::Instant};

use super::handoff::HandoffOffer;
use crate::{
    model::{Error, Held, LeaseId},
    retry,
    runtime::inline_task::InlineTask,
};

#[derive(Debug)]
pub(super) struct Queue {
    pub(super) waiters: VecDeque<QueuedWaiter>,
    /// When the first waiter asks next.
    pub(super) next: Instant,
    /// Whether a request of the first waiter is under way.
    pub(super) asking: bool,
    /// Whether the key may have become free since the last request was sent.
    pub(super) woken: bool,
    /// How many pauses there were since the key was last seen to become free or to change hands.
    pub(super) pauses: u32,
    /// How many requests have failed since the last answer.
    pub(super) failures: u32,
    /// When the last answer came; before the first answer, when the queue began.
    pub(super) answered: Instant,
    /// Whether a waiter has given up because no request was answered for the whole call timeout.
    pub(super) hopeless: bool,
    /// The outcome of the last request; `None` before the first, and after a grant or a release.
    pub(super) news: Option<Result<Held, Error>>,
    /// The leases that were granted to waiters of this queue and are not known to be over. While there is one, its
    /// release wakes the queue, and not what the store tells.
    pub(super) here: Vec<LeaseId>,
    /// A lease of this process in whose place the first waiter may ask for the key.
    pub(super) offer: Option<HandoffOffer>,
    /// When another process was last seen to hold the key.
    pub(super) elsewhere: Option<Instant>,
    /// Until when the first waiter leaves a free key to other processes.
    pub(super) left_until: Option<Instant>,
}

#[derive(Debug)]
pub(super) struct QueuedWaiter {
    pub(super) turn: Arc<Notify>,
    /// The operation that waits, to be detached when others depend on it.
    pub(super) work: Weak<InlineTask>,
}

/// Leaves the operation of a waiter to a task, so that it goes on while its future is not polled. The caller must not
/// hold the lock of the queues: if the runtime of the operation has ended, the operation is dropped here and takes
/// that lock.
pub(super) fn detach(work: &Weak<InlineTask>) {
    if let Some(work) = work.upgrade() {
        work.detach();
    }
}

impl Queue {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            waiters: VecDeque::new(),
            next: now,
            asking: false,
            woken: false,
            pauses: 0,
            failures: 0,
            answered: now,
            hopeless: false,
            news: None,
            here: Vec::new(),
            offer: None,
            elsewhere: None,
            left_until: None,
        }
    }

    pub(super) fn call_first(&self) {
        if let Some(first) = self.waiters.front() {
            first.turn.notify_one();
        }
    }

    pub(super) fn record_answer(&mut self, now: Instant) {
        (self.asking, self.failures, self.answered) = (false, 0, now);
        self.hopeless = false;
    }

    /// Whether the first waiter can give up without a last request: the last answer is recent, nothing says that the
    /// key became free since, and another waiter is there to ask again.
    pub(super) fn knows(&self, now: Instant) -> bool {
        self.waiters.len() > 1
            && !self.woken
            && matches!(self.news, Some(Ok(_)))
            && now.saturating_duration_since(self.answered) < retry::WAITING / 2
    }

    pub(super) fn is_first(&self, turn: &Arc<Notify>) -> bool {
        self.waiters
            .front()
            .is_some_and(|first| Arc::ptr_eq(&first.turn, turn))
    }

    /// Takes in that the key is free, and that the first waiter leaves it to other processes until this instant.
    pub(super) fn yield_until(&mut self, until: Instant) {
        // A request under way may be refused because of the lease that is over: that must not put off the next one.
        (self.woken, self.pauses) = (self.asking, 0);
        (self.next, self.left_until) = (until, Some(until));
        // The last answer names a holder that has released the key.
        self.news = None;
        self.call_first();
    }

    /// Takes in that the key may be free: the first waiter asks at once.
    pub(super) fn wake(&mut self, now: Instant) {
        self.woken = true;
        self.pauses = 0;
        self.next = now;
        self.call_first();
    }

    /// Puts off the next request, unless the key may have become free since the last one was sent. The pause is at
    /// least as long as after `least` pauses, but never reaches past `expires_in`.
    pub(super) fn pause(&mut self, least: u32, expires_in: Option<Duration>, now: Instant) {
        let pauses = self.pauses.max(least);
        let pause = retry::pause_until_free(pauses, expires_in, fastrand::f64());
        self.pauses = self.pauses.saturating_add(1);
        if !std::mem::take(&mut self.woken) {
            self.next = now + pause;
        }
    }
}
