//! The queues of the operations of this process that wait for the same key. Only the first of a queue sends requests,
//! which is done elsewhere (`acquire/operation.rs`).
//!
//! Invariants:
//!
//! - A waiter leaves the queue when its [`Waiter`](super::Waiter) is dropped, for whatever reason. So an operation that
//!   has ended cannot block those behind it.
//! - No two locks of [`WaitQueues`] are held at the same time.
//! - An operation is detached while none of them is held: if its runtime has ended, it is dropped by that, and takes
//!   them itself.

use std::{
    collections::HashMap,
    sync::{Arc, Weak},
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{
    sync::{Notify, oneshot},
    time::{Instant, timeout},
};

use super::{
    handoff::{HandoffOffer, HandoffOutcome, HandoffStreak},
    queue::{self, Queue, QueuedWaiter},
};
use crate::{
    model::{Key, LeaseId},
    retry,
    runtime::inline_task::InlineTask,
};

/// How long a holder waits for the outcome of its offer: the runtime of the waiter may stand still.
const PATIENCE: Duration = Duration::from_millis(200);

/// The queues of all keys that have waiters.
#[derive(Debug, Default)]
pub(crate) struct WaitQueues {
    queues: Mutex<HashMap<Key, Queue>>,
    listener: Mutex<ListenerState>,
    /// The leases of this process, each until it is detached, or its release is answered or given up.
    own: Mutex<HashMap<LeaseId, HandoffStreak>>,
}

/// Whether the store tells of keys that become free.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum ListenerState {
    /// No listener runs.
    #[default]
    None,
    /// A listener runs, and has no stream of the store now.
    Silent,
    /// A listener runs, and has a stream that tells of free keys.
    Telling,
    /// The store cannot tell of free keys, so no listener is started again.
    Unsupported,
}

impl WaitQueues {
    /// Puts an operation last in the queue of a key. When there are two or more, each of them goes on in a task from
    /// now on: those behind an operation must not wait for its caller to poll it.
    pub(super) fn push(&self, key: &Key, turn: Arc<Notify>, work: Weak<InlineTask>) {
        let mut queues = self.queues.lock();
        let queue = queues.entry(key.clone());
        let queue = queue.or_insert_with(|| Queue::new(Instant::now()));
        let first = queue.waiters.front().map(|first| first.work.clone());
        let depended_on = first.map(|first| [first, work.clone()]);
        queue.waiters.push_back(QueuedWaiter { turn, work });
        drop(queues);
        depended_on.iter().flatten().for_each(queue::detach);
    }

    /// Looks at the queue of a key, or changes it; `None` if it has no waiters.
    pub(super) fn with<A>(&self, key: &Key, look: impl FnOnce(&mut Queue) -> A) -> Option<A> {
        self.queues.lock().get_mut(key).map(look)
    }

    /// Takes a waiter out of the queue of a key.
    pub(super) fn remove(&self, key: &Key, turn: &Arc<Notify>) {
        let mut queues = self.queues.lock();
        let Some(queue) = queues.get_mut(key) else {
            return;
        };
        let first = queue.is_first(turn);
        if first {
            queue.waiters.pop_front();
        } else {
            queue.waiters.retain(|it| !Arc::ptr_eq(&it.turn, turn));
        }
        if queue.waiters.is_empty() {
            queues.remove(key);
        } else if first {
            // The answer to a request of the waiter that has left is not reported here, so the next waiter asks at
            // once.
            if std::mem::take(&mut queue.asking) {
                queue.next = Instant::now();
            }
            queue.call_first();
        }
    }

    /// Takes in a lease that was granted to this process.
    pub(crate) fn begins(&self, lease: LeaseId) {
        self.own.lock().insert(lease, HandoffStreak::default());
    }

    /// Forgets a lease that is detached, or whose release is answered or given up.
    pub(crate) fn ends(&self, lease: LeaseId) {
        self.own.lock().remove(&lease);
    }

    fn streak(&self, lease: LeaseId) -> HandoffStreak {
        self.own.lock().get(&lease).copied().unwrap_or_default()
    }

    pub(super) fn set_streak(&self, lease: LeaseId, streak: HandoffStreak) {
        if let Some(known) = self.own.lock().get_mut(&lease) {
            *known = streak;
        }
    }

    /// Whether all of these are leases of this process.
    pub(super) fn has_all(&self, mut holders: impl Iterator<Item = LeaseId>) -> bool {
        let own = self.own.lock();
        holders.all(|lease| own.contains_key(&lease))
    }

