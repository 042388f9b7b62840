//! The waiting room: the tasks of this process that wait for the same key stand in a queue, and the
//! first of them asks for all.
//!
//! It sends nothing and spawns nothing. Each waiter holds a [`Place`], which it leaves by dropping
//! it, for whatever reason; so none can block those behind it.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{
    sync::Notify,
    time::{Instant, timeout_at},
};

use crate::{Error, Held, Key, LeaseId, backoff};

/// The queues of all keys that somebody waits for.
#[derive(Debug, Default)]
pub(crate) struct WaitingRoom {
    queues: Mutex<HashMap<Key, Queue>>,
    ear: Mutex<Ear>,
}

/// Whether the store tells of keys that become free.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Ear {
    /// Nobody listens.
    #[default]
    Closed,
    /// A task listens, and may not have been heard yet.
    Opening,
    /// The store tells.
    Open,
    /// It cannot tell.
    Deaf,
}

#[derive(Debug)]
struct Queue {
    waiters: VecDeque<Arc<Notify>>,
    /// When the first one asks next.
    next: Instant,
    /// The first one has asked and not been answered.
    asking: bool,
    /// The key may have become free since that was asked.
    woken: bool,
    /// How many pauses there were since the key was last known to change hands.
    pauses: u32,
    /// How many errors there were since the last answer, and when that was.
    failures: u32,
    answered: Instant,
    /// What the last request brought.
    news: Option<Result<Held, Error>>,
    /// The lease of this process that holds the key: its release is heard of here.
    here: Option<LeaseId>,
}

/// What a waiter has to do.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// Ask for the key.
    Ask,
    /// Its time is over, and it is not the first.
    GiveUp,
}

impl WaitingRoom {
    /// Takes the last place in the queue of this key.
    pub(crate) fn enter(self: &Arc<Self>, key: &Key) -> Place {
        let turn = Arc::new(Notify::new());
        let now = Instant::now();
        let mut queues = self.queues.lock();
        let queue = queues.entry(key.clone()).or_insert_with(|| Queue {
            waiters: VecDeque::new(),
            next: now,
            asking: false,
            woken: false,
            pauses: 0,
            failures: 0,
            answered: now,
            news: None,
            here: None,
        });
        queue.waiters.push_back(turn.clone());
        Place {
            room: self.clone(),
            key: key.clone(),
            turn,
        }
    }

    /// A lease of this process is over: who waits for its key asks at once.
    pub(crate) fn released(&self, key: &Key, lease: LeaseId) {
        self.wake(key, |queue| queue.here.is_none_or(|here| here == lease));
    }

    /// The store says that this key became free. One that was held here has its own way to say so.
    pub(crate) fn freed(&self, key: &Key) {
        self.wake(key, |queue| queue.here.is_none());
    }

    fn wake(&self, key: &Key, news: impl FnOnce(&Queue) -> bool) {
        if let Some(queue) = self.queues.lock().get_mut(key)
            && news(queue)
        {
            queue.wake(Instant::now());
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.queues.lock().is_empty()
    }

    /// Whether somebody has to begin to listen to the store. Whoever is told so has to.
    pub(crate) fn wants_listener(&self) -> bool {
        let mut ear = self.ear.lock();
        let wants = *ear == Ear::Closed;
        if wants {
            *ear = Ear::Opening;
        }
        wants
    }

    /// The store tells from now on, or does not for a while.
    pub(crate) fn hears(&self, open: bool) {
        *self.ear.lock() = if open { Ear::Open } else { Ear::Opening };
        if open {
            let mut queues = self.queues.lock();
            let waiting = queues.values_mut().filter(|queue| queue.here.is_none());
            waiting.for_each(|queue| queue.wake(Instant::now()));
        }
    }

    /// The store cannot tell.
    pub(crate) fn is_deaf(&self) {
        *self.ear.lock() = Ear::Deaf;
    }

    /// Nobody listens any more.
    pub(crate) fn stops_listening(&self) {
        let mut ear = self.ear.lock();
        if *ear != Ear::Deaf {
            *ear = Ear::Closed;
        }
    }

    /// The first of the pauses: where the store tells, asking is but a safety net.
    fn first_pause(&self) -> u32 {
        match *self.ear.lock() {
            Ear::Open => backoff::SLOWEST,
            _ => 0,
        }
    }
}

impl Queue {
    fn call_first(&self) {
        if let Some(first) = self.waiters.front() {
            first.notify_one();
        }
    }

