//! The metrics. Each label has a small set of values. Keys and owners are not labels, because each would make a time
//! series of its own, and their number has no bound. Without the feature `metrics`, the functions of this module do
//! nothing with their arguments.

#![cfg_attr(not(feature = "metrics"), allow(unused_variables))]

#[cfg(feature = "metrics")]
use super::words::TARGET;

/// Declares the names of the metrics, and the function that describes them: the kind and the unit, and a text.
macro_rules! declare {
    ($($name:ident = $text:literal, $describe:ident in $unit:ident, $about:literal;)*) => {
        $(pub(super) const $name: &str = $text;)*

        /// Registers the description and the unit of each metric of this crate with the recorder of the crate `metrics`. Needs
        /// the feature `metrics`.
        ///
        /// Call this once, after the recorder is installed. An exporter shows the descriptions as help texts. Without this call
        /// the metrics are recorded all the same. `docs/observability.md` lists them.
        ///
        /// ```
        /// // Install the recorder of an exporter first.
        /// leasehold::describe_metrics();
        /// ```
        #[cfg(feature = "metrics")]
        pub fn describe_metrics() {
            use metrics::{Unit, describe_counter, describe_gauge, describe_histogram};

            $($describe!($name, Unit::$unit, $about);)*
        }
    };
}

declare! {
    ACQUIRES = "leasehold_acquires_total", describe_counter in Count,
        "Acquires that have ended, by outcome and mode";
    ACQUIRE_WAIT = "leasehold_acquire_wait_seconds", describe_histogram in Seconds,
        "From the first poll of an acquire to its end, by outcome";
    WAITING_TASKS = "leasehold_waiting_tasks", describe_gauge in Count,
        "Tasks that wait for a key that is held";
    PLACES_TAKEN = "leasehold_places_taken_total", describe_counter in Count,
        "Places taken among the processes that wait for a key";
    NO_PLACE = "leasehold_no_place_total", describe_counter in Count,
        "Waits without a place, because all places of the key were taken";
    PLACES_AHEAD = "leasehold_places_ahead", describe_histogram in Count,
        "How many processes were ahead of a place when it was taken";
    TURN_WAIT = "leasehold_turn_wait_seconds", describe_histogram in Seconds,
        "From the moment a place was taken to the grant that ended it";
    PLACES_PASSED = "leasehold_places_passed_total", describe_counter in Count,
        "Places of other processes for which a free key was kept, and that did not take it in time";
    PLACES_GIVEN_UP = "leasehold_places_given_up_total", describe_counter in Count,
        "Requests to give up a place that nothing waits in any more, by outcome";
    HELD = "leasehold_leases_held", describe_gauge in Count,
        "Leases that have a guard in this process";
    HOLD_TIME = "leasehold_lease_hold_seconds", describe_histogram in Seconds,
        "From a grant to the end of its guard";
    RENEWALS = "leasehold_renewals_total", describe_counter in Count,
        "Renewals of single leases, by outcome";
    RENEWAL_LAG = "leasehold_renewal_lag_seconds", describe_histogram in Seconds,
        "How much later than planned the background renewals were sent";
    RENEWAL_MARGIN = "leasehold_renewal_margin_seconds", describe_histogram in Seconds,
        "How much of the lease was left when its renewal was confirmed";
    KEPT = "leasehold_leases_kept", describe_gauge in Count,
        "Leases that are kept alive in the background";
    AT_RISK = "leasehold_leases_at_risk", describe_gauge in Count,
        "Leases that are kept alive and have less than a third of their ttl left";
    LOSSES = "leasehold_losses_total", describe_counter in Count,
        "Leases that were lost while their guard lived, by reason";
    GRANTS_FROM_MEMORY = "leasehold_grants_from_memory_total", describe_counter in Count,
        "Grants of keys whose lease stays with this process";
    STAYING = "leasehold_leases_staying", describe_gauge in Count,
        "Leases that stay with this process";
    STAYS_ENDED = "leasehold_stays_ended_total", describe_counter in Count,
        "Leases that do not stay with this process any more, by reason";
    BACKGROUND_RELEASES = "leasehold_background_releases_total", describe_counter in Count,
        "Releases that nobody waited for, by outcome";
    LIMITER_REQUESTS = "leasehold_limiter_requests_total", describe_counter in Count,
        "Requests of callers for permits of a limiter, by outcome";
    LIMITER_WAIT = "leasehold_limiter_wait_seconds", describe_histogram in Seconds,
        "From the first poll of a request for permits to its end, by outcome";
    LEADING = "leasehold_leading", describe_gauge in Count,
        "Terms in which this process leads";
    TERMS = "leasehold_terms_total", describe_counter in Count,
        "Terms that have ended, by outcome";
    TERM_TIME = "leasehold_term_seconds", describe_histogram in Seconds,
        "From the begin of a term to its end, by outcome";
    TICKS = "leasehold_ticks_total", describe_counter in Count,
        "Jobs that were to run once a tick, by what became of them";
    STORE_ERRORS = "leasehold_store_errors_total", describe_counter in Count,
        "Calls to the store that failed or were not answered in time, by operation";
}

/// A label of a metric, and its value.
type Label = (&'static str, &'static str);

/// Adds to a counter.
pub(super) fn count(name: &'static str, labels: &[Label], number: u64) {
    #[cfg(feature = "metrics")]
    metrics::counter!(target: TARGET, name, labels).increment(number);
}

/// Adds a sample to a histogram.
pub(super) fn record(name: &'static str, labels: &[Label], sample: f64) {
    #[cfg(feature = "metrics")]
    metrics::histogram!(target: TARGET, name, labels).record(sample);
}

/// Adds to a gauge, or takes away from it.
pub(super) fn add(name: &'static str, number: f64) {
    #[cfg(feature = "metrics")]
    metrics::gauge!(target: TARGET, name).increment(number);
}
