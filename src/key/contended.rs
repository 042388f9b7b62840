//! `ContendedKeys`: the keys that do not stay here for a while, because another process waited for them. Pure: times
//! come in as arguments.

use std::{collections::HashMap, time::Duration};

use tokio::time::Instant;

use crate::model::Key;

/// How long a key does not stay here after another process has waited for it. Two processes that share a key would
/// otherwise wait for each recall.
pub(super) const CONTENDED_FOR: Duration = Duration::from_secs(30);

/// The most keys that are remembered. If there are more, those are forgotten whose time is over first.
const REMEMBERED: usize = 8_192;

/// The keys that other processes use too, each until it may stay here again.
#[derive(Debug, Default)]
pub(super) struct ContendedKeys(HashMap<Key, Instant>);

impl ContendedKeys {
    /// Records that another process waits for this key.
    pub(super) fn insert(&mut self, key: Key, now: Instant) {
        if self.0.len() >= REMEMBERED {
            self.0.retain(|_, until| *until > now);
        }
        if self.0.len() >= REMEMBERED {
            let mut all: Vec<_> = self.0.values().copied().collect();
            let (_, middle, _) = all.select_nth_unstable(REMEMBERED / 2);
            let middle = *middle;
            self.0.retain(|_, until| *until > middle);
        }
        self.0.insert(key, now + CONTENDED_FOR);
    }

    /// Whether this key may stay here.
    pub(super) fn may_stay(&self, key: &Key, now: Instant) -> bool {
        self.0.get(key).is_none_or(|until| *until <= now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(n: usize) -> Key {
        Key::new(format!("k{n}")).unwrap()
    }

    #[test]
    fn a_key_may_stay_again_after_a_while() {
        let now = Instant::now();
        let mut recalled = ContendedKeys::default();
        recalled.insert(key(1), now);
        assert!(recalled.may_stay(&key(2), now));
        assert!(!recalled.may_stay(&key(1), now + CONTENDED_FOR - Duration::from_millis(1)));
        assert!(recalled.may_stay(&key(1), now + CONTENDED_FOR));
    }

    #[test]
    fn only_so_many_are_remembered() {
        let now = Instant::now();
        let mut recalled = ContendedKeys::default();
        let at = |n: usize| now + Duration::from_micros(n as u64);
        for n in 0..3 * REMEMBERED {
            recalled.insert(key(n), at(n));
            assert!(recalled.0.len() <= REMEMBERED);
        }
        assert!(!recalled.may_stay(&key(3 * REMEMBERED - 1), at(3 * REMEMBERED)));
    }
}
