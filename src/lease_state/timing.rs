//! After which parts of its ttl a lease is renewed, and a renewal sent again.

use std::time::Duration;

/// The part of the ttl after which a lease is renewed.
pub(crate) const PERIOD: u32 = 3;
/// The part of the ttl that an answer may take before the renewal is sent again, and how much earlier than
/// due a lease goes along with others.
pub(crate) const STEP: u32 = 6;

/// How much of the ttl is left when a renewal is due.
pub(crate) fn after_renewal(ttl: Duration) -> Duration {
    ttl - ttl / PERIOD
}

/// How long the answer to a renewal is waited for before it is sent again.
pub(crate) fn response_timeout(ttl: Duration) -> Duration {
    ttl / STEP
}
