//! The metrics. Each label has a small set of values. Keys and owners are not labels, because each would make a time
//! series of its own, and their number has no bound.

use std::time::Duration;

use metrics::{
    IntoF64, Key, Label, Level, Metadata, Recorder, Unit, describe_counter, describe_gauge,
    describe_histogram, with_recorder,
};

use super::words::{Outcome, StayEndReason, TARGET};
use crate::model::Mode;

const ACQUIRES: &str = "leasehold_acquires_total";
const ACQUIRE_WAIT: &str = "leasehold_acquire_wait_seconds";
const WAITING_TASKS: &str = "leasehold_waiting_tasks";
const PLACES_TAKEN: &str = "leasehold_places_taken_total";
const NO_PLACE: &str = "leasehold_no_place_total";
const PLACES_AHEAD: &str = "leasehold_places_ahead";
const TURN_WAIT: &str = "leasehold_turn_wait_seconds";
const PLACES_PASSED: &str = "leasehold_places_passed_total";
const PLACES_GIVEN_UP: &str = "leasehold_places_given_up_total";
const HELD: &str = "leasehold_leases_held";
const HOLD_TIME: &str = "leasehold_lease_hold_seconds";
const RENEWALS: &str = "leasehold_renewals_total";
const RENEWAL_LAG: &str = "leasehold_renewal_lag_seconds";
const RENEWAL_MARGIN: &str = "leasehold_renewal_margin_seconds";
const KEPT: &str = "leasehold_leases_kept";
const AT_RISK: &str = "leasehold_leases_at_risk";
const LOSSES: &str = "leasehold_losses_total";
const BACKGROUND_RELEASES: &str = "leasehold_background_releases_total";
const LIMITER_REQUESTS: &str = "leasehold_limiter_requests_total";
const LIMITER_WAIT: &str = "leasehold_limiter_wait_seconds";
const GRANTS_FROM_MEMORY: &str = "leasehold_grants_from_memory_total";
const STAYING: &str = "leasehold_leases_staying";
const STAYS_ENDED: &str = "leasehold_stays_ended_total";
const TICKS: &str = "leasehold_ticks_total";
const LEADING: &str = "leasehold_leading";
const TERMS: &str = "leasehold_terms_total";
const TERM_TIME: &str = "leasehold_term_seconds";
const STORE_ERRORS: &str = "leasehold_store_errors_total";

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
    let count = Unit::Count;
    describe_counter!(
        ACQUIRES,
        count,
        "Acquires that have ended, by outcome and mode"
    );
    describe_histogram!(
        ACQUIRE_WAIT,
        Unit::Seconds,
        "From the first poll of an acquire to its end, by outcome"
    );
    describe_gauge!(
        WAITING_TASKS,
        count,
        "Tasks that wait for a key that is held"
    );
    describe_counter!(
        PLACES_TAKEN,
        count,
        "Places taken among the processes that wait for a key"
    );
    describe_counter!(
        NO_PLACE,
        count,
        "Waits without a place, because all places of the key were taken"
    );
    describe_histogram!(
        PLACES_AHEAD,
        count,
        "How many processes were ahead of a place when it was taken"
    );
    describe_histogram!(
        TURN_WAIT,
        Unit::Seconds,
        "From the moment a place was taken to the grant that ended it"
    );
    describe_counter!(
        PLACES_PASSED,
        count,
        "Places of other processes for which a free key was kept, and that did not take it in time"
    );
    describe_counter!(
        PLACES_GIVEN_UP,
        count,
        "Requests to give up a place that nothing waits in any more, by outcome"
    );
    describe_gauge!(HELD, count, "Leases that have a guard in this process");
    describe_histogram!(
        HOLD_TIME,
        Unit::Seconds,
        "From a grant to the end of its guard"
    );
    describe_counter!(RENEWALS, count, "Renewals of single leases, by outcome");
    describe_histogram!(
        RENEWAL_LAG,
        Unit::Seconds,
        "How much later than planned the background renewals were sent"
    );
    describe_histogram!(
        RENEWAL_MARGIN,
        Unit::Seconds,
        "How much of the lease was left when its renewal was confirmed"
    );
    describe_gauge!(KEPT, count, "Leases that are kept alive in the background");
    describe_gauge!(
        AT_RISK,
        count,
        "Leases that are kept alive and have less than a third of their ttl left"
    );
    describe_counter!(
        LOSSES,
        count,
        "Leases that were lost while their guard lived, by reason"
    );
    describe_counter!(
        GRANTS_FROM_MEMORY,
        count,
        "Grants of keys whose lease stays with this process"
    );
    describe_gauge!(STAYING, count, "Leases that stay with this process");
    describe_counter!(
        STAYS_ENDED,
        count,
        "Leases that do not stay with this process any more, by reason"
    );
    describe_counter!(
        BACKGROUND_RELEASES,
        count,
        "Releases that nobody waited for, by outcome"
    );
    describe_counter!(
        LIMITER_REQUESTS,
        count,
        "Requests of callers for permits of a limiter, by outcome"
    );
    describe_histogram!(
        LIMITER_WAIT,
        Unit::Seconds,
        "From the first poll of a request for permits to its end, by outcome"
    );
    describe_gauge!(LEADING, count, "Terms in which this process leads");
    describe_counter!(TERMS, count, "Terms that have ended, by outcome");
    describe_histogram!(
        TERM_TIME,
        Unit::Seconds,
        "From the begin of a term to its end, by outcome"
    );
    describe_counter!(
        TICKS,
        count,
        "Jobs that were to run once a tick, by what became of them"
    );
    describe_counter!(
        STORE_ERRORS,
        count,
        "Calls to the store that failed or were not answered in time, by operation"
    );
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
