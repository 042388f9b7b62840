//! Hears from the store which keys become free, while somebody waits.

use std::{sync::Arc, time::Duration};

use futures::StreamExt;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::{Store, backoff, keeper, wait::WaitingRoom};

/// How long it goes on listening when nobody waits any more, because somebody may wait again soon.
const LINGER: Duration = Duration::from_secs(30);
/// A store that has nothing to tell says so every few seconds. One that is silent for this long has
/// lost its connection, and nothing else may notice.
const SILENCE: Duration = Duration::from_secs(30);

/// Passes on what the store tells, until nobody has waited for a while.
///
/// It stops between two looks, and cuts no request that may still be answered.
pub(crate) async fn listen(
    store: Arc<dyn Store>,
    room: Arc<WaitingRoom>,
    closing: CancellationToken,
) {
    let ear = Ear(room);
    let mut failures = 0;
    let mut idle_since = None;
    while !closing.is_cancelled() && !idles(&ear.0, &mut idle_since) {
        let asked = store.clone();
        match keeper::call("wake-ups", SILENCE, async move { asked.freed().await }).await {
            Ok(Some(mut keys)) => {
                failures = 0;
                // What was released before this nobody will tell.
                ear.0.hears(true);
                while let Ok(Some(Ok(keys))) = timeout(SILENCE, keys.next()).await {
                    keys.iter().for_each(|key| ear.0.freed(key));
                    if closing.is_cancelled() || idles(&ear.0, &mut idle_since) {
                        return;
                    }
                }
                ear.0.hears(false);
            }
            Ok(None) => return ear.0.is_deaf(),
            Err(error) if !error.is_retryable() => {
                tracing::warn!(%error, "no wake-ups from the store; waiters ask from time to time");
                return ear.0.is_deaf();
            }
            Err(error) => tracing::debug!(%error, "wake-ups from the store are interrupted"),
        }
        sleep(backoff::pause(
            failures,
            backoff::BACKGROUND,
            fastrand::f64(),
        ))
        .await;
        failures = failures.saturating_add(1);
    }
}

/// Whether nobody has waited for a while.
fn idles(room: &WaitingRoom, since: &mut Option<Instant>) -> bool {
    if !room.is_empty() {
        *since = None;
        return false;
    }
    since.get_or_insert_with(Instant::now).elapsed() >= LINGER
}

/// However the task ends, by a panic or with its runtime, the next who waits starts another.
struct Ear(Arc<WaitingRoom>);

impl Drop for Ear {
    fn drop(&mut self) {
        self.0.stops_listening();
    }
}
