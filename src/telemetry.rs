//! Spans and events of `tracing`, and metrics.
//!
//! One function for each thing that happens, which makes the event and the metric of it; the rest of the
//! crate only calls these. `docs/observability.md` lists what there is.
//!
//! An event names its key and its lease by itself, because it may come from a task that goes on when the
//! span of its caller is over. None is made under a lock: the subscriber is code of the application.
//! Errors are shown by their `Display`, which leaves out what a driver says, and with it any password.

/// A span of an operation, at level DEBUG.
///
/// Where no subscriber wants that level there is none at all: one that is only disabled still has work to do where
/// another crate has switched on that `tracing` tells `log`.
macro_rules! span {
    ($($fields:tt)*) => {
        if tracing::level_filters::LevelFilter::current() >= tracing::Level::DEBUG {
tracing::debug_span!(target: TARGET, $($fields)*)
} else {
tracing::Span::none()
}
    };
}

mod acquire;
mod lease;
mod limiter;
#[cfg(feature = "metrics")]
mod metrics;
mod store;
mod words;

#[cfg(feature = "metrics")]
pub use self::metrics::describe_metrics;
pub(crate) use self::{
    acquire::{AcquireFields, AcquireSpan, Waiting, acquire_all, acquired_all, slowed_down},
    lease::{
        KeptLeases, LeaseFields, ReleaseFields, ResumeEnd, at_risk, convert, converted, detached,
        given_up, granted, kept, lost, release, release_failed, released, renew, renewal_failed,
        renewals_late, renewals_sent, renewed, resume, resumed,
    },
    limiter::PermitSpan,
    store::{
        call, called, close, deaf, evicted, hears, purged, released_owner, removed, store_failed,
        unheard,
    },
    words::Outcome,
};
