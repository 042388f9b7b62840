//! Telemetry of the leases that stay with this process after their last use.

use tracing::{debug, trace};

use super::{
    lease::LeaseFields,
    metrics,
    words::{StayEndReason, TARGET},
};

/// Reports that a lease stays with this process.
pub(crate) fn stays(of: LeaseFields<'_>) {
    debug!(target: TARGET, key = of.key.as_str(), lease = %of.lease, "a lease stays here");
    metrics::add(metrics::STAYING, 1.0);
}

/// Reports that a lease does not stay any more. `at_once` says that no task uses the key.
pub(crate) fn stay_ended(of: LeaseFields<'_>, why: StayEndReason, at_once: bool) {
    debug!(
        target: TARGET, key = of.key.as_str(), lease = %of.lease, reason = why.as_str(), at_once, "a lease goes back",
    );
    metrics::add(metrics::STAYING, -1.0);
    metrics::count(metrics::STAYS_ENDED, &[("reason", why.as_str())], 1);
}

/// Reports a grant from memory.
pub(crate) fn granted_from_memory(of: LeaseFields<'_>) {
    trace!(target: TARGET, key = of.key.as_str(), lease = %of.lease, fence = of.fence.get(), "granted from memory");
    metrics::count(metrics::GRANTS_FROM_MEMORY, &[], 1);
}
