//! Hears from the store which keys become free, while there are waiters.

use std::{sync::Arc, time::Duration};

use futures::StreamExt;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::queues::{ListenerState, WaitQueues};
use crate::{retry, runtime, store::Store, telemetry};

/// How long it goes on listening after the last waiter, because another may come soon.
const LINGER: Duration = Duration::from_secs(30);
/// A store that has nothing to tell says so every few seconds. One that is silent for this long has
/// lost its connection, and nothing else may notice.
const SILENCE: Duration = Duration::from_secs(30);

/// How long a stream has to live until it counts as one that works.
const LASTING: Duration = Duration::from_secs(10);
/// How long until it is tried again where it was refused: an operator may mend that.
const REFUSED: Duration = Duration::from_secs(60);

/// Listens to a store for the queues. However it goes, by a panic or with its runtime, the next who waits has
/// another one listen.
struct Listener(Arc<WaitQueues>);

impl Drop for Listener {
    fn drop(&mut self) {
        self.0.end_listening();
    }
}

/// Has the store listened to for keys that become free, unless that is done or of no use.
pub(crate) fn ensure_listener(
    queues: &Arc<WaitQueues>,
    store: &Arc<dyn Store>,
    closing: &CancellationToken,
) {
    if queues.begin_to_listen() {
        let listener = Listener(queues.clone());
        // Without a runtime the listener is dropped, and the next who waits wants one again.
        let _ = runtime::spawn(listen(store.clone(), listener, closing.clone()));
    }
}

/// Passes on what the store tells, until there was no waiter for a while.
///
/// The listener stops between two items of the stream, so that no request is cut that may still be answered.
async fn listen(store: Arc<dyn Store>, listener: Listener, closing: CancellationToken) {
    let queues = &*listener.0;
    let mut failures = 0;
    let mut idle_since = None;
    let mut over = |queues: &WaitQueues| closing.is_cancelled() || idles(queues, &mut idle_since);
    while !over(queues) {
        let asked = store.clone();
        let opened = Instant::now();
        let error =
            match runtime::call("wake-ups", SILENCE, async move { asked.freed().await }).await {
                Ok(Some(mut keys)) => {
                    queues.set_listener(ListenerState::Telling);
                    telemetry::hears();
                    let error = loop {
                        match timeout(SILENCE, keys.next()).await {
                            Ok(Some(Ok(keys))) => keys.iter().for_each(|key| queues.freed(key)),
                            Ok(Some(Err(error))) => {
                                telemetry::store_failed("wake-ups", None, &error);
                                break Some(error);
                            }
                            Ok(None) | Err(_) => break None,
                        }
                        if over(queues) {
                            return;
                        }
                    };
                    queues.set_listener(ListenerState::Silent);
                    error
                }
                Ok(None) => {
                    telemetry::deaf();
                    return queues.set_listener(ListenerState::Unsupported);
                }
                Err(error) => Some(error),
            };
        if opened.elapsed() >= LASTING {
            failures = 0;
        }
        let mut pause = retry::pause(failures, retry::BACKGROUND, fastrand::f64());
        if let Some(error) = error {
            if !error.is_retryable() {
                pause = REFUSED;
            }
            telemetry::unheard(&error);
        }
        tokio::select! {
            () = sleep(pause) => {}
            () = closing.cancelled() => return,
        }
        failures = failures.saturating_add(1);
    }
}

/// Whether there was no waiter for a while.
fn idles(queues: &WaitQueues, since: &mut Option<Instant>) -> bool {
    if !queues.is_empty() {
        *since = None;
        return false;
    }
    since.get_or_insert_with(Instant::now).elapsed() >= LINGER
}
