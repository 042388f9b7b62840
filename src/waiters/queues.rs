//! `WaitQueues`: the queues of this process, one for each key that has waiters. `acquire/operation/in_turn.rs` sends
//! the requests of the first waiter.
//!
//! Invariants:
//!
//! - A waiter leaves the queue when its [`Waiter`](super::Waiter) is dropped, for any reason. So an operation that has
//!   ended cannot block the waiters behind it. Neither can one whose caller has gone: it goes behind all others at
//!   once, unless its runtime stops in the very poll in which it enters the queue.
//! - No two locks of [`WaitQueues`] are held at the same time.
//! - No lock of [`WaitQueues`] is held while an operation is detached. If the runtime of the operation has ended, the
//!   detach drops it, and the drop of its waiter takes the locks.

use std::{
    collections::{BTreeMap, HashMap},
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
    queue::KeyQueue,
};
use crate::{
    model::{Held, Holder, Key, LeaseId, Mode, WaiterId},
    runtime::{inline_task::InlineTask, listener::ListenerSlot},
    store::FreedKey,
};

/// How long a holder waits for the outcome of its offer. It must not wait longer, because it is possible that no thread
/// drives the runtime of the waiter.
const OFFER_TIMEOUT: Duration = Duration::from_millis(200);

/// The queues of all keys that have waiters.
#[derive(Debug, Default)]
pub(crate) struct WaitQueues {
    queues: Mutex<BTreeMap<Key, KeyQueue>>,
    /// The listener for the keys that other processes free.
    pub(super) listener: ListenerSlot,
    followers: Arc<Followers>,
    /// The leases of this process, each until it is detached, or its release was answered or given up.
    streaks: Mutex<HashMap<LeaseId, HandoffStreak>>,
}

impl WaitQueues {
    /// Adds an operation, which began at `since`, to the queue of a key. If the queue has two or more, each of them runs in a task
    /// from now on, so that the waiters behind an operation do not depend on its caller to poll it.
    pub(super) fn push(
        &self,
        key: &Key,
        wake: Arc<Notify>,
        kind: WaiterKind,
        since: Instant,
        work: Weak<InlineTask>,
    ) {
        let mut queues = self.queues.lock();
        let queue = queues.entry(key.clone());
        let queue = queue.or_insert_with(|| KeyQueue::new(Instant::now()));
        let first = queue.push(wake, kind, since, work.clone());
        drop(queues);
        let depended_on = first.map(|first| [first, work]);
        depended_on.iter().flatten().for_each(detach);
    }

    /// Reads or changes the queue of a key. `None` if the key has no waiters.
    pub(super) fn with<A>(&self, key: &Key, f: impl FnOnce(&mut KeyQueue) -> A) -> Option<A> {
        self.queues.lock().get_mut(key).map(f)
    }

    /// Whether tasks of this process wait for the key.
    pub(crate) fn has_waiters(&self, key: &Key) -> bool {
        self.with(key, |queue| queue.has_waiters()).unwrap_or(false)
    }

    /// Removes a waiter from the queue of a key. If it was the last waiter in the place of this process, returns the
    /// place, which is to be given up.
    pub(super) fn remove(&self, key: &Key, wake: &Arc<Notify>) -> Option<WaiterId> {
        let mut queues = self.queues.lock();
        let queue = queues.get_mut(key)?;
        let left = queue.remove(wake, Instant::now());
        if queue.is_empty() {
            queues.remove(key);
        }
        left
    }

    /// Moves the waiter of this operation, if there is one, behind all others, because the future of its caller was
    /// dropped. The operation leaves the queue when it is polled, but it is possible that nothing drives its runtime
    /// any more.
    pub(crate) fn abandon(&self, key: &Key, work: &Weak<InlineTask>) {
        self.with(key, |queue| queue.abandon(work, Instant::now()));
    }

    /// Leaves a place to the tasks that wait in it. A request of a task that has left may still take that place.
    /// Returns whether such tasks wait: otherwise the place is to be given up.
    pub(crate) fn leave_place(&self, key: &Key, place: WaiterId) -> bool {
        self.with(key, |queue| queue.take_over(place))
            .unwrap_or(false)
    }

    /// Records a lease that this process was granted.
    pub(crate) fn register_lease(&self, lease: LeaseId) {
        self.streaks.lock().insert(lease, HandoffStreak::default());
    }

