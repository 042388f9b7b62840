//! Spans and events of `tracing`, and metrics.
//!
//! The client calls one function of this module for each thing that happens. The function makes the event and the
//! metric. The stores use this module only through `runtime::call`; `store/listing.rs` makes an event by itself.
//! `docs/observability.md` lists all events and metrics.
//!
//! Invariants:
//!
//! - An event about a lease contains the key and the lease id, because it may come from a task that outlives the span
//!   of its caller.
//! - No event is made under a lock, because the subscriber is code of the application.
//! - Errors are written with `Display`, which omits the message of the driver, because that may contain a password.

/// A span of an operation, at level DEBUG.
///
/// If no subscriber wants that level, this makes no span at all. Even a disabled span costs time if another crate has
/// enabled the feature of `tracing` that passes spans to the `log` crate.
macro_rules! span {
    ($($fields:tt)*) => {
        if tracing::level_filters::LevelFilter::current() >= tracing::Level::DEBUG {
            tracing::debug_span!(target: TARGET, $($fields)*)
        } else {
            tracing::Span::none()
        }
    };
}

use std::{
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    thread,
};

mod acquire;
mod leader;
mod lease;
mod limiter;
mod metrics;
mod place;
mod store;
mod tick;
mod words;

#[cfg(feature = "metrics")]
pub use self::metrics::describe_metrics;
pub(crate) use self::{
    acquire::{AcquireSpan, Waiting, acquire_all, acquired_all, slowed_down},
    leader::{TermSpan, campaign_failed, leader_changed, leader_unknown},
    lease::{
        KeptLeases, LeaseFields, ReleaseFields, ResumeEnd, at_risk, convert, converted, detached,
        given_up, granted_from_memory, guard_created, kept, lost, release, release_failed,
        released, renew, renewal_failed, renewals_late, renewals_sent, renewed, resume, resumed,
        stay_ended, stays,
    },
    limiter::PermitSpan,
    place::{no_place, place_given_up, place_taken, places_passed, turn_came},
    store::{
        KeyStream, call, called, close, evicted, listener_failed, listener_opened,
        listener_unsupported, purged, released_owner, removed, store_failed,
    },
    tick::{tick_done, tick_ran, tick_running, tick_superseded},
    words::StayEndReason,
};

/// Does work that makes events. If a panic is under way already, as in the drop of a guard by another panic, the
/// subscriber of the application must not end the process by a second one.
pub(crate) fn harmless_in_a_panic(work: impl FnOnce()) {
    if thread::panicking() {
        let _ = catch_unwind(AssertUnwindSafe(work));
    } else {
        work();
    }
}

/// Does work that makes events, for each of these. A panic of the subscriber in one keeps none of the others from it, and
/// goes on after them, unless another one is under way.
pub(crate) fn for_each<T>(items: impl IntoIterator<Item = T>, mut work: impl FnMut(T)) {
    let mut first = None;
    for item in items {
        let end = catch_unwind(AssertUnwindSafe(|| work(item)));
        first = first.or(end.err());
    }
    if let Some(panic) = first
        && !thread::panicking()
    {
        resume_unwind(panic);
    }
}
