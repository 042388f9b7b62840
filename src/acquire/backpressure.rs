//! Backpressure: an acquire of a lease that is to be kept alive waits while the renewals of its handle are late.

use std::time::Duration;

use tokio::time::Instant;

use super::context::AcquireContext;
use crate::{
    model::{Key, WaitPolicy},
    telemetry,
};

/// Waits while the renewals of this handle are late, because one more lease to renew would delay them further. The wait
/// lasts a third of the ttl at most.
pub(super) async fn wait_for_renewals(
    context: &AcquireContext,
    key: &Key,
    ttl: Duration,
    wait_policy: WaitPolicy,
    since: Instant,
) {
    let longest = ttl / 3;
    let limit = match wait_policy {
        WaitPolicy::For(wait) => longest.min(wait),
        WaitPolicy::None | WaitPolicy::Endless => longest,
    };
    if context.keys.renewals.wait_while_late(limit).await {
        telemetry::slowed_down(key, since.elapsed());
    }
}