    /// Removes a lease that is given up without a release.
    pub(crate) fn detach_lease(&self, key: &Key, lease: LeaseId) {
        self.forget_lease(lease);
        self.with(key, |queue| queue.detached(lease));
    }

    /// Removes a lease whose release was answered or given up.
    pub(crate) fn forget_lease(&self, lease: LeaseId) {
        self.streaks.lock().remove(&lease);
    }

    /// Whether an exclusive holder is a lease of this process. If holders share the key, its end may be up to others.
    pub(super) fn has_own_holder(&self, held: &Held) -> bool {
        let streaks = self.streaks.lock();
        let is_own =
            |holder: &Holder| holder.mode == Mode::Exclusive && streaks.contains_key(&holder.lease);
        held.holders().iter().any(is_own)
    }

    fn streak(&self, lease: LeaseId) -> HandoffStreak {
        self.streaks.lock().get(&lease).copied().unwrap_or_default()
    }

    pub(super) fn set_streak(&self, lease: LeaseId, streak: HandoffStreak) {
        if let Some(known) = self.streaks.lock().get_mut(&lease) {
            *known = streak;
        }
    }

    /// Whether the release of this lease leaves the key to other processes although this process has waiters for it,
    /// because the key was handed off often enough in a row.
    pub(crate) fn is_left_to_others(&self, key: &Key, lease: LeaseId, now: Instant) -> bool {
        self.streak(lease).is_exhausted(now) && self.has_waiters(key)
    }

    /// Records that a lease of this process was released. The first waiter for its key sends a request at once.
    pub(crate) fn released(&self, key: &Key, lease: LeaseId) {
        self.with(key, |queue| queue.released(lease));
        self.followers.tell(key);
    }

    /// Records that the key can be shared from now on, or was freed by force. The first waiter for it sends a request
    /// at once.
    pub(crate) fn wake_first(&self, key: &Key) {
        self.with(key, KeyQueue::wake);
        self.followers.tell(key);
    }

    /// Records that the store reported that this key became free.
    pub(crate) fn freed(&self, freed: &FreedKey) {
        self.with(&freed.key, |queue| queue.freed(freed.next.as_deref()));
        self.followers.tell(&freed.key);
    }

    /// Follows a key until the follower is dropped.
    pub(crate) fn follow(&self, key: &Key) -> Follower {
        self.followers.follow(key)
    }

    /// Whether a waiter or a follower needs the store's reports of freed keys.
    pub(super) fn needs_reports(&self) -> bool {
        let queues = self.queues.lock();
        let waiters_need = queues.values().any(KeyQueue::needs_reports);
        drop(queues);
        waiters_need || !self.followers.is_empty()
    }

    /// Records that the store begins or ceases to report freed keys, so that waiters may miss the report of a key. The
    /// first waiter of each queue sends one request, and each follower reads its key once.
    pub(super) fn wake_all(&self) {
        let mut queues = self.queues.lock();
        queues
            .values_mut()
            .for_each(KeyQueue::wake_unless_held_locally);
        drop(queues);
        self.followers.tell_all();
    }

    /// Whether the store reports freed keys now. Waiters then send requests after a pause only in case a report is
    /// missed.
    pub(super) fn reports_freed(&self) -> bool {
        self.listener.is_open()
    }

    /// Offers the lease to the first waiter for its key, and waits for the outcome, for at most [`OFFER_TIMEOUT`].
    pub(crate) async fn offer_and_wait(&self, key: &Key, lease: LeaseId) -> HandoffOutcome {
        let Some(outcome) = self.offer(key, lease) else {
            return HandoffOutcome::NotHandedOver;
        };
        match timeout(OFFER_TIMEOUT, outcome).await {
            // The sender reports an outcome when it is dropped, so the error cannot occur.
            Ok(outcome) => outcome.unwrap_or(HandoffOutcome::Unclear),
            Err(_) if self.take_back(key, lease) => HandoffOutcome::NotHandedOver,
            Err(_) => HandoffOutcome::Unclear,
        }
    }

    fn offer(&self, key: &Key, lease: LeaseId) -> Option<oneshot::Receiver<HandoffOutcome>> {
        let streak = self.streak(lease);
        if streak.is_exhausted(Instant::now()) {
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

/// Moves the operation of a waiter to a task, so that it goes on while its future is not polled. The caller must not
/// hold the lock of the queues: if the runtime of the operation has ended, the operation is dropped here, and its drop
/// takes that lock.
fn detach(work: &Weak<InlineTask>) {
    if let Some(work) = work.upgrade() {
        work.detach();
    }
}
