//! `RecentKeys`: keys that a handle remembers for some time, and something about each.

use std::collections::HashMap;

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::model::Key;

/// The greatest number of keys that are remembered. It bounds the memory.
const MOST: usize = 1_024;

/// Keys that are remembered, each until its own instant, with a value.
#[derive(Debug)]
pub(crate) struct RecentKeys<V>(Mutex<HashMap<Key, (Instant, V)>>);

impl<V> Default for RecentKeys<V> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<V> RecentKeys<V> {
    /// Whether the key is remembered.
    pub(crate) fn contains(&self, key: &Key, now: Instant) -> bool {
        self.with(key, now, |_| ()).is_some()
    }

    /// Reads or changes the value of a key. `None` if the key is not remembered.
    pub(crate) fn with<A>(
        &self,
        key: &Key,
        now: Instant,
        f: impl FnOnce(&mut V) -> A,
    ) -> Option<A> {
        let mut keys = self.0.lock();
        let (until, value) = keys.get_mut(key)?;
        (now < *until).then(|| f(value))
    }

    /// Remembers a key. If there is no room even without the keys whose time is over, the key is not remembered.
    pub(crate) fn insert(&self, key: &Key, until: Instant, value: V, now: Instant) {
        let mut keys = self.0.lock();
        if keys.len() >= MOST && !keys.contains_key(key) {
            keys.retain(|_, (until, _)| now < *until);
        }
        if keys.len() < MOST || keys.contains_key(key) {
            keys.insert(key.clone(), (until, value));
        }
    }

    /// Forgets a key.
    pub(crate) fn remove(&self, key: &Key) {
        let mut keys = self.0.lock();
        if !keys.is_empty() {
            keys.remove(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const TIME: Duration = Duration::from_secs(9);

    fn key(name: impl ToString) -> Key {
        Key::new(name.to_string()).unwrap()
    }

    #[test]
    fn a_key_is_remembered_until_its_time_is_over_or_it_is_removed() {
        let (keys, start, key) = (RecentKeys::default(), Instant::now(), key("key"));
        assert!(!keys.contains(&key, start));
        keys.insert(&key, start + TIME, 7, start);
        let last = start + TIME - Duration::from_millis(1);
        let add = |value: &mut i32| {
            *value += 1;
            *value
        };
        assert_eq!(
            [(); 2].map(|()| keys.with(&key, last, add)),
            [Some(8), Some(9)]
        );
        assert_eq!(keys.with(&key, start + TIME, add), None);
        keys.remove(&key);
        assert!(!keys.contains(&key, start));
    }

    #[test]
    fn no_more_keys_are_remembered_than_there_is_room_for() {
        let (keys, start) = (RecentKeys::default(), Instant::now());
        for number in 0..MOST + 9 {
            keys.insert(&key(number), start + TIME, (), start);
        }
        assert_eq!(keys.0.lock().len(), MOST);
        // Keys whose time is over make room.
        let late = start + TIME;
        keys.insert(&key("late"), late + TIME, (), late);
        assert!(keys.contains(&key("late"), late));
        assert_eq!(keys.0.lock().len(), 1);
    }
}