    fn is_first(&self, place: &Place) -> bool {
        self.waiters
            .front()
            .is_some_and(|first| Arc::ptr_eq(first, &place.turn))
    }

    /// The key may be free: the first one asks at once.
    fn wake(&mut self, now: Instant) {
        self.here = None;
        self.woken = true;
        self.pauses = 0;
        self.next = now;
        self.call_first();
    }

    /// Puts off the next request; not if the key may be free by now.
    fn pause(&mut self, least: u32, expires_in: Option<Duration>, now: Instant) {
        let pauses = self.pauses.max(least);
        let pause = backoff::pause_until_free(pauses, expires_in, fastrand::f64());
        self.pauses = self.pauses.saturating_add(1);
        if !std::mem::take(&mut self.woken) {
            self.next = now + pause;
        }
    }
}

/// A place in the queue of a key. Dropping it leaves the queue.
pub(crate) struct Place {
    room: Arc<WaitingRoom>,
    key: Key,
    turn: Arc<Notify>,
}

impl Place {
    /// Waits until it is the first and the time to ask has come. At `last_look` the first asks in
    /// any case, and another gives up.
    pub(crate) async fn turn(&self, last_look: Option<Instant>) -> Turn {
        loop {
            let now = Instant::now();
            let over = last_look.is_some_and(|at| now >= at);
            let next = self.queue(|queue| queue.is_first(self).then_some(queue.next));
            match next.flatten() {
                Some(next) if over || now >= next => return Turn::Ask,
                None if over => return Turn::GiveUp,
                next => {
                    let called = self.turn.notified();
                    // Whatever ends the wait, the queue is looked at again.
                    match next.into_iter().chain(last_look).min() {
                        Some(at) => drop(timeout_at(at, called).await),
                        None => called.await,
                    }
                }
            }
        }
    }

    /// The first one asks now.
    pub(crate) fn asks(&self) {
        self.queue(|queue| (queue.asking, queue.woken) = (true, false));
    }

    /// The key is held.
    pub(crate) fn refused(&self, held: Held) {
        let expires_in = (!held.holders().is_empty()).then(|| held.expires_in());
        let least = self.room.first_pause();
        self.queue(|queue| {
            let now = Instant::now();
            (queue.asking, queue.failures, queue.answered) = (false, 0, now);
            queue.news = Some(Ok(held));
            queue.pause(least, expires_in, now);
        });
    }

    /// There was no answer. Says how often in a row, and since when.
    pub(crate) fn failed(&self, error: Error) -> Option<(u32, Instant)> {
        self.queue(|queue| {
            queue.asking = false;
            queue.failures = queue.failures.saturating_add(1);
            queue.news = Some(Err(error));
            queue.pause(0, None, Instant::now());
            (queue.failures, queue.answered)
        })
    }

    /// The key is granted to the first one. Who is behind it hears of the release, and until then
    /// asks at the slowest pace only.
    pub(crate) fn granted(&self, lease: LeaseId, expires_in: Duration) {
        self.queue(|queue| {
            let now = Instant::now();
            (queue.asking, queue.failures, queue.answered) = (false, 0, now);
            queue.here = Some(lease);
            queue.woken = false;
            queue.pause(backoff::SLOWEST, Some(expires_in), now);
        });
    }

    /// What the last request brought, whoever sent it.
    pub(crate) fn news(&self) -> Option<Result<Held, Error>> {
        self.queue(|queue| queue.news.clone()).flatten()
    }

    fn queue<A>(&self, look: impl FnOnce(&mut Queue) -> A) -> Option<A> {
        self.room.queues.lock().get_mut(&self.key).map(look)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut queues = self.room.queues.lock();
        let Some(queue) = queues.get_mut(&self.key) else {
            return;
        };
        let first = queue.is_first(self);
        queue
            .waiters
            .retain(|waiter| !Arc::ptr_eq(waiter, &self.turn));
        if queue.waiters.is_empty() {
            queues.remove(&self.key);
        } else if first {
            // It went away in the middle of a request, whose answer nobody will tell.
            if std::mem::take(&mut queue.asking) {
                queue.next = Instant::now();
            }
            queue.call_first();
        }
    }
}
