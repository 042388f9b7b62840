//! Hears from the store which keys become free, while somebody waits.

use std::{sync::Arc, time::Duration};

use futures::StreamExt;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::{retry, runtime, store::Store, telemetry, wait::Ear};

/// How long it goes on listening when nobody waits any more, because somebody may wait again soon.
const LINGER: Duration = Duration::from_secs(30);
/// A store that has nothing to tell says so every few seconds. One that is silent for this long has
/// lost its connection, and nothing else may notice.
const SILENCE: Duration = Duration::from_secs(30);

/// How long a stream has to live until it counts as one that works.
const LASTING: Duration = Duration::from_secs(10);
/// How long until it is tried again where it was refused: somebody may mend that.
const REFUSED: Duration = Duration::from_secs(60);

/// Passes on what the store tells, until nobody has waited for a while.
///
/// It stops between two looks, and cuts no request that may still be answered.
pub(crate) async fn listen(store: Arc<dyn Store>, ear: Ear, closing: CancellationToken) {
    let mut failures = 0;
    let mut idle_since = None;
    let mut over = |ear: &Ear| closing.is_cancelled() || idles(ear, &mut idle_since);
    while !over(&ear) {
        let asked = store.clone();
        let opened = Instant::now();
        let error =
            match runtime::call("wake-ups", SILENCE, async move { asked.freed().await }).await {
                Ok(Some(mut keys)) => {
                    // What was released before this nobody will tell.
                    ear.hears(true);
                    telemetry::hears();
                    let error = loop {
                        match timeout(SILENCE, keys.next()).await {
                            Ok(Some(Ok(keys))) => keys.iter().for_each(|key| ear.room().freed(key)),
                            Ok(Some(Err(error))) => {
                                telemetry::store_failed("wake-ups", None, &error);
                                break Some(error);
                            }
                            Ok(None) | Err(_) => break None,
                        }
                        if over(&ear) {
                            return;
                        }
                    };
                    ear.hears(false);
                    error
                }
                Ok(None) => {
                    telemetry::deaf();
                    return ear.is_deaf();
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
        sleep(pause).await;
        failures = failures.saturating_add(1);
    }
}

/// Whether nobody has waited for a while.
fn idles(ear: &Ear, since: &mut Option<Instant>) -> bool {
    if !ear.room().is_empty() {
        *since = None;
        return false;
    }
    since.get_or_insert_with(Instant::now).elapsed() >= LINGER
}
