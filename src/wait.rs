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

use crate::{Error, Held, Key, LeaseId, Mode, backoff};

/// The queues of all keys that somebody waits for.
#[derive(Debug, Default)]
pub(crate) struct WaitingRoom {
    queues: Mutex<HashMap<Key, Queue>>,
    hearing: Mutex<Hearing>,
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
    /// There were nothing but errors for so long that the first one has given up.
    hopeless: bool,
    /// What the last request brought.
    news: Option<Result<Held, Error>>,
    /// The leases of this process that were granted the key: their release is heard of here.
    here: Vec<LeaseId>,
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
            hopeless: false,
            news: None,
            here: Vec::new(),
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
        self.wake(key, |queue| {
            let before = queue.here.len();
            queue.here.retain(|here| *here != lease);
            before == 0 || queue.here.len() < before
        });
    }

    /// The key may be shared from now on.
    pub(crate) fn opened(&self, key: &Key) {
        self.wake(key, |_| true);
    }

    /// The store says that this key became free. One that was held here has its own way to say so.
    pub(crate) fn freed(&self, key: &Key) {
        self.wake(key, |queue| queue.here.is_empty());
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
            Hearing::News => backoff::SLOWEST,
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
            first.notify_one();
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
            && now.saturating_duration_since(self.answered) < backoff::WAITING / 2
    }

    fn is_first(&self, place: &Place) -> bool {
        self.waiters
            .front()
            .is_some_and(|first| Arc::ptr_eq(first, &place.turn))
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
    /// any case, and another gives up. From `hopeless` on it gives up when nobody gets an answer.
    pub(crate) async fn turn(&self, last_look: Option<Instant>, hopeless: Option<Instant>) -> Turn {
        loop {
            let now = Instant::now();
            let over = last_look.is_some_and(|at| now >= at);
            let next = self.queue(|queue| {
                if queue.hopeless && hopeless.is_some_and(|at| now >= at) {
                    return Err(Turn::GiveUp);
                }
                if !queue.is_first(self) {
                    return if over { Err(Turn::GiveUp) } else { Ok(None) };
                }
                match over || now >= queue.next {
                    true if over && queue.knows(now) => Err(Turn::GiveUp),
                    true => Err(Turn::Ask),
                    false => Ok(Some(queue.next)),
                }
            });
            let next = match next {
                // The queue is there as long as this place is.
                None | Some(Ok(None)) => None,
                Some(Ok(next)) => next,
                Some(Err(turn)) => return turn,
            };
            let called = self.turn.notified();
            // Whatever ends the wait, the queue is looked at again.
            match next.into_iter().chain(last_look).min() {
                Some(at) => drop(timeout_at(at, called).await),
                None => called.await,
            }
        }
    }

    /// There was nothing but errors for so long that the first one gives up. Those that have waited
    /// as long do so too.
    pub(crate) fn despairs(&self) {
        self.queue(|queue| {
            queue.hopeless = true;
            queue.waiters.iter().for_each(|waiter| waiter.notify_one());
        });
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
            queue.is_answered(now);
            // One of ours that is not among the holders has ended otherwise than by its release.
            let holds = |lease: &LeaseId| held.holders().iter().any(|it| it.lease == *lease);
            queue.here.retain(holds);
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
    /// asks at the slowest pace only; unless it may be granted the key as well.
    pub(crate) fn granted(&self, lease: LeaseId, mode: Mode, expires_in: Duration) {
        self.queue(|queue| {
            let now = Instant::now();
            queue.is_answered(now);
            queue.news = None;
            queue.here.push(lease);
            match mode {
                Mode::Exclusive => {
                    queue.woken = false;
                    queue.pause(backoff::SLOWEST, Some(expires_in), now);
                }
                Mode::Shared | Mode::Permits => queue.wake(now),
            }
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
        match first {
            true => drop(queue.waiters.pop_front()),
            false => queue.waiters.retain(|it| !Arc::ptr_eq(it, &self.turn)),
        }
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
