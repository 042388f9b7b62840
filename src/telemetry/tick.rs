//! Telemetry of jobs that run once per tick.

use tracing::{debug, info, warn};

use super::{metrics, words::TARGET};
use crate::model::{Done, Key, Tick};

/// Reports that the work of a tick has ended. Without a `failure` the tick is done. Otherwise `failure` says why it is
/// not done.
pub(crate) fn tick_ran(key: &Key, tick: Tick, failure: Option<&'static str>) {
    let key = key.as_str();
    match failure {
        None => debug!(target: TARGET, key, %tick, outcome = "ran", "a tick is done"),
        Some(outcome) => warn!(target: TARGET, key, %tick, outcome, "a tick is not done"),
    }
    count_tick(failure.unwrap_or("ran"));
}

/// Reports that the work of a tick did not run, because this tick was done before.
pub(crate) fn tick_done(key: &Key, tick: Tick, done: &Done) {
    debug!(target: TARGET, key = key.as_str(), %tick, outcome = "done", %done, "a tick was done before");
    count_tick("done");
}

/// Reports that the work of a tick did not run, because a later tick was done before. Perhaps the work never ran.
pub(crate) fn tick_superseded(key: &Key, tick: Tick, done: &Done) {
    info!(
        target: TARGET, key = key.as_str(), %tick, outcome = "superseded", %done,
        "a tick is left out, because a later one is done"
    );
    count_tick("superseded");
}

/// Reports that the work of a tick did not run, because the key is held.
pub(crate) fn tick_running(key: &Key, tick: Tick) {
    debug!(target: TARGET, key = key.as_str(), %tick, outcome = "running", "a tick is running");
    count_tick("running");
}

fn count_tick(outcome: &'static str) {
    metrics::count(metrics::TICKS, &[("outcome", outcome)], 1);
}
