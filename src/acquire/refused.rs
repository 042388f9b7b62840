//! `RefusedKeys`: the keys that were held when this handle last tried to acquire them without waiting. Another attempt
//! is likely to be refused too.
//!
//! A read of the document of a held key costs a database less than a refused change. So the request for one of
//! these keys tells the store that it may read first.

use std::collections::HashMap;

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::model::{Held, Key};

/// The greatest number of keys that a handle remembers. It bounds the memory.
const MOST: usize = 1_024;

/// The keys, each with the instant at which its first holder expires.
#[derive(Default)]
pub(crate) struct RefusedKeys(Mutex<HashMap<Key, Instant>>);

impl RefusedKeys {
    /// Whether the key was held, and none of its holders has expired since.
    pub(crate) fn is_likely_held(&self, key: &Key, now: Instant) -> bool {
        self.0.lock().get(key).is_some_and(|until| now < *until)
    }

    /// Remembers a refused attempt. If there is no room even without the expired entries, the attempt is
    /// not remembered.
    pub(crate) fn refused(&self, held: &Held, now: Instant) {
        let Some(until) = now.checked_add(held.expires_in()) else {
            return;
        };
        let mut keys = self.0.lock();
        if keys.len() >= MOST && !keys.contains_key(held.key()) {
            keys.retain(|_, until| now < *until);
        }
        if keys.len() < MOST || keys.contains_key(held.key()) {
            keys.insert(held.key().clone(), until);
        }
    }

    /// Forgets a key that an attempt was granted.
    pub(crate) fn granted(&self, key: &Key) {
        let mut keys = self.0.lock();
        if !keys.is_empty() {
            keys.remove(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use chrono::{DateTime, Utc};

    use super::*;
    use crate::model::{Fence, Holder, LeaseId};

    const TTL: Duration = Duration::from_secs(9);

    fn held(name: &str) -> Held {
        let now: DateTime<Utc> = "2026-01-01T12:00:00Z".parse().unwrap();
        let (lease, fence) = (LeaseId::random(), Fence::new(7));
        let holder = Holder::exclusive(lease, "they".into(), fence, now, now + TTL);
        Held::new(Key::new(name).unwrap(), vec![holder], now)
    }

    #[test]
    fn a_key_is_likely_held_until_its_holder_expires_or_makes_way() {
        let (keys, start) = (RefusedKeys::default(), Instant::now());
        let held = held("key");
        assert!(!keys.is_likely_held(held.key(), start));
        keys.refused(&held, start);
        let last = start + TTL - Duration::from_millis(1);
        assert!(keys.is_likely_held(held.key(), last));
        assert!(!keys.is_likely_held(held.key(), start + TTL));
        keys.granted(held.key());
        assert!(!keys.is_likely_held(held.key(), start));
    }

    #[test]
    fn no_more_keys_are_remembered_than_there_is_room_for() {
        let (keys, start) = (RefusedKeys::default(), Instant::now());
        for number in 0..MOST + 9 {
            keys.refused(&held(&number.to_string()), start);
        }
        assert_eq!(keys.0.lock().len(), MOST);
        // Expired entries make room.
        let late = held("late");
        keys.refused(&late, start + TTL);
        assert!(keys.is_likely_held(late.key(), start + TTL));
        assert_eq!(keys.0.lock().len(), 1);
    }
}
