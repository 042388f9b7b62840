//! The waiting room: the tasks of this process that wait for the same key stand in a queue, and the
//! first of them asks for all.
//!
//! It sends nothing. Each waiter holds a [`Place`], which it leaves by dropping
//! it, for whatever reason; so none can block those behind it.

mod handover;
mod place;

use std::{
    collections::{HashMap, HashSet, VecDeque},
    sync::{Arc, OnceLock, Weak},
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{sync::Notify, time::Instant};

pub(crate) use self::{
    handover::{Baton, Handed, Run},
    place::Place,
};
use crate::{
    model::{Error, Held, Key, LeaseId},
    retry,
    runtime::inline_task::Work,
};

/// The queues of all keys that somebody waits for.
#[derive(Debug, Default)]
pub(crate) struct WaitingRoom {
    queues: Mutex<HashMap<Key, Queue>>,
    hearing: Mutex<Hearing>,
    /// The leases of this process, until their release is answered.
    ours: Mutex<HashSet<LeaseId>>,
}

/// Whether the store tells of keys that become free.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Hearing {
    /// Nobody listens.
    #[default]
    None,
    /// A task listens, and the store does not tell now.
    Silence,
    /// The store tells.
    News,
    /// It cannot tell.
    Deaf,
}

#[derive(Debug)]
struct Queue {
    waiters: VecDeque<Waiter>,
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
    /// There were nothing but errors for so long that the first one has given up.
    hopeless: bool,
    /// What the last request brought.
    news: Option<Result<Held, Error>>,
    /// The leases of this process that were granted the key: their release is heard of here.
    here: Vec<LeaseId>,
    /// A lease of this process that makes way for the first one.
    baton: Option<Baton>,
    /// When another process was last seen to hold the key.
    elsewhere: Option<Instant>,
    /// Until when the key is left to other processes.
    left_until: Option<Instant>,
}

#[derive(Debug)]
struct Waiter {
    turn: Arc<Notify>,
    /// What it does, which others depend on from now on.
    work: Weak<Work>,
}

/// Sees to it that a waiter goes on, be its future polled or not. Not under the lock of the queues: the
/// work may end with it.
fn go_on(work: &Weak<Work>) {
    if let Some(work) = work.upgrade() {
        work.leave();
    }
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
    /// Takes the last place in the queue of this key, for whoever does this work.
    pub(crate) fn enter(self: &Arc<Self>, key: &Key, work: Weak<Work>) -> Place {
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
            hopeless: false,
            news: None,
            here: Vec::new(),
            baton: None,
            elsewhere: None,
            left_until: None,
        });
        let waiter = Waiter {
            turn: turn.clone(),
            work,
        };
        let first = queue.waiters.front().map(|first| first.work.clone());
        let depended_on = first.map(|first| [first, waiter.work.clone()]);
        queue.waiters.push_back(waiter);
        drop(queues);
        depended_on.iter().flatten().for_each(go_on);
        Place {
            room: self.clone(),
            key: key.clone(),
            turn,
            waiting: OnceLock::new(),
        }
    }

    /// A lease was granted to this process.
    pub(crate) fn begins(&self, lease: LeaseId) {
        self.ours.lock().insert(lease);
    }

    /// A lease is of no more concern to this process.
    pub(crate) fn ends(&self, lease: LeaseId) {
        self.ours.lock().remove(&lease);
    }

    /// A lease of this process is over: who waits for its key asks at once, unless this process had the
    /// key for long enough and another wants it.
    pub(crate) fn released(&self, key: &Key, lease: LeaseId, run: Run) {
        self.wake(key, |queue| {
            let before = queue.here.len();
            queue.here.retain(|here| *here != lease);
            let news = before == 0 || queue.here.len() < before;
            let now = Instant::now();
            match run.gives_way(now, fastrand::f64()) {
                Some(pause) if news => {
                    queue.gives_way(now + pause);
                    false
                }
                _ => news,
            }
        });
    }

    /// The key may be shared from now on.
    pub(crate) fn opened(&self, key: &Key) {
        self.wake(key, |_| true);
    }

    /// The store says that this key became free. One that was held here has its own way to say so.
    pub(crate) fn freed(&self, key: &Key) {
        // It may be told of a release of ours that left the key to others for a moment.
        let now = Instant::now();
        self.wake(key, |queue| {
            queue.here.is_empty() && queue.left_until.is_none_or(|until| until <= now)
        });
    }

    fn wake(&self, key: &Key, news: impl FnOnce(&mut Queue) -> bool) {
        if let Some(queue) = self.queues.lock().get_mut(key)
            && news(queue)
        {
            queue.wake(Instant::now());
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.queues.lock().is_empty()
    }

    /// An ear for the store, if somebody has to begin to listen to it.
    pub(crate) fn wants_listener(self: &Arc<Self>) -> Option<Ear> {
        let mut hearing = self.hearing.lock();
        if *hearing != Hearing::None {
            return None;
        }
        *hearing = Hearing::Silence;
        Some(Ear(self.clone()))
    }

    /// The first of the pauses: where the store tells, asking is but a safety net.
    fn first_pause(&self) -> u32 {
        match *self.hearing.lock() {
            Hearing::News => retry::SLOWEST,
            _ => 0,
        }
    }
}