    /// Whether the release of this lease leaves the key to other processes, although this one has waiters for it: they
    /// have handed it over to each other for long enough.
    pub(crate) fn is_left_to_others(&self, key: &Key, lease: LeaseId, now: Instant) -> bool {
        self.streak(lease).is_over(now) && self.queues.lock().contains_key(key)
    }

    /// Takes in that a lease of this process is released. The first waiter for its key asks at once, unless the key was
    /// handed over for so long that it is left to other processes for a moment.
    pub(crate) fn released(&self, key: &Key, lease: LeaseId) {
        let streak = self.streak(lease);
        self.wake(key, |queue| {
            let before = queue.here.len();
            queue.here.retain(|here| *here != lease);
            let news = before == 0 || queue.here.len() < before;
            let now = Instant::now();
            match streak.yields_for(now, fastrand::f64()) {
                Some(pause) if news => {
                    queue.yield_until(now + pause);
                    false
                }
                _ => news,
            }
        });
    }

    /// Takes in that the key may be shared from now on: the first waiter for it asks at once.
    pub(crate) fn opened(&self, key: &Key) {
        self.wake(key, |_| true);
    }

    /// Takes in that the store says that this key became free. While a lease of this queue holds the key, that is
    /// ignored: the release of the lease wakes the queue.
    pub(crate) fn freed(&self, key: &Key) {
        // The store may tell of a release by this process, which leaves the key to other processes for a moment.
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

    /// Takes the place of the listener; `false` if there is one already, or the store cannot tell of free keys.
    pub(super) fn begin_to_listen(&self) -> bool {
        let mut listener = self.listener.lock();
        let begins = *listener == ListenerState::None;
        if begins {
            *listener = ListenerState::Silent;
        }
        begins
    }

    /// Takes in whether the store tells of free keys from now on.
    pub(super) fn set_listener(&self, state: ListenerState) {
        *self.listener.lock() = state;
        if state == ListenerState::Telling {
            // The store does not tell of keys that became free before the stream was opened. So the first waiter of
            // each queue asks once, unless a lease of the queue holds the key.
            let mut queues = self.queues.lock();
            let waiting = queues.values_mut().filter(|queue| queue.here.is_empty());
            waiting.for_each(|queue| queue.wake(Instant::now()));
        }
    }

    /// Takes in that the listener has ended: another may start, unless the store cannot tell of free keys.
    pub(super) fn end_listening(&self) {
        let mut listener = self.listener.lock();
        if *listener != ListenerState::Unsupported {
            *listener = ListenerState::None;
        }
    }

    /// From how many pauses on a refused waiter counts: where the store tells of free keys, waiters ask at the slowest
    /// pace, in case the store leaves one out.
    pub(super) fn first_pause(&self) -> u32 {
        match *self.listener.lock() {
            ListenerState::Telling => retry::SLOWEST,
            _ => 0,
        }
    }

    /// Offers the lease to the first waiter for its key, and waits for the outcome, at most [`PATIENCE`].
    pub(crate) async fn hand_over(&self, key: &Key, lease: LeaseId) -> HandoffOutcome {
        let Some(outcome) = self.offer(key, lease) else {
            return HandoffOutcome::NotOver;
        };
        match timeout(PATIENCE, outcome).await {
            Ok(Ok(true)) => HandoffOutcome::Over,
            Ok(Ok(false)) => HandoffOutcome::NotOver,
            Ok(Err(_)) => HandoffOutcome::Unclear,
            Err(_) if self.take_back(key, lease) => HandoffOutcome::NotOver,
            Err(_) => HandoffOutcome::Unclear,
        }
    }

    fn offer(&self, key: &Key, lease: LeaseId) -> Option<oneshot::Receiver<bool>> {
        let streak = self.streak(lease);
        let mut queues = self.queues.lock();
        let queue = queues.get_mut(key)?;
        // A first waiter that has a request under way could take the offer only after the answer to that.
        if queue.asking || streak.is_over(Instant::now()) {
            return None;
        }
        let (offer, told) = HandoffOffer::new(lease, streak);
        queue.offer = Some(offer);
        (queue.woken, queue.next) = (true, Instant::now());
        let first = queue.waiters.front().map(|first| first.work.clone());
        queue.call_first();
        drop(queues);
        first.iter().for_each(queue::detach);
        Some(told)
    }

    fn take_back(&self, key: &Key, lease: LeaseId) -> bool {
        let mut queues = self.queues.lock();
        let offered = queues.get_mut(key).map(|queue| &mut queue.offer);
        let own = offered.and_then(|offer| offer.take_if(|offer| offer.from() == lease));
        own.is_some()
    }
}
