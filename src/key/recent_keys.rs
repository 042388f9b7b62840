//! `RecentKeys`: keys that are remembered, each until its own time. Pure: times come in as arguments.

use std::collections::HashMap;

use tokio::time::Instant;

use crate::model::Key;

/// The most keys that are remembered. If there are more, those are forgotten whose time is over first.
const MOST: usize = 4_096;

/// Keys that are remembered, each until its own time.
#[derive(Debug, Default)]
pub(crate) struct RecentKeys(HashMap<Key, Instant>);

impl RecentKeys {
    /// Remembers a key until this time.
    pub(crate) fn insert(&mut self, key: Key, until: Instant, now: Instant) {
        if self.0.len() >= MOST {
            self.0.retain(|_, until| now < *until);
        }
        if self.0.len() >= MOST {
            let mut all: Vec<_> = self.0.values().copied().collect();
            let (_, middle, _) = all.select_nth_unstable(MOST / 2);
            let middle = *middle;
            self.0.retain(|_, until| *until > middle);
        }
        self.0.insert(key, until);
    }

    /// Whether the key is remembered.
    pub(crate) fn contains(&self, key: &Key, now: Instant) -> bool {
        self.0.get(key).is_some_and(|until| now < *until)
    }

    /// Forgets a key.
    pub(crate) fn remove(&mut self, key: &Key) {
        self.0.remove(key);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const TIME: Duration = Duration::from_secs(9);

    fn key(number: usize) -> Key {
        Key::new(format!("k{number}")).unwrap()
    }

    #[test]
    fn a_key_is_remembered_until_its_time_is_over_or_it_is_removed() {
        let (mut keys, start) = (RecentKeys::default(), Instant::now());
        keys.insert(key(1), start + TIME, start);
        assert!(!keys.contains(&key(2), start));
        assert!(keys.contains(&key(1), start + TIME - Duration::from_millis(1)));
        assert!(!keys.contains(&key(1), start + TIME));
        keys.remove(&key(1));
        assert!(!keys.contains(&key(1), start));
    }

    #[test]
    fn only_so_many_are_remembered() {
        let (mut keys, start) = (RecentKeys::default(), Instant::now());
        let at = |number: usize| start + Duration::from_micros(number as u64);
        for number in 0..3 * MOST {
            keys.insert(key(number), at(number) + TIME, at(number));
            assert!(keys.0.len() <= MOST);
        }
        assert!(keys.contains(&key(3 * MOST - 1), at(3 * MOST)));
        // Keys whose time is over make room.
        let late = at(3 * MOST) + TIME;
        (0..MOST).for_each(|number| keys.insert(key(number), late, late));
        assert!(keys.0.len() <= MOST);
    }
}
