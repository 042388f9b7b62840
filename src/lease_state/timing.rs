//! After which parts of its ttl a lease is renewed, and a renewal without an answer sent again.

use std::time::Duration;

/// A lease is renewed when the ttl divided by this has passed.
pub(crate) const PERIOD: u32 = 3;
/// The ttl divided by this is how long an answer may take before the renewal is sent again, how long the pause after a
/// failed renewal is at most, and how much earlier than due a lease is renewed in a batch with others.
pub(crate) const STEP: u32 = 6;

/// How much of the ttl is left when a renewal is due.
pub(crate) fn after_renewal(ttl: Duration) -> Duration {
    ttl - ttl / PERIOD
}

/// How long the answer to a renewal is waited for before it is sent again.
pub(crate) fn response_timeout(ttl: Duration) -> Duration {
    ttl / STEP
}
