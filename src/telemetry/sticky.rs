//! Telemetry of the leases that stay with this process after their last use.

use tracing::{debug, trace};

#[cfg(feature = "metrics")]
use super::metrics;
use super::{
    lease::LeaseFields,
    words::{StayEndReason, TARGET},
};

/// Reports that a lease stays with this process.
pub(crate) fn stays(of: LeaseFields<'_>) {
    let LeaseFields { key, lease, .. } = of;
    debug!(target: TARGET, key = key.as_str(), %lease, "a lease stays here");
    #[cfg(feature = "metrics")]
    metrics::stay_begun();
}

/// Reports that a lease does not stay any more. `at_once` says that no task uses the key.
pub(crate) fn stay_ended(of: LeaseFields<'_>, why: StayEndReason, at_once: bool) {
    let LeaseFields { key, lease, .. } = of;
    debug!(
        target: TARGET, key = key.as_str(), %lease, reason = why.as_str(), at_once, "a lease goes back",
    );
    #[cfg(feature = "metrics")]
    metrics::stay_ended(why);
}

/// Reports a grant from memory.
pub(crate) fn granted_from_memory(of: LeaseFields<'_>) {
    let LeaseFields {
        key, lease, fence, ..
    } = of;
    trace!(target: TARGET, key = key.as_str(), %lease, fence = fence.get(), "granted from memory");
    #[cfg(feature = "metrics")]
    metrics::granted_from_memory();
}
