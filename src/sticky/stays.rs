//! `Stays`: the keys that stay with this process.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use tokio::time::Instant;

use super::{contended::ContendedKeys, stay::Stay};
use crate::{model::Key, runtime::listener::ListenerSlot};

/// The most keys that stay. If there are more, the key that was not used for the longest time goes back first.
const MAX_KEYS: usize = 4_096;

/// After how long the task that looks after the keys checks again whether the release of a lease was answered.
const RELEASED: Duration = Duration::from_secs(1);

/// The keys that stay with this process.
#[derive(Debug, Default)]
pub(crate) struct Stays {
    keys: Mutex<Keys>,
    /// How many keys there are, those of leases that have ended included. A client without any does not take the lock.
    count: AtomicUsize,
    /// The listener for the keys that other processes wait for.
    pub(crate) listener: ListenerSlot,
}

#[derive(Debug, Default)]
struct Keys {
    stays: BTreeMap<Key, Arc<Stay>>,
    /// The leases that do not stay any more, each until it was released. A key can have several: shared leases end one
    /// after the other.
    ended: BTreeMap<Key, Vec<Arc<Stay>>>,
    recalled: ContendedKeys,
    /// Whether a task looks after the keys.
    has_task: bool,
}

impl Stays {
    /// Whether any lease stays, or goes back. Most clients have none, and need not look for a key.
    pub(crate) fn is_used(&self) -> bool {
        self.count.load(Ordering::Acquire) > 0
    }

    /// The lease of this key that stays. `None` if there is none.
    pub(crate) fn get(&self, key: &Key) -> Option<Arc<Stay>> {
        if !self.is_used() {
            return None;
        }
        self.keys.lock().stays.get(key).cloned()
    }

    /// The lease of this key that has ended, but is used still, so that a reentrant lease can enter.
    pub(crate) fn in_use(&self, key: &Key, now: Instant) -> Option<Arc<Stay>> {
        if !self.is_used() {
            return None;
        }
        let keys = self.keys.lock();
        let mut ended = keys.ended.get(key).into_iter().flatten();
        ended.find(|stay| stay.is_in_use(now)).cloned()
    }

    /// The leases of this key that stay, or have not been released yet.
    pub(crate) fn all_of(&self, key: &Key) -> Vec<Arc<Stay>> {
        if !self.is_used() {
            return Vec::new();
        }
        let keys = self.keys.lock();
        let ended = keys.ended.get(key).into_iter().flatten();
        keys.stays
            .get(key)
            .into_iter()
            .chain(ended)
            .cloned()
            .collect()
    }

    /// The lease of this key that goes back to the store, if its release is not answered yet.
    pub(crate) fn going_back(&self, key: &Key) -> Option<Arc<Stay>> {
        if !self.is_used() {
            return None;
        }
        let keys = self.keys.lock();
        let mut ended = keys.ended.get(key).into_iter().flatten();
        let goes_back = |stay: &&Arc<Stay>| stay.is_settled() && !stay.stored().is_given_back();
        ended.find(goes_back).cloned()
    }

    /// Adds a lease that stays. Returns those that the caller ends: an earlier one of the key, and the least recently
    /// used one if there are too many.
    pub(crate) fn insert(&self, stay: &Arc<Stay>) -> Vec<Arc<Stay>> {
        let mut keys = self.keys.lock();
        let mut ended: Vec<_> = keys
            .stays
            .insert(stay.key().clone(), stay.clone())
            .into_iter()
            .collect();
        if keys.stays.len() > MAX_KEYS {
            let others = keys.stays.values().filter(|it| !Arc::ptr_eq(it, stay));
            let idle = others.filter_map(|it| Some((it.idle_since()?, it)));
            let oldest = idle.min_by_key(|(since, _)| *since);
            // If all keys are in use, the new one stays only until it is not used any more.
            ended.push(oldest.map_or(stay, |(_, oldest)| oldest).clone());
        }
        for stay in &ended {
            if !keys.remove(stay) {
                keys.add_ended(stay);
            }
        }
        self.update_count(&keys);
        ended
    }

    /// Removes a lease, because it does not stay any more. Returns whether it was still there.
    pub(crate) fn remove(&self, stay: &Arc<Stay>) -> bool {
        let mut keys = self.keys.lock();
        let was_there = keys.remove(stay);
        self.update_count(&keys);
        was_there
    }

    /// All leases that stay.
    pub(crate) fn all(&self) -> Vec<Arc<Stay>> {
        self.keys.lock().stays.values().cloned().collect()
    }

    /// The leases that do not stay any more, and are not known to be released.
    pub(crate) fn ended(&self) -> Vec<Arc<Stay>> {
        self.keys.lock().ended.values().flatten().cloned().collect()
    }

    /// Removes the leases that were released.
    pub(crate) fn forget_released(&self) {
        let mut keys = self.keys.lock();
        keys.ended.retain(|_, stays| {
            stays.retain(|stay| !stay.stored().is_given_back());
            !stays.is_empty()
        });
        self.update_count(&keys);
    }

    /// Plans the next check of the keys, and returns the time until then. It is the shortest time for which an idle key
    /// stays, or the time until the first lease from memory under an ended one expires, if that is sooner. `None` if
    /// there are no leases: the task that looks after the keys then ends, and the next key that stays starts another
    /// one.
    pub(crate) fn plan_next_check(&self, now: Instant) -> Option<Duration> {
        let mut keys = self.keys.lock();
        let idle = keys.stays.values().map(|stay| stay.idle());
        let ended = keys.ended.values().flatten().map(|stay| {
            let at = stay.next_expiry(now);
            at.map_or(RELEASED, |at| at.saturating_duration_since(now))
        });
        let next = idle.chain(ended).min();
        keys.has_task &= next.is_some();
        next
    }

    /// Records that a task looks after the keys. `false` if one does already.
    pub(crate) fn begin_task(&self) -> bool {
        !std::mem::replace(&mut self.keys.lock().has_task, true)
    }

    /// Whether any key stays.
    pub(crate) fn has_any(&self) -> bool {
        !self.keys.lock().stays.is_empty()
    }

    /// Records that the document of this key was needed, most often by another process that waits. The key does not
    /// stay here for a while.
    pub(crate) fn recalled(&self, key: &Key, now: Instant) {
        self.keys.lock().recalled.insert(key.clone(), now);
    }

    /// Whether a lease of this key may stay here.
    pub(crate) fn may_stay(&self, key: &Key, now: Instant) -> bool {
        self.keys.lock().recalled.may_stay(key, now)
    }

    fn update_count(&self, keys: &Keys) {
        let count = keys.stays.len() + keys.ended.len();
        self.count.store(count, Ordering::Release);
    }
}

impl Keys {
    /// Removes this lease, and not a later one of the same key. Returns whether it was still there.
    fn remove(&mut self, stay: &Arc<Stay>) -> bool {
        let is_it = |found: &Arc<Stay>| Arc::ptr_eq(found, stay);
        let was_there = self.stays.get(stay.key()).is_some_and(is_it);
        if was_there {
            self.stays.remove(stay.key());
            self.add_ended(stay);
        }
        was_there
    }

    fn add_ended(&mut self, stay: &Arc<Stay>) {
        let ended = self.ended.entry(stay.key().clone()).or_default();
        ended.push(stay.clone());
    }
}
