//! Telemetry of the place of this process among the processes that wait for a key in turn.

use std::time::Duration;

use tracing::{debug, field, warn};

use super::{metrics, words::TARGET};
use crate::model::{Error, Key};

/// Reports that a refusal has taken a place, with `ahead` processes ahead.
pub(crate) fn place_taken(key: &Key, ahead: usize) {
    debug!(target: TARGET, key = key.as_str(), ahead, "took a place");
    metrics::count(metrics::PLACES_TAKEN, &[], 1);
    metrics::record(metrics::PLACES_AHEAD, &[], ahead as f64);
}

/// Reports that this process waits without a place, because all places of the key are taken.
pub(crate) fn no_place(key: &Key) {
    warn!(
        target: TARGET, key = key.as_str(),
        "has no place: all are taken, so it asks seldom and comes after all that have one",
    );
    metrics::count(metrics::NO_PLACE, &[], 1);
}

/// Reports that a grant has ended a place, which was taken with `ahead` processes ahead.
pub(crate) fn turn_came(key: &Key, ahead: usize, waited: Duration) {
    debug!(target: TARGET, key = key.as_str(), ahead, ?waited, "its turn came");
    metrics::record(metrics::TURN_WAIT, &[], waited.as_secs_f64());
}

/// Reports that a key was granted after `ahead` processes, for which the free key was kept for the time `waited`, did
/// not acquire it.
pub(crate) fn places_passed(key: &Key, ahead: usize, waited: Duration) {
    debug!(
        target: TARGET, key = key.as_str(), ahead, ?waited,
        "passed places: the key was free, and those ahead did not take it",
    );
    metrics::count(metrics::PLACES_PASSED, &[], ahead as u64);
}

/// Reports the answer to the request that gives up a place, or its error. After an error the place counts until it
/// expires.
pub(crate) fn place_given_up(key: &Key, error: Option<&Error>) {
    let outcome = error.map_or("released", |_| "error");
    debug!(
        target: TARGET, key = key.as_str(), outcome,
        error = error.map(field::display), "gave up its place",
    );
    metrics::count(metrics::PLACES_GIVEN_UP, &[("outcome", outcome)], 1);
}
