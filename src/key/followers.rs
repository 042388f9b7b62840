//! `Followers`: tasks that are notified when a key becomes free, but do not wait for it. `Leader::watch` uses one.

use std::{collections::BTreeMap, sync::Arc};

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::model::Key;

/// The followers of all keys.
#[derive(Debug, Default)]
pub(super) struct Followers(Mutex<BTreeMap<Key, Vec<Arc<Notify>>>>);

impl Followers {
    pub(super) fn follow(self: &Arc<Self>, key: &Key) -> Follower {
        let told = Arc::new(Notify::new());
        let mut keys = self.0.lock();
        keys.entry(key.clone()).or_default().push(told.clone());
        drop(keys);
        Follower {
            followers: self.clone(),
            key: key.clone(),
            told,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.lock().is_empty()
    }

    /// Notifies the followers of this key.
    pub(super) fn tell(&self, key: &Key) {
        if let Some(followers) = self.0.lock().get(key) {
            followers.iter().for_each(|it| it.notify_one());
        }
    }

    /// Notifies the followers of all keys.
    pub(super) fn tell_all(&self) {
        let keys = self.0.lock();
        keys.values().flatten().for_each(|it| it.notify_one());
    }
}

/// Follows a key until it is dropped.
pub(crate) struct Follower {
    followers: Arc<Followers>,
    key: Key,
    told: Arc<Notify>,
}

impl Follower {
    /// Waits until this process or the store reports that the key became free, or may have become free unnoticed. If
    /// such a report came since the last wait, this returns at once.
    pub(crate) async fn freed(&self) {
        self.told.notified().await;
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        let mut keys = self.followers.0.lock();
        if let Some(followers) = keys.get_mut(&self.key) {
            followers.retain(|it| !Arc::ptr_eq(it, &self.told));
            if followers.is_empty() {
                keys.remove(&self.key);
            }
        }
    }
}
