//! `Followers`: tasks that are notified when a key becomes free, but do not wait for it. `Leader::watch` uses one.

use std::collections::BTreeMap;

use parking_lot::Mutex;
use tokio::sync::watch::{Receiver, Sender};

use crate::model::Key;

/// The followers of all keys. Each sender notifies those of a key.
#[derive(Default)]
pub(super) struct Followers(Mutex<BTreeMap<Key, Sender<()>>>);

/// Follows a key until it is dropped.
pub(crate) struct Follower(Receiver<()>);

impl Followers {
    pub(super) fn follow(&self, key: &Key) -> Follower {
        let mut keys = self.0.lock();
        // Keys that nobody follows any more are looked for now and then, so that to follow many keys costs no more.
        if keys.len().is_power_of_two() {
            keys.retain(|_, told| told.receiver_count() > 0);
        }
        Follower(keys.entry(key.clone()).or_default().subscribe())
    }

    pub(super) fn is_empty(&self) -> bool {
        let keys = self.0.lock();
        keys.values().all(|told| told.receiver_count() == 0)
    }

    /// Notifies the followers of this key.
    pub(super) fn tell(&self, key: &Key) {
        if let Some(told) = self.0.lock().get(key) {
            told.send_replace(());
        }
    }

    /// Notifies the followers of all keys.
    pub(super) fn tell_all(&self) {
        let keys = self.0.lock();
        keys.values().for_each(|told| told.send_replace(()));
    }
}

impl Follower {
    /// Waits until this process or the store reports that the key became free, or may have become free unnoticed. If
    /// such a report came since the last wait, this returns at once.
    pub(crate) async fn freed(&mut self) {
        // The sender is not dropped while there is a follower.
        let _ = self.0.changed().await;
    }
}
