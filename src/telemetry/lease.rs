//! Telemetry of a lease from its grant to its end.

use std::time::Duration;

use tracing::{
    Span, debug,
    field::{self, Empty},
    trace, warn,
};

use super::{
    metrics,
    words::{StayEndReason, TARGET, outcome_of},
};
use crate::{
    messages::ReleaseAnswer,
    model::{Error, Fence, Held, Key, LeaseId, LossReason, Mode},
};

/// The fields of a lease.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LeaseFields<'a> {
    pub(crate) key: &'a Key,
    pub(crate) lease: LeaseId,
    pub(crate) fence: Fence,
    pub(crate) ttl: Duration,
}

/// The fields of the events of a release. The fence is `None` if no caller got the lease.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReleaseFields<'a> {
    pub(crate) key: &'a Key,
    pub(crate) lease: LeaseId,
    pub(crate) fence: Option<Fence>,
    /// Whether a caller waited for the release from its beginning.
    pub(crate) has_caller: bool,
}

/// The numbers of leases that are kept alive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct KeptLeases {
    pub(crate) kept: usize,
    /// How many of them are due and wait until a batch may be sent.
    pub(crate) waiting: usize,
    /// How many of them have less than a third of their ttl left, and may be renewed.
    pub(crate) at_risk: usize,
}

/// Reports that a guard was made for a granted lease.
pub(crate) fn guard_created() {
    metrics::add(metrics::HELD, 1.0);
}

/// Reports that a guard was dropped, or that its release has begun. `held` is how long the lease was held. The outcome
/// of the release is [reported later](released).
pub(crate) fn given_up(of: LeaseFields<'_>, held: Duration) {
    count_end(held);
    trace!(target: TARGET, key = of.key.as_str(), lease = %of.lease, ?held, "given up");
}

/// Reports that a guard was detached, so that its lease is not released and will expire.
pub(crate) fn detached(of: LeaseFields<'_>, held: Duration) {
    count_end(held);
    debug!(
        target: TARGET, key = of.key.as_str(), lease = %of.lease, fence = of.fence.get(), ?held, "detached",
    );
}

fn count_end(held: Duration) {
    metrics::add(metrics::HELD, -1.0);
    metrics::record(metrics::HOLD_TIME, &[], held.as_secs_f64());
}

/// The span of a renewal that a caller waits for.
pub(crate) fn renew(of: LeaseFields<'_>) -> Span {
    span!("leasehold.renew", key = of.key.as_str(), lease = %of.lease, ttl = ?of.ttl)
}

/// Reports that a batch of renewals is sent, up to `lag` later than planned.
pub(crate) fn renewals_sent(leases: usize, lag: Duration) {
    trace!(target: TARGET, leases, ?lag, "renewing");
    metrics::record(metrics::RENEWAL_LAG, &[], lag.as_secs_f64());
}

/// Reports a change of how many leases are kept alive, and of how many of them are at risk.
pub(crate) fn kept(before: KeptLeases, now: KeptLeases) {
    if before != now {
        metrics::add(metrics::KEPT, now.kept as f64 - before.kept as f64);
        metrics::add(metrics::AT_RISK, now.at_risk as f64 - before.at_risk as f64);
    }
}

/// Reports that renewals are due and were not sent yet, because the store has not answered earlier ones. The next renewal
/// is already `lag` late.
pub(crate) fn renewals_late(leases: KeptLeases, lag: Duration) {
    warn!(
        target: TARGET, kept = leases.kept, waiting = leases.waiting, at_risk = leases.at_risk, ?lag,
        "renewals are late: the store answers more slowly than leases have to be renewed",
    );
}

/// Reports that the store has confirmed a renewal. `left` is the time that the lease had left before the renewal.
pub(crate) fn renewed(of: LeaseFields<'_>, left: Duration) {
    let outcome = "renewed";
    trace!(
        target: TARGET, key = of.key.as_str(), lease = %of.lease, fence = of.fence.get(), ttl = ?of.ttl, ?left,
        outcome, "renewed",
    );
    metrics::count(metrics::RENEWALS, &[("outcome", outcome)], 1);
    metrics::record(metrics::RENEWAL_MARGIN, &[], left.as_secs_f64());
}

/// Reports that a renewal failed, or that its answer says that the lease is lost.
pub(crate) fn renewal_failed(of: LeaseFields<'_>, left: Duration, error: &Error) {
    let outcome = outcome_of(error);
    debug!(
        target: TARGET, key = of.key.as_str(), lease = %of.lease, ?left, outcome, %error, "not renewed",
    );
    metrics::count(metrics::RENEWALS, &[("outcome", outcome)], 1);
}

/// Reports that the renewals of a lease fail, and less than a third of its ttl is left.
pub(crate) fn at_risk(of: LeaseFields<'_>, left: Duration) {
    warn!(
        target: TARGET, key = of.key.as_str(), lease = %of.lease, fence = of.fence.get(), ?left,
        "a lease is at risk: its renewals fail",
    );
}

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

