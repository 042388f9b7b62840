//! The queues of the operations of this process that wait for the same key. Only the first of a queue sends requests,
//! which is done elsewhere (`acquire/operation/in_turn.rs`).
//!
//! Invariants:
//!
//! - A waiter leaves the queue when its [`Waiter`](super::Waiter) is dropped, for whatever reason. So an operation that
//!   has ended cannot block those behind it.
//! - No two locks of [`WaitQueues`] are held at the same time.
//! - An operation is detached while none of these locks is held: if its runtime has ended, the detaching drops it, and
//!   the drop of its waiter takes them.

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
    followers::{Follower, Followers},
    handoff::{HandoffOutcome, HandoffStreak},
    kind::WaiterKind,
    queue::Queue,
};
use crate::{
    model::{Key, LeaseId, WaiterId},
    retry,
    runtime::inline_task::InlineTask,
    store::FreedKey,
};

/// How long a holder waits for the outcome of its offer: the runtime of the waiter may stand still.
const OFFER_TIMEOUT: Duration = Duration::from_millis(200);

/// The queues of all keys that have waiters.
#[derive(Debug, Default)]
pub(crate) struct WaitQueues {
    queues: Mutex<HashMap<Key, Queue>>,
    listener: Mutex<ListenerState>,
    followers: Arc<Followers>,
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
    pub(super) fn push(
        &self,
        key: &Key,
        turn: Arc<Notify>,
        kind: WaiterKind,
        work: Weak<InlineTask>,
    ) {
        let mut queues = self.queues.lock();
        let queue = queues.entry(key.clone());
        let queue = queue.or_insert_with(|| Queue::new(Instant::now()));
        let first = queue.push(turn, kind, work.clone());
        drop(queues);
        let depended_on = first.map(|first| [first, work]);
        depended_on.iter().flatten().for_each(detach);
    }

    /// Looks at the queue of a key, or changes it; `None` if it has no waiters.
    pub(super) fn with<A>(&self, key: &Key, look: impl FnOnce(&mut Queue) -> A) -> Option<A> {
        self.queues.lock().get_mut(key).map(look)
    }

    /// Takes a waiter out of the queue of a key. Gives the place in the document of the key that is to be given up, if the
    /// waiter was the last that waits in it.
    pub(super) fn remove(&self, key: &Key, turn: &Arc<Notify>) -> Option<WaiterId> {
        let mut queues = self.queues.lock();
        let queue = queues.get_mut(key)?;
        let left = queue.remove(turn, Instant::now());
        if queue.is_empty() {
            queues.remove(key);
        }
        left
    }

    /// Leaves a place, which a request of a task that has left may still take, to the tasks that wait in it. Says whether
    /// there are any: otherwise the place is to be given up.
    pub(crate) fn leave_place(&self, key: &Key, place: WaiterId) -> bool {
        self.with(key, |queue| queue.take_over(place))
            .unwrap_or(false)
    }

    /// Records a lease that was granted to this process.
    pub(crate) fn register_lease(&self, lease: LeaseId) {
        self.own.lock().insert(lease, HandoffStreak::default());
    }

    /// Forgets a lease that is detached, or whose release is answered or given up.
    pub(crate) fn forget_lease(&self, lease: LeaseId) {
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

    /// Whether the release of this lease leaves the key to other processes, although this one has waiters for it: they
    /// have handed it off to each other for long enough.
    pub(crate) fn is_left_to_others(&self, key: &Key, lease: LeaseId, now: Instant) -> bool {
        self.streak(lease).is_over(now) && self.queues.lock().contains_key(key)
    }

    /// Records that a lease of this process is released. The first waiter for its key asks at once.
    pub(crate) fn released(&self, key: &Key, lease: LeaseId) {
        self.with(key, |queue| queue.released(lease));
        self.followers.tell(key);
    }

    /// Records that the key may be shared from now on, or was freed by force: the first waiter for it asks at once.
    pub(crate) fn wake_first(&self, key: &Key) {
        self.with(key, Queue::wake);
        self.followers.tell(key);
    }

    /// Records that the store says that this key became free.
    pub(crate) fn freed(&self, freed: &FreedKey) {
        self.with(&freed.key, |queue| queue.freed(freed.next.as_deref()));
        self.followers.tell(&freed.key);
    }

    /// Follows a key until the follower is dropped.
    pub(crate) fn follow(&self, key: &Key) -> Follower {
        self.followers.follow(key)
    }

    /// Whether nobody wants to hear which keys became free.
    pub(super) fn is_idle(&self) -> bool {
        self.queues.lock().is_empty() && self.followers.is_empty()
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
            // each queue asks once, and the followers look once.
            let mut queues = self.queues.lock();
            queues.values_mut().for_each(Queue::wake_unless_held_here);
            drop(queues);
            self.followers.tell_all();
        }
    }

    /// Records that the listener has ended: another may start, unless the store cannot tell of free keys.
    pub(super) fn end_listening(&self) {
        let mut listener = self.listener.lock();
        if *listener != ListenerState::Unsupported {
            *listener = ListenerState::None;
        }
    }

    /// The least number of pauses that a refused waiter is taken to have made. Where the store tells of free keys,
    /// waiters ask at the slowest pace, in case the store leaves one out.
    pub(super) fn least_pauses(&self) -> u32 {
        match *self.listener.lock() {
            ListenerState::Telling => retry::SLOWEST,
            _ => 0,
        }
    }

    /// Offers the lease to the first waiter for its key, and waits for the outcome, at most [`OFFER_TIMEOUT`].
    pub(crate) async fn hand_over(&self, key: &Key, lease: LeaseId) -> HandoffOutcome {
        let Some(outcome) = self.offer(key, lease) else {
            return HandoffOutcome::NotOver;
        };
        match timeout(OFFER_TIMEOUT, outcome).await {
            // The sender tells an outcome when it is dropped, so the error cannot occur.
            Ok(outcome) => outcome.unwrap_or(HandoffOutcome::Unclear),
            Err(_) if self.take_back(key, lease) => HandoffOutcome::NotOver,
            Err(_) => HandoffOutcome::Unclear,
        }
    }

    fn offer(&self, key: &Key, lease: LeaseId) -> Option<oneshot::Receiver<HandoffOutcome>> {
        let streak = self.streak(lease);
        if streak.is_over(Instant::now()) {
            return None;
        }
        let (outcome, waiter) = self
            .with(key, |queue| queue.offer(lease, streak))
            .flatten()?;
        detach(&waiter);
        Some(outcome)
    }

    fn take_back(&self, key: &Key, lease: LeaseId) -> bool {
        self.with(key, |queue| queue.take_back(lease))
            .unwrap_or(false)
    }
}

/// Leaves the operation of a waiter to a task, so that it goes on while its future is not polled. The caller must not
/// hold the lock of the queues: if the runtime of the operation has ended, the operation is dropped here and takes
/// that lock.
fn detach(work: &Weak<InlineTask>) {
    if let Some(work) = work.upgrade() {
        work.detach();
    }
}
