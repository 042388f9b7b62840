//! Finds out for which of the keys that stay with this process other processes wait. `stay_task.rs` asks the store twice a
//! second. If the store can send notifications, a second task listens for them.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Weak},
    time::Duration,
};

use futures::StreamExt;
use tokio::time::{Instant, sleep, timeout};

use super::registry::LeaseRegistry;
use crate::{
    messages::MAX_RENEWALS,
    model::{Error, Key},
    retry, runtime,
    telemetry::{self, KeyStream, SentBack},
};

/// How long the stream of a store may be silent. It has an item every few seconds, so one that is silent for longer has
/// lost its connection.
const SILENCE: Duration = Duration::from_secs(30);
/// How long the task listens after the last key has gone back. Another one may stay soon.
const LINGER: Duration = Duration::from_secs(30);

/// The keys that other processes wait for, and whether the store has answered for all keys.
pub(super) type Looked = (Vec<Key>, Result<(), Error>);

/// Asks the store which of the keys that stay other processes wait for. The future does not keep the registry.
pub(super) fn ask_waited_for(registry: &LeaseRegistry) -> impl Future<Output = Looked> + use<> {
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

/// Starts the task that listens to the store, unless it runs, or the store cannot tell.
pub(super) fn ensure_listening(registry: &Arc<LeaseRegistry>) {
    if registry.stays.begin_to_listen() {
        let listening = RecallListener(Some(Arc::downgrade(registry)));
        registry.renewals.run_beside(listen(listening));
    }
}

/// The only task that listens. Its drop allows another one.
struct RecallListener(Option<Weak<LeaseRegistry>>);

impl RecallListener {
    /// Decides whether the task goes on. `None` if it ends: the client is gone or closes, or no key has stayed for
    /// [`LINGER`].
    fn go_on(&mut self, idle_since: &mut Option<Instant>) -> Option<Arc<LeaseRegistry>> {
        let registry = self.0.as_ref()?.upgrade()?;
        if registry.lifecycle.is_closing() {
            return None;
        }
        if registry.stays.has_any() {
            *idle_since = None;
            return Some(registry);
        }
        let idle = idle_since.get_or_insert_with(Instant::now).elapsed();
        if idle < LINGER || !registry.stays.end_listening_if_unused() {
            return Some(registry);
        }
        // A key that stays from now on starts another task, which the drop of this one must not end.
        self.0 = None;
        None
    }
}

impl Drop for RecallListener {
    fn drop(&mut self) {
        if let Some(registry) = self.0.as_ref().and_then(Weak::upgrade) {
            registry.stays.end_listening();
        }
    }
}

/// Sends back the keys that the store tells. The registry is not kept while the task waits for the store.
async fn listen(mut listening: RecallListener) {
    let (mut failures, mut idle_since) = (0, None);
    while let Some(registry) = listening.go_on(&mut idle_since) {
        let (store, closing) = (registry.store.clone(), registry.lifecycle.closing().clone());
        drop(registry);
        let pause = |failures| {
            let pause = sleep(retry::pause(failures, SILENCE, fastrand::f64()));
            closing.run_until_cancelled(pause)
        };
        let opened = runtime::call("awaited", SILENCE, async move { store.awaited().await }).await;
        let mut keys = match opened {
            Ok(Some(keys)) => keys,
            Ok(None) => {
                if let Some(registry) = listening.go_on(&mut idle_since) {
                    registry.stays.set_unsupported();
                }
                return;
            }
            Err(error) => {
                telemetry::listener_failed(KeyStream::Awaited, &error);
                pause(failures).await;
                failures = failures.saturating_add(1);
                continue;
            }
        };
        telemetry::listener_opened(KeyStream::Awaited);
        while let Ok(Some(next)) = timeout(SILENCE, keys.next()).await {
            let keys = match next {
                Ok(keys) => keys,
                Err(error) => {
                    telemetry::store_failed("awaited", None, &error);
                    telemetry::listener_failed(KeyStream::Awaited, &error);
                    break;
                }
            };
            failures = 0;
            let Some(registry) = listening.go_on(&mut idle_since) else {
                return;
            };
            keys.iter().for_each(|key| registry.recall(key));
        }
        drop(keys);
        // The stream has broken. The next one is opened after a pause, so that a server that closes each is not flooded.
        pause(failures).await;
        failures = failures.saturating_add(1);
    }
}

impl LeaseRegistry {
    /// Sends back the lease of this key, if it stays here, because another process waits for the key.
    pub(super) fn recall(&self, key: &Key) {
        if let Some(stay) = self.stays.get(key) {
            self.stays.recalled(key, Instant::now());
            // The subscriber of the application may panic in the event. The other keys go back all the same.
            let end = || self.end_stay(&stay, SentBack::WaitedFor);
            let _ = catch_unwind(AssertUnwindSafe(end));
        }
    }
}
