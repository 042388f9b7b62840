//! What an application can see of its leases: spans and events of `tracing`, and metrics.
//!
//! One function for each thing that happens, which makes the event and the metric of it; the rest of the
//! crate only calls these. `docs/observability.md` lists what there is.
//!
//! An event names its key and its lease by itself, because it may come from a task that goes on when the
//! span of its caller is over. None is made under a lock: those who listen are code of the application.
//! Errors are shown by their `Display`, which leaves out what a driver says, and with it any password.

/// A span of an operation, at level DEBUG.
///
/// Where nobody wants that level there is none at all: one that is only disabled still has work to do where
/// another crate has switched on that `tracing` tells `log`.
macro_rules! span {
    ($($fields:tt)*) => {
        match tracing::level_filters::LevelFilter::current() >= tracing::Level::DEBUG {
            true => tracing::debug_span!(target: TARGET, $($fields)*),
            false => tracing::Span::none(),
        }
    };
}

mod acquire;
mod lease;
mod limiter;
#[cfg(feature = "metrics")]
mod metrics;
mod store;

#[cfg(feature = "metrics")]
pub use self::metrics::describe_metrics;
pub(crate) use self::{
    acquire::{Asked, Waiting, acquire_all, acquired_all, slowed_down},
    lease::{
        at_risk, convert, converted, ended, granted, kept, lost, release, release_failed, released,
        renew, renewal_failed, renewals_late, renewals_sent, renewed, resume, resumed,
    },
    limiter::AskedPermits,
    store::{
        call, called, close, deaf, evicted, hears, purged, released_owner, removed, store_failed,
        unheard,
    },
};

use crate::{messages::ReleaseAnswer, model::Error};

/// What everything is filtered by: `leasehold=debug`.
const TARGET: &str = "leasehold";

/// How something ended: the words of the field, and of the label, `outcome`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Granted,
    Held,
    TimedOut,
    /// A limiter has no permits now.
    Full,
    Closed,
    /// The future was dropped.
    Cancelled,
    Released,
    /// Another task of the process has the key now.
    HandedOver,
    NotHeld,
    Renewed,
    Lost,
    Error,
}

impl Outcome {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Granted => "granted",
            Self::Held => "held",
            Self::TimedOut => "timed_out",
            Self::Full => "full",
            Self::Closed => "closed",
            Self::Cancelled => "cancelled",
            Self::Released => "released",
            Self::HandedOver => "handed_over",
            Self::NotHeld => "not_held",
            Self::Renewed => "renewed",
            Self::Lost => "lost",
            Self::Error => "error",
        }
    }

    /// How a call ended that gave this error.
    fn of(error: &Error) -> Self {
        match error {
            Error::WaitTimedOut { .. } => Self::TimedOut,
            Error::LimitReached { .. } => Self::Full,
            Error::Closed => Self::Closed,
            Error::Lost { .. } => Self::Lost,
            _ => Self::Error,
        }
    }
}

impl From<ReleaseAnswer> for Outcome {
    fn from(answer: ReleaseAnswer) -> Self {
        match answer {
            ReleaseAnswer::Released => Self::Released,
            ReleaseAnswer::NotHeld => Self::NotHeld,
        }
    }
}
