//! Finds out for which of the keys that stay with this process other processes wait. `stay_task.rs` asks the store
//! twice a second. If the store can send notifications, a second task listens for them.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Weak},
};

use futures::FutureExt;
use tokio::time::Instant;

use super::registry::LeaseRegistry;
use crate::{
    messages::MAX_RENEWALS,
    model::{Error, Key},
    runtime::{
        self,
        listener::{Listener, Opening, listen},
    },
    telemetry::{KeyStream, StayEndReason},
};

/// The keys that other processes wait for, and whether the store has answered for all keys.
pub(super) type WaitedFor = (Vec<Key>, Result<(), Error>);

/// Asks the store which of the keys that stay other processes wait for. The future does not keep the registry.
pub(super) fn ask_waited_for(registry: &LeaseRegistry) -> impl Future<Output = WaitedFor> + use<> {
    let keys: Vec<Key> = registry
        .stays
        .all()
        .iter()
        .map(|it| it.key().clone())
        .collect();
    let (store, limit) = (registry.store.clone(), registry.call_timeout);
    async move {
        let (mut all, mut outcome) = (Vec::new(), Ok(()));
        for some in keys.chunks(MAX_RENEWALS) {
            let (store, some) = (store.clone(), some.to_vec());
            let asked = async move { runtime::caught(store.waited_for(&some)).await };
            match runtime::call("waited_for", limit, asked).await {
                Ok(waited_for) => all.extend(waited_for),
                Err(error) => outcome = Err(error),
            }
        }
        (all, outcome)
    }
}

/// Starts the task that listens to the store, unless it runs, or the store cannot tell. A key must stay already, so
/// that a listener which ends meanwhile finds it.
pub(super) fn ensure_listening(registry: &Arc<LeaseRegistry>) {
    if let Some(permit) = registry.stays.listener.permit() {
        let listener = AwaitedListener(Arc::downgrade(registry));
        let closing = registry.lifecycle.closing().clone();
        let listening = listen(listener, permit, closing);
        registry.renewals.run_beside(listening);
    }
}

/// Sends back the keys that the store tells. The registry is not kept while the task waits for the store.
struct AwaitedListener(Weak<LeaseRegistry>);

impl Listener for AwaitedListener {
    type Key = Key;
    const STREAM: KeyStream = KeyStream::Awaited;
    const OPERATION: &'static str = "awaited";

    fn open(&self) -> Option<Opening<Key>> {
        let store = self.0.upgrade()?.store.clone();
        Some(async move { store.awaited().await }.boxed())
    }

    fn is_needed(&self) -> bool {
        let registry = self.0.upgrade();
        registry.is_some_and(|registry| registry.stays.has_any())
    }

    fn receive(&self, keys: Vec<Key>) {
        if let Some(registry) = self.0.upgrade() {
            keys.iter().for_each(|key| registry.recall(key));
        }
    }
}

impl LeaseRegistry {
    /// Sends back the lease of this key, if it stays here, because another process waits for the key.
    pub(super) fn recall(&self, key: &Key) {
        if let Some(stay) = self.stays.get(key) {
            self.stays.recalled(key, Instant::now());
            // The subscriber of the application may panic in the event. The other keys go back all the same.
            let end = || self.end_stay(&stay, StayEndReason::WaitedFor);
            let _ = catch_unwind(AssertUnwindSafe(end));
        }
    }
}
