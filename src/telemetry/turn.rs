//! Telemetry of the place of this process among those that wait for a key in turn.

use std::time::Duration;

use tracing::{debug, field};

#[cfg(feature = "metrics")]
use super::metrics;
use super::words::{Outcome, TARGET};
use crate::model::{Error, Key};

/// Reports that a refusal has taken a place, behind those of so many processes.
pub(crate) fn place_taken(key: &Key, ahead: usize) {
    debug!(target: TARGET, key = key.as_str(), ahead, "took a place");
    #[cfg(feature = "metrics")]
    metrics::place_taken(ahead);
}

/// Reports that a grant has ended a place, which was taken behind those of so many processes.
pub(crate) fn turn_came(key: &Key, ahead: usize, waited: Duration) {
    debug!(target: TARGET, key = key.as_str(), ahead, ?waited, "its turn came");
    #[cfg(feature = "metrics")]
    metrics::turn_came(waited);
}

/// Reports that a key was granted after it was free for so long, and kept for so many processes ahead, which did not take
/// it in their time.
pub(crate) fn places_passed(key: &Key, ahead: usize, waited: Duration) {
    debug!(
        target: TARGET, key = key.as_str(), ahead, ?waited,
        "passed places: the key was free, and those ahead did not take it",
    );
    #[cfg(feature = "metrics")]
    metrics::places_passed(ahead);
}

/// Reports the answer to the request that gives up a place, or its error. After an error the place counts until its time
/// is over.
pub(crate) fn place_given_up(key: &Key, error: Option<&Error>) {
    let outcome = error.map_or(Outcome::Released, |_| Outcome::Error);
    debug!(
        target: TARGET, key = key.as_str(), outcome = outcome.as_str(),
        error = error.map(field::display), "gave up its place",
    );
    #[cfg(feature = "metrics")]
    metrics::place_given_up(outcome);
}
