//! The times of renewals as parts of the ttl: when a lease is renewed, and when a renewal without an answer is sent
//! again.

use std::time::Duration;

/// A lease is renewed when the ttl divided by this has passed.
pub(crate) const PERIOD: u32 = 3;
/// The ttl divided by this is used for three times: how long an answer may take before the renewal is sent again, the
/// longest pause after a failed renewal, and how much earlier than due a lease may be renewed in a batch with others.
pub(crate) const STEP: u32 = 6;

/// How much of the ttl is left when a renewal is due.
pub(crate) fn left_when_due(ttl: Duration) -> Duration {
    ttl - ttl / PERIOD
}

/// How long the answer to a renewal may take before the renewal is sent again.
pub(crate) fn response_timeout(ttl: Duration) -> Duration {
    ttl / STEP
}
