//! Telemetry of jobs that run once per tick.

use tracing::{debug, info, warn};

#[cfg(feature = "metrics")]
use super::metrics;
use super::words::TARGET;
use crate::model::{Done, Key, Tick};

/// Reports that the work of a tick has ended. Without a `failure` the tick is done. Otherwise `failure` says why it is
/// not done.
pub(crate) fn tick_ran(key: &Key, tick: Tick, failure: Option<&'static str>) {
    let key = key.as_str();
    match failure {
        None => debug!(target: TARGET, key, %tick, outcome = "ran", "a tick is done"),
        Some(outcome) => warn!(target: TARGET, key, %tick, outcome, "a tick is not done"),
    }
    #[cfg(feature = "metrics")]
    metrics::tick(failure.unwrap_or("ran"));
}

/// Reports that the work of a tick did not run, because this tick was done before.
pub(crate) fn tick_done(key: &Key, tick: Tick, done: &Done) {
    debug!(target: TARGET, key = key.as_str(), %tick, outcome = "done", %done, "a tick was done before");
    #[cfg(feature = "metrics")]
    metrics::tick("done");
}

/// Reports that the work of a tick did not run, because a later tick was done before. Perhaps the work never ran.
pub(crate) fn tick_superseded(key: &Key, tick: Tick, done: &Done) {
    info!(
        target: TARGET, key = key.as_str(), %tick, outcome = "superseded", %done,
        "a tick is left out, because a later one is done"
    );
    #[cfg(feature = "metrics")]
    metrics::tick("superseded");
}

/// Reports that the work of a tick did not run, because the key is held.
pub(crate) fn tick_running(key: &Key, tick: Tick) {
    debug!(target: TARGET, key = key.as_str(), %tick, outcome = "running", "a tick is running");
    #[cfg(feature = "metrics")]
    metrics::tick("running");
}
