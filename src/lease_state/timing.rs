//! The times of renewals as parts of the ttl: when a lease is renewed, when a renewal without an answer is sent again,
//! and from when on a lease is at risk.

use std::time::Duration;

/// How long after its grant or its last renewal a lease is renewed.
pub(crate) fn renewal_period(ttl: Duration) -> Duration {
    ttl / 3
}

/// How much of the ttl is left when a renewal is due.
pub(crate) fn left_when_due(ttl: Duration) -> Duration {
    ttl - renewal_period(ttl)
}

/// A lease that has less than this left, and was to be renewed before, is at risk.
pub(crate) fn risk_margin(ttl: Duration) -> Duration {
    ttl / 3
}

/// How long the answer to a renewal may take before the renewal is sent again.
pub(crate) fn response_timeout(ttl: Duration) -> Duration {
    ttl / 6
}

/// The longest pause after a renewal that failed, when this much is left until the lease is lost. The last tries come
/// faster, so that the lease outlives an outage that ends shortly before.
pub(crate) fn max_retry_pause(ttl: Duration, left: Duration) -> Duration {
    (ttl / 6).min((left / 3).max(ttl / 60))
}

/// How much earlier than due a lease may be renewed in a batch with others.
pub(crate) fn max_advance(ttl: Duration) -> Duration {
    ttl / 6
}

/// An answer within this is fast enough, and a renewal that is due may wait for it before it is late.
pub(crate) fn slack(ttl: Duration) -> Duration {
    ttl / 12
}