/// Listens for a room. However it goes, by a panic or with its runtime, the next who waits has another
/// one listen.
pub(crate) struct Ear(Arc<WaitingRoom>);

impl Ear {
    pub(crate) fn room(&self) -> &WaitingRoom {
        &self.0
    }

    /// The store tells from now on, or does not for a while.
    pub(crate) fn hears(&self, news: bool) {
        *self.0.hearing.lock() = match news {
            true => Hearing::News,
            false => Hearing::Silence,
        };
        if news {
            let mut queues = self.0.queues.lock();
            let waiting = queues.values_mut().filter(|queue| queue.here.is_empty());
            waiting.for_each(|queue| queue.wake(Instant::now()));
        }
    }

    /// The store cannot tell.
    pub(crate) fn is_deaf(&self) {
        *self.0.hearing.lock() = Hearing::Deaf;
    }
}

impl Drop for Ear {
    fn drop(&mut self) {
        let mut hearing = self.0.hearing.lock();
        if *hearing != Hearing::Deaf {
            *hearing = Hearing::None;
        }
    }
}

impl Queue {
    fn call_first(&self) {
        if let Some(first) = self.waiters.front() {
            first.turn.notify_one();
        }
    }

    fn is_answered(&mut self, now: Instant) {
        (self.asking, self.failures, self.answered) = (false, 0, now);
        self.hopeless = false;
    }

    /// Whether the answer to the newest request is as good as one to another look now would be, and
    /// somebody is there to go on looking.
    fn knows(&self, now: Instant) -> bool {
        self.waiters.len() > 1
            && !self.woken
            && matches!(self.news, Some(Ok(_)))
            && now.saturating_duration_since(self.answered) < retry::WAITING / 2
    }

    fn is_first(&self, place: &Place) -> bool {
        self.waiters
            .front()
            .is_some_and(|first| Arc::ptr_eq(&first.turn, &place.turn))
    }

    /// The key is free, and the first one leaves it to others until then.
    fn gives_way(&mut self, until: Instant) {
        // A refusal that is on its way is from before.
        (self.woken, self.pauses) = (self.asking, 0);
        (self.next, self.left_until) = (until, Some(until));
        // Who was in the way then is no more.
        self.news = None;
        self.call_first();
    }

    /// The key may be free: the first one asks at once.
    fn wake(&mut self, now: Instant) {
        self.woken = true;
        self.pauses = 0;
        self.next = now;
        self.call_first();
    }

    /// Puts off the next request; not if the key may be free by now.
    fn pause(&mut self, least: u32, expires_in: Option<Duration>, now: Instant) {
        let pauses = self.pauses.max(least);
        let pause = retry::pause_until_free(pauses, expires_in, fastrand::f64());
        self.pauses = self.pauses.saturating_add(1);
        if !std::mem::take(&mut self.woken) {
            self.next = now + pause;
        }
    }
}
