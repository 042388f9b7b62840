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
    /// When the first one asks next.
    pub(super) next: Instant,
    /// The first one has asked and not been answered.
    pub(super) asking: bool,
    /// The key may have become free since that was asked.
    pub(super) woken: bool,
    /// How many pauses there were since the key was last known to change hands.
    pub(super) pauses: u32,
    /// How many errors there were since the last answer, and when that was.
    pub(super) failures: u32,
    pub(super) answered: Instant,
    /// There were nothing but errors for so long that the first one has given up.
    pub(super) hopeless: bool,
    /// The outcome of the last request.
    pub(super) news: Option<Result<Held, Error>>,
    /// The leases of this process that were granted the key: their release is heard of here.
    pub(super) here: Vec<LeaseId>,
    /// A lease of this process that makes way for the first one.
    pub(super) offer: Option<HandoffOffer>,
    /// When another process was last seen to hold the key.
    pub(super) elsewhere: Option<Instant>,
    /// Until when the key is left to other processes.
    pub(super) left_until: Option<Instant>,
}

#[derive(Debug)]
pub(super) struct QueuedWaiter {
    pub(super) turn: Arc<Notify>,
    /// The operation of the waiter; others depend on it from now on.
    pub(super) work: Weak<InlineTask>,
}

/// Sees to it that a waiter goes on, be its future polled or not. Not under the lock of the queues: the
/// work may end with it.
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

    /// Whether the answer to the newest request is as good as one to another look now would be, and
    /// somebody is there to go on looking.
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

    /// The key is free, and the first waiter leaves it to other processes until this instant.
    pub(super) fn yield_until(&mut self, until: Instant) {
        // The answer to a request under way may be a refusal from before the key was free.
        (self.woken, self.pauses) = (self.asking, 0);
        (self.next, self.left_until) = (until, Some(until));
        // The holder that the last answer names is gone.
        self.news = None;
        self.call_first();
    }

    /// The key may be free: the first one asks at once.
    pub(super) fn wake(&mut self, now: Instant) {
        self.woken = true;
        self.pauses = 0;
        self.next = now;
        self.call_first();
    }

    /// Puts off the next request; not if the key may be free by now.
    pub(super) fn pause(&mut self, least: u32, expires_in: Option<Duration>, now: Instant) {
        let pauses = self.pauses.max(least);
        let pause = retry::pause_until_free(pauses, expires_in, fastrand::f64());
        self.pauses = self.pauses.saturating_add(1);
        if !std::mem::take(&mut self.woken) {
            self.next = now + pause;
        }
    }
}
