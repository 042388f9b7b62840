//! The metrics. Each label has a small set of values. Keys and owners are not labels, because each would make a time
//! series of its own, and their number has no bound.

use std::time::Duration;

use metrics::{
    IntoF64, Key, Label, Level, Metadata, Recorder, Unit, describe_counter, describe_gauge,
    describe_histogram, with_recorder,
};

use super::words::{Outcome, StayEndReason, TARGET};
use crate::model::Mode;

/// Declares the names of the metrics, and the function that describes them: the kind and the unit, and a text.
macro_rules! declare {
    ($($name:ident = $text:literal, $describe:ident in $unit:ident, $about:literal;)*) => {
        $(const $name: &str = $text;)*

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
        pub fn describe_metrics() {
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

/// A static key of a metric with constant labels, so that its use allocates nothing and hashes nothing.
macro_rules! key {
    ($name:expr $(, $label:literal => $value:expr)*) => {{
        static LABELS: &[Label] = &[$(Label::from_static_parts($label, $value)),*];
        static KEY: Key = Key::from_static_parts($name, LABELS);
        &KEY
    }};
}

/// Like `key!`, with the outcome as the first label.
macro_rules! key_by {
    (@ $outcome:expr, [$($word:ident)*], $rest:tt) => {
        match $outcome {
            $(Outcome::$word => key_by!(# Outcome::$word, $rest)),*
        }
    };
    (# $word:expr, ($name:expr $(, $label:literal => $value:expr)*)) => {
        key!($name, "outcome" => $word.as_str() $(, $label => $value)*)
    };
    ($outcome:expr, $($rest:tt)*) => {
        key_by!(
            @ $outcome,
            [Granted Held TimedOut Full Closed Cancelled Released NotHeld Renewed Done
             Superseded Lost Error],
            ($($rest)*)
        )
    };
}

static METADATA: Metadata<'static> = Metadata::new(TARGET, Level::INFO, Some(module_path!()));

fn count(recorder: &dyn Recorder, key: &Key) {
    recorder.register_counter(key, &METADATA).increment(1);
}

fn record(recorder: &dyn Recorder, key: &Key, sample: impl IntoF64) {
    recorder.register_histogram(key, &METADATA).record(sample);
}

fn add(recorder: &dyn Recorder, key: &Key, number: f64) {
    recorder.register_gauge(key, &METADATA).increment(number);
}

pub(super) fn acquire_ended(outcome: Outcome, mode: Mode, waited: Duration) {
    with_recorder(|recorder| {
        let acquires = match mode {
            Mode::Exclusive => key_by!(outcome, ACQUIRES, "mode" => Mode::Exclusive.as_str()),
            Mode::Shared => key_by!(outcome, ACQUIRES, "mode" => Mode::Shared.as_str()),
            Mode::Permits => key_by!(outcome, ACQUIRES, "mode" => Mode::Permits.as_str()),
        };
        count(recorder, acquires);
        record(recorder, key_by!(outcome, ACQUIRE_WAIT), waited);
    });
}

pub(super) fn waiter_added() {
    with_recorder(|recorder| add(recorder, key!(WAITING_TASKS), 1.0));
}

pub(super) fn waiter_removed() {
    with_recorder(|recorder| add(recorder, key!(WAITING_TASKS), -1.0));
}

pub(super) fn place_taken(ahead: usize) {
    with_recorder(|recorder| {
        count(recorder, key!(PLACES_TAKEN));
        record(recorder, key!(PLACES_AHEAD), ahead as f64);
    });
}

pub(super) fn turn_came(waited: Duration) {
    with_recorder(|recorder| record(recorder, key!(TURN_WAIT), waited));
}

pub(super) fn no_place() {
    with_recorder(|recorder| count(recorder, key!(NO_PLACE)));
}

pub(super) fn places_passed(places: usize) {
    with_recorder(|recorder| {
        let passed = recorder.register_counter(key!(PLACES_PASSED), &METADATA);
        passed.increment(u64::try_from(places).unwrap_or(u64::MAX));
    });
}

pub(super) fn place_given_up(outcome: Outcome) {
    with_recorder(|recorder| count(recorder, key_by!(outcome, PLACES_GIVEN_UP)));
}

pub(super) fn granted_from_memory() {
    with_recorder(|recorder| count(recorder, key!(GRANTS_FROM_MEMORY)));
}

pub(super) fn stay_begun() {
    with_recorder(|recorder| add(recorder, key!(STAYING), 1.0));
}

pub(super) fn stay_ended(why: StayEndReason) {
    macro_rules! by {
        ($($reason:ident)*) => {
            match why {
                $(StayEndReason::$reason => key!(STAYS_ENDED, "reason" => StayEndReason::$reason.as_str())),*
            }
        };
    }
    with_recorder(|recorder| {
        add(recorder, key!(STAYING), -1.0);
        let key = by!(WaitedFor NotUsed DocumentNeeded NotTold TooMany Detached SetRefused Evicted Closed);
        count(recorder, key);
    });
}

pub(super) fn guard_created() {
    with_recorder(|recorder| add(recorder, key!(HELD), 1.0));
}

pub(super) fn guard_ended(held: Duration) {
    with_recorder(|recorder| {
        add(recorder, key!(HELD), -1.0);
        record(recorder, key!(HOLD_TIME), held);
    });
}

pub(super) fn renewed(left: Duration) {
    with_recorder(|recorder| {
        count(recorder, key_by!(Outcome::Renewed, RENEWALS));
        record(recorder, key!(RENEWAL_MARGIN), left);
    });
}

pub(super) fn renewal_failed(outcome: Outcome) {
    with_recorder(|recorder| count(recorder, key_by!(outcome, RENEWALS)));
}

pub(super) fn renewals_sent(lag: Duration) {
    with_recorder(|recorder| record(recorder, key!(RENEWAL_LAG), lag));
}

pub(super) fn kept(more: f64, more_at_risk: f64) {
    with_recorder(|recorder| {
        add(recorder, key!(KEPT), more);
        add(recorder, key!(AT_RISK), more_at_risk);
    });
}

pub(super) fn lost(reason: &'static str) {
    // A loss is rare, so the cost of a new label for each does not matter.
    metrics::counter!(LOSSES, "reason" => reason).increment(1);
}

pub(super) fn released(outcome: Outcome) {
    with_recorder(|recorder| count(recorder, key_by!(outcome, BACKGROUND_RELEASES)));
}

pub(super) fn permit_request_ended(outcome: Outcome, waited: Duration) {
    with_recorder(|recorder| {
        count(recorder, key_by!(outcome, LIMITER_REQUESTS));
        record(recorder, key_by!(outcome, LIMITER_WAIT), waited);
    });
}

pub(super) fn tick(outcome: &'static str) {
    // A tick is rare, so the cost of a new label for each does not matter.
    metrics::counter!(TICKS, "outcome" => outcome).increment(1);
}

pub(super) fn term_began() {
    with_recorder(|recorder| add(recorder, key!(LEADING), 1.0));
}

pub(super) fn term_ended(outcome: &'static str, lasted: Duration) {
    with_recorder(|recorder| add(recorder, key!(LEADING), -1.0));
    // The end of a term is rare, so the cost of a new label for each does not matter.
    metrics::counter!(TERMS, "outcome" => outcome).increment(1);
    metrics::histogram!(TERM_TIME, "outcome" => outcome).record(lasted);
}

pub(super) fn store_failed(operation: &'static str) {
    // An error is rare, so the cost of a new label for each does not matter.
    metrics::counter!(STORE_ERRORS, "operation" => operation).increment(1);
}
