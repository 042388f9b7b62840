//! How a holder loses its lease.

use crate::Error;

/// How a lease was lost, as its guard tells it.
///
/// Whatever the reason: stop what depends on the lease. It says what was known at the moment of the
/// loss; a lease that expired here may be taken over a moment later.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LossReason {
    /// Its time was over: it was not kept alive, a renewal by hand had no answer in time, or this process
    /// was paused for too long.
    #[error("it expired before it was renewed")]
    Expired,
    /// It is not among the holders of its key any more: it was evicted, released elsewhere, or another was
    /// granted the key after its expiry.
    #[error("it was taken over after its expiry, evicted, or released elsewhere")]
    TakenOver,
    /// Its time was over while renewals failed; this is the last error.
    #[error("it could not be renewed in time: {0}")]
    Unreachable(#[source] Box<Error>),
    /// [`Leases::close`](crate::Leases::close) released it.
    #[error("its leases were closed, which released it")]
    Closed,
}
