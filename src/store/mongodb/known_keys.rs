//! `KnownKeys`: the keys that had a document when this process last saw it.

use std::{collections::HashSet, mem};

use crate::model::Key;

/// After this many keys the oldest ones are forgotten.
const MOST: usize = 16_384;

/// Keys that had a document when this process last saw it, at most twice [`MOST`].
#[derive(Debug, Default)]
pub(super) struct KnownKeys {
    newer: HashSet<Key>,
    older: HashSet<Key>,
}

impl KnownKeys {
    /// Remembers that the key has a document, or that it has none.
    pub(super) fn saw(&mut self, key: &Key, exists: bool) {
        if !exists {
            self.newer.remove(key);
            self.older.remove(key);
        } else if !self.newer.contains(key) {
            if self.newer.len() == MOST {
                self.older = mem::take(&mut self.newer);
            }
            self.newer.insert(key.clone());
        }
    }

    pub(super) fn contains(&self, key: &Key) -> bool {
        self.newer.contains(key) || self.older.contains(key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(number: usize) -> Key {
        Key::new(format!("k{number}")).unwrap()
    }

    #[test]
    fn the_last_keys_are_known_until_they_have_no_document() {
        let mut keys = KnownKeys::default();
        for number in 0..3 * MOST {
            keys.saw(&key(number), true);
        }
        assert!((2 * MOST..3 * MOST).all(|number| keys.contains(&key(number))));
        assert!(!keys.contains(&key(0)));
        for number in [MOST, 3 * MOST - 1] {
            keys.saw(&key(number), false);
            assert!(!keys.contains(&key(number)));
        }
    }
}
