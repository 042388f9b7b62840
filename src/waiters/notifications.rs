//! The listener: a task that receives from the store which keys become free, while this process has waiters or
//! followers.

use std::{sync::Arc, time::Duration};

use futures::StreamExt;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::queues::{ListenerState, WaitQueues};
use crate::{
    retry, runtime,
    store::Store,
    telemetry::{self, KeyStream},
};

/// How long the listener runs after the last waiter or follower has left. Another one may come soon.
const LINGER: Duration = Duration::from_secs(30);
/// How long the stream of a store may be silent. The stream has an item every few seconds, also if no key became free.
/// So a stream that is silent for longer has lost its connection, perhaps without an error.
const SILENCE: Duration = Duration::from_secs(30);

/// After a stream that was open for at least this long, the pauses start again with the shortest one.
const LASTING: Duration = Duration::from_secs(10);
/// The pause after an error that a retry does not fix, such as a missing permission. An operator may grant it
/// meanwhile.
const REFUSED: Duration = Duration::from_secs(60);

/// The only listener of the queues. Its drop, also by a panic or with its runtime, allows the next refused waiter to
/// start another listener.
struct Listener(Arc<WaitQueues>);

impl Drop for Listener {
    fn drop(&mut self) {
        self.0.end_listening();
    }
}

/// Starts the listener, unless it runs already or the store cannot report freed keys.
pub(crate) fn ensure_listener(
    queues: &Arc<WaitQueues>,
    store: &Arc<dyn Store>,
    closing: &CancellationToken,
) {
    if queues.begin_to_listen() {
        let listener = Listener(queues.clone());
        // Without a runtime the listener is dropped here, so that a later waiter can start one.
        let _ = runtime::spawn(listen(store.clone(), listener, closing.clone()));
    }
}

/// Wakes the waiters and the followers of the keys that the store reports. Ends when the client closes, or has had no
/// waiter and no follower for [`LINGER`].
///
/// The listener ends only between two items of the stream, or after [`SILENCE`]. If a stream that still has items were
/// dropped while it waits for one, a request would be cut off that the server may still answer.
async fn listen(store: Arc<dyn Store>, listener: Listener, closing: CancellationToken) {
    let queues = &*listener.0;
    let mut failures = 0;
    let mut idle_since = None;
    let mut note_whether_over =
        |queues: &WaitQueues| closing.is_cancelled() || note_idle(queues, &mut idle_since);
    while !note_whether_over(queues) {
        let asked = store.clone();
        let opened = Instant::now();
        let error =
            match runtime::call("wake-ups", SILENCE, async move { asked.freed().await }).await {
                Ok(Some(mut keys)) => {
                    queues.set_listener(ListenerState::Telling);
                    telemetry::listener_opened(KeyStream::Freed);
                    let error = loop {
                        match timeout(SILENCE, keys.next()).await {
                            Ok(Some(Ok(keys))) => keys.iter().for_each(|freed| queues.freed(freed)),
                            Ok(Some(Err(error))) => {
                                telemetry::store_failed("wake-ups", None, &error);
                                break Some(error);
                            }
                            Ok(None) | Err(_) => break None,
                        }
                        if note_whether_over(queues) {
                            return;
                        }
                    };
                    queues.set_listener(ListenerState::Silent);
                    error
                }
                Ok(None) => {
                    telemetry::listener_unsupported();
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
            telemetry::listener_failed(KeyStream::Freed, &error);
        }
        tokio::select! {
            () = sleep(pause) => {}
            () = closing.cancelled() => return,
        }
        failures = failures.saturating_add(1);
    }
}

/// Notes in `since` when a call first found no waiter and no follower. Returns whether that is [`LINGER`] ago.
fn note_idle(queues: &WaitQueues, since: &mut Option<Instant>) -> bool {
    if !queues.is_idle() {
        *since = None;
        return false;
    }
    since.get_or_insert_with(Instant::now).elapsed() >= LINGER
}
