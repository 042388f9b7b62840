//! Which of the keys that stay with this process other processes wait for. The store is asked once a second. If it can
//! tell by itself, a second task listens to it.

use std::{
    collections::HashSet,
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
    telemetry::{self, SentBack},
};

/// How long the stream of a store may be silent. It has an item every few seconds, so one that is silent for longer has
/// lost its connection.
const SILENCE: Duration = Duration::from_secs(30);
/// How long the task listens after the last key has gone back. Another one may stay soon.
const LINGER: Duration = Duration::from_secs(30);

/// Asks the store which keys other processes wait for, and sends them back. Fails if the store does not say it for some
/// of the keys.
pub(super) async fn look(registry: &LeaseRegistry) -> Result<(), Error> {
    let stays = registry.stays.all();
    let mut outcome = Ok(());
    for some in stays.chunks(MAX_RENEWALS) {
        let keys: Vec<Key> = some.iter().map(|stay| stay.key().clone()).collect();
        let store = registry.store.clone();
        let asked = async move { runtime::caught(store.waited_for(&keys)).await };
        match runtime::call("waited_for", registry.call_timeout, asked).await {
            Ok(waited_for) => {
                let waited_for: HashSet<Key> = waited_for.into_iter().collect();
                let waited_for = some.iter().filter(|it| waited_for.contains(it.key()));
                waited_for.for_each(|stay| registry.recall(stay.key()));
            }
            Err(error) => outcome = Err(error),
        }
    }
    outcome
}

/// Starts the task that listens to the store, unless it runs, or the store cannot tell.
pub(super) fn ensure_listening(registry: &Arc<LeaseRegistry>) {
    if registry.stays.begin_to_listen() {
        let listening = Listening(Arc::downgrade(registry));
        // Without a runtime the task is dropped here, so that a later one can start.
        let _ = runtime::spawn(listen(listening));
    }
}

/// The only task that listens. Its drop allows another one.
struct Listening(Weak<LeaseRegistry>);

impl Listening {
    /// `None` if the task ends: the client is gone or closes, or no key has stayed for [`LINGER`].
    fn registry(&self, idle_since: &mut Option<Instant>) -> Option<Arc<LeaseRegistry>> {
        let registry = self.0.upgrade()?;
        if registry.lifecycle.is_closing() {
            return None;
        }
        if registry.stays.has_any() {
            *idle_since = None;
            return Some(registry);
        }
        let idle = idle_since.get_or_insert_with(Instant::now).elapsed();
        (idle < LINGER).then_some(registry)
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        if let Some(registry) = self.0.upgrade() {
            registry.stays.end_listening();
        }
    }
}

/// Sends back the keys that the store tells. The registry is not kept while the task waits for the store.
async fn listen(listening: Listening) {
    let (mut failures, mut idle_since) = (0, None);
    while let Some(registry) = listening.registry(&mut idle_since) {
        let store = registry.store.clone();
        drop(registry);
        let opened = runtime::call("awaited", SILENCE, async move { store.awaited().await }).await;
        let mut keys = match opened {
            Ok(Some(keys)) => keys,
            Ok(None) => {
                if let Some(registry) = listening.registry(&mut idle_since) {
                    registry.stays.set_silent();
                }
                return;
            }
            Err(error) => {
                telemetry::listener_failed(&error);
                let pause = retry::pause(failures, SILENCE, fastrand::f64());
                failures = failures.saturating_add(1);
                sleep(pause).await;
                continue;
            }
        };
        telemetry::listener_opened();
        while let Ok(Some(Ok(keys))) = timeout(SILENCE, keys.next()).await {
            failures = 0;
            let Some(registry) = listening.registry(&mut idle_since) else {
                return;
            };
            keys.iter().for_each(|key| registry.recall(key));
        }
        // The stream has broken. The next one is opened after a pause, so that a server that closes each is not flooded.
        sleep(retry::pause(failures, SILENCE, fastrand::f64())).await;
        failures = failures.saturating_add(1);
    }
}

impl LeaseRegistry {
    /// Sends back the lease of this key, if it stays here, because another process waits for the key.
    fn recall(&self, key: &Key) {
        if let Some(stay) = self.stays.get(key) {
            self.stays.recalled(key, Instant::now());
            self.end_stay(&stay, SentBack::WaitedFor);
        }
    }
}