/// Reports that a lease was lost while its guard lives.
pub(crate) fn lost(of: LeaseFields<'_>, reason: &LossReason) {
    let (key, lease, fence, label) = (of.key.as_str(), of.lease, of.fence.get(), label(reason));
    match reason {
        // The application has caused this loss by a close, so it is not a warning.
        LossReason::Closed => debug!(
            target: TARGET, key, %lease, fence, reason = label, "a lease ends with its handle",
        ),
        _ => warn!(
            target: TARGET, key, %lease, fence, reason = label, "a lease is lost: {reason}",
        ),
    }
    metrics::count(metrics::LOSSES, &[("reason", label)], 1);
}

fn label(reason: &LossReason) -> &'static str {
    match reason {
        LossReason::Expired => "expired",
        LossReason::TakenOver => "taken_over",
        LossReason::Unreachable(_) => "unreachable",
        LossReason::HeldTooLong => "held_too_long",
        LossReason::Closed => "closed",
    }
}

/// The span of a release that a caller waits for.
pub(crate) fn release(of: LeaseFields<'_>) -> Span {
    span!(
        "leasehold.release", key = of.key.as_str(), lease = %of.lease, fence = of.fence.get(),
    )
}

/// Reports the answer to a release.
pub(crate) fn released(of: ReleaseFields<'_>, answer: ReleaseAnswer) {
    let outcome = match answer {
        ReleaseAnswer::Released => "released",
        ReleaseAnswer::NotHeld => "not_held",
    };
    debug!(
        target: TARGET, key = of.key.as_str(), lease = %of.lease, fence = of.fence.map(Fence::get),
        by = of.by(), outcome, "released",
    );
    count_release(of, outcome);
}

/// Reports that a release was given up. The key is free when the ttl is over.
pub(crate) fn release_failed(of: ReleaseFields<'_>, error: &Error) {
    let outcome = "error";
    warn!(
        target: TARGET, key = of.key.as_str(), lease = %of.lease, fence = of.fence.map(Fence::get),
        by = of.by(), outcome, %error, "could not release; the ttl will",
    );
    count_release(of, outcome);
}

/// Counts a release in the background. The metric leaves out the releases for which a caller waited from their
/// beginning.
fn count_release(of: ReleaseFields<'_>, outcome: &'static str) {
    if !of.has_caller {
        let labels = [("outcome", outcome)];
        metrics::count(metrics::BACKGROUND_RELEASES, &labels, 1);
    }
}

impl ReleaseFields<'_> {
    /// The cause of the release: a call of the holder, the drop of the guard, or an acquire whose caller did not get
    /// the lease.
    fn by(&self) -> &'static str {
        match (self.has_caller, self.fence) {
            (true, _) => "caller",
            (false, Some(_)) => "drop",
            (false, None) => "unwanted",
        }
    }
}

/// The span of a conversion.
pub(crate) fn convert(of: LeaseFields<'_>, to: Mode) -> Span {
    let (key, lease, mode) = (of.key.as_str(), of.lease, to.as_str());
    macro_rules! named {
        ($name:literal) => {
            span!($name, key, lease = %lease, mode, outcome = Empty)
        };
    }
    match to {
        Mode::Exclusive => named!("leasehold.upgrade"),
        Mode::Shared | Mode::Permits => named!("leasehold.downgrade"),
    }
}

/// Reports the end of a conversion. It is `Some` if other holders prevent it.
pub(crate) fn converted(
    span: &Span,
    of: LeaseFields<'_>,
    to: Mode,
    end: &Result<Option<Held>, Error>,
) {
    let (outcome, error) = match end {
        Ok(None) => ("granted", None),
        Ok(Some(_)) => ("held", None),
        Err(error) => (outcome_of(error), Some(field::display(error))),
    };
    span.record("outcome", outcome);
    span.in_scope(|| {
        debug!(
            target: TARGET, key = of.key.as_str(), lease = %of.lease, mode = to.as_str(),
            fence = of.fence.get(), outcome, error, "asked for another mode",
        );
    });
}

/// The span of the resume of a lease from its ticket.
pub(crate) fn resume(key: &Key, fence: Fence) -> Span {
    span!(
        "leasehold.resume",
        key = key.as_str(),
        fence = fence.get(),
        outcome = Empty,
    )
}

/// The outcome of a resume.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ResumeEnd<'a> {
    Live(LeaseId),
    Gone(&'a LossReason),
    Failed(&'a Error),
}

/// Reports the outcome of a resume.
pub(crate) fn resumed(span: &Span, key: &Key, fence: Fence, end: ResumeEnd<'_>) {
    let (outcome, lease, reason, error) = match end {
        ResumeEnd::Live(lease) => ("granted", Some(field::display(lease)), None, None),
        ResumeEnd::Gone(reason) => ("lost", None, Some(label(reason)), None),
        ResumeEnd::Failed(error) => (outcome_of(error), None, None, Some(field::display(error))),
    };
    span.record("outcome", outcome);
    span.in_scope(|| {
        debug!(
            target: TARGET, key = key.as_str(), lease, fence = fence.get(), reason, outcome, error,
            "resumed",
        );
    });
}
