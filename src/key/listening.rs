//! The listener for the keys that become free. It runs while this process has followers, or waiters that need it.

use std::sync::Weak;

use futures::FutureExt;

use super::{effect::Event, followers::Follower, keys::Keys};
use crate::{
    model::Key,
    runtime::listener::{Listener, ListenerSlot, Opening, listen},
    store::FreedKey,
    telemetry::KeyStream,
};

impl Keys {
    /// Follows a key until the follower is dropped.
    pub(crate) fn follow(&self, key: &Key) -> Follower {
        self.streams.followers.follow(key)
    }

    /// Starts the listener, unless it runs already or the store cannot report freed keys. The waiter or the follower
    /// that needs it must be there already, so that a listener which ends meanwhile finds it.
    pub(crate) fn listen(&self) {
        self.start(&self.streams.freed, FreedListener(self.this.clone()));
    }

    /// Starts a listener, unless one has the slot already or the store has no such stream.
    pub(super) fn start(&self, slot: &ListenerSlot, listener: impl Listener + 'static) {
        if let Some(permit) = slot.permit() {
            let closing = self.lifecycle.closing.clone();
            // Without a runtime the permit is dropped here, so that a later need can start a listener.
            self.lifecycle.spawn(listen(listener, permit, closing));
        }
    }
}

/// Wakes the waiters and the followers of the keys that the store reports.
struct FreedListener(Weak<Keys>);

impl Listener for FreedListener {
    type Key = FreedKey;
    const STREAM: KeyStream = KeyStream::Freed;
    const OPERATION: &'static str = "wake-ups";

    fn open(&self) -> Option<Opening<FreedKey>> {
        let store = self.0.upgrade()?.store.clone();
        Some(async move { store.freed().await }.boxed())
    }

    fn store_name(&self) -> String {
        let keys = self.0.upgrade();
        keys.map_or_else(|| "the store".to_owned(), |keys| keys.store.name())
    }

    fn is_needed(&self) -> bool {
        self.0.upgrade().is_some_and(|keys| {
            let map = keys.map.lock();
            let waiters_need = map.states.values().any(|state| state.needs_reports());
            drop(map);
            waiters_need || !keys.streams.followers.is_empty()
        })
    }

    /// The first waiter of each key asks once, and each follower reads its key once.
    fn missed(&self) {
        // A waiter that has no need of reports may pause for longer all the same while there are some.
        if let Some(keys) = self.0.upgrade() {
            let all: Vec<_> = keys.map.lock().states.keys().cloned().collect();
            all.iter().for_each(|key| keys.step(key, Event::MayBeFree));
            keys.streams.followers.tell_all();
        }
    }

    fn receive(&self, freed: Vec<FreedKey>) {
        let Some(keys) = self.0.upgrade() else {
            return;
        };
        for FreedKey { key, next } in freed {
            keys.step(&key, Event::Freed(next));
            keys.streams.followers.tell(&key);
        }
    }
}
