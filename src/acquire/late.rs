//! Leases that are granted late: the answer took so long that the lease is due for its renewal.
//!
//! A lease that is kept alive is renewed before its caller gets it, so that work does not begin on what is left of the
//! ttl. The caller renews it, and not the renewal task: a lease that the task renews stays held for as long as the guard
//! lives, also if nobody polls the caller's future any more.

use tokio::time::{Instant, timeout};

use crate::{
    lease::Lease,
    lease_state::timing,
    model::{Error, LossReason, WaitPolicy},
    retry,
};

/// Whether the lease is live, and due for its renewal before the caller has it.
pub(super) fn is_late(lease: &Lease, now: Instant) -> bool {
    lease.state.is_live(now) && lease.state.stored().next_renewal(now) <= now
}

/// Renews a lease that is [late](is_late). Fails if the lease is lost, or cannot be renewed.
///
/// A renewal without an answer is sent again, as in the background, and an answer that comes later still counts. A store
/// that is slower than the renewals of such a ttl need would never give the whole ttl, so after a ttl the caller gets
/// what is left.
pub(super) async fn renew(lease: &Lease) -> Result<(), Error> {
    let (start, ttl) = (Instant::now(), lease.ttl());
    while is_late(lease, Instant::now()) && start.elapsed() < ttl {
        let renewal = timeout(timing::response_timeout(ttl), lease.renew());
        if let Ok(Err(error)) = renewal.await {
            return Err(not_given(error, lease));
        }
    }
    let live = lease.ensure_live(Instant::now());
    live.map_err(|error| not_given(error, lease))
}

/// The error for a caller that does not get its lease.
fn not_given(error: Error, lease: &Lease) -> Error {
    match error {
        Error::Lost { reason, key } => match reason {
            LossReason::Closed => Error::Closed,
            LossReason::Unreachable(error) => *error,
            LossReason::Expired => Error::TimedOut {
                store: lease.keys.store.name(),
                operation: "renew",
                limit: lease.ttl(),
            },
            LossReason::TakenOver | LossReason::HeldTooLong => Error::Lost { reason, key },
        },
        error => error,
    }
}

/// Whether an acquire that waits goes on after this error of a renewal.
pub(super) fn is_to_be_asked_again(error: &Error, wait_policy: WaitPolicy, since: Instant) -> bool {
    let is_over = match wait_policy {
        WaitPolicy::None => true,
        WaitPolicy::For(wait) => retry::wait_end(since, wait) <= Instant::now(),
        WaitPolicy::Endless => false,
    };
    !is_over && (error.is_retryable() || matches!(error, Error::Lost { .. }))
}
