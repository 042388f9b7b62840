//! `KnownKeys`: the keys that this process has lately asked for, so that they are likely to have a document.

use std::{collections::HashSet, mem};

use crate::model::Key;

/// After this many keys the oldest ones are forgotten.
const MOST: usize = 16_384;

/// Keys that are likely to have a document, at most twice [`MOST`].
#[derive(Debug, Default)]
pub(super) struct KnownKeys {
    newer: HashSet<Key>,
    older: HashSet<Key>,
}

impl KnownKeys {
    pub(super) fn insert(&mut self, key: &Key) {
        if self.newer.contains(key) {
            return;
        }
        if self.newer.len() == MOST {
            self.older = mem::take(&mut self.newer);
        }
        self.newer.insert(key.clone());
    }

    pub(super) fn contains(&self, key: &Key) -> bool {
        self.newer.contains(key) || self.older.contains(key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_keys_are_known() {
        let mut keys = KnownKeys::default();
        let key = |number: usize| Key::new(format!("k{number}")).unwrap();
        for number in 0..3 * MOST {
            keys.insert(&key(number));
            keys.insert(&key(number));
            assert!(keys.newer.len() + keys.older.len() <= 2 * MOST);
        }
        assert!((2 * MOST..3 * MOST).all(|number| keys.contains(&key(number))));
        assert!(!keys.contains(&key(0)));
    }
}
