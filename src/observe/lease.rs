//! What happens to a lease between its grant and its end.

use std::time::Duration;

use tokio::time::Instant;
use tracing::{
    Span, debug,
    field::{self, Empty},
    trace, warn,
};

#[cfg(feature = "metrics")]
use super::metrics;
use super::{Outcome, TARGET};
use crate::{
    hold::{End, Hold},
    model::{Error, Fence, Held, LossReason, Mode},
    release::Unused,
    schedule::Load,
    ticket::{Resumed, Ticket},
};

/// A guard begins its life.
pub(crate) fn granted() {
    #[cfg(feature = "metrics")]
    metrics::granted();
}

/// A guard is given up. What becomes of its lease [comes later](released).
pub(crate) fn ended(hold: &Hold, end: End, held: Duration) {
    #[cfg(feature = "metrics")]
    metrics::ended(held);
    let key = hold.key().as_str();
    match end {
        End::Released => trace!(target: TARGET, key, lease = %hold.id(), ?held, "given up"),
        End::Detached => debug!(
            target: TARGET, key, lease = %hold.id(), fence = hold.fence().get(), ?held, "detached",
        ),
    }
}

pub(crate) fn renew(hold: &Hold) -> Span {
    span!(
        "leasehold.renew", key = hold.key().as_str(), lease = %hold.id(), ttl = ?hold.ttl(),
    )
}

/// Renewals go out together, so much later than they were planned.
pub(crate) fn renewals_sent(leases: usize, lag: Duration) {
    trace!(target: TARGET, leases, ?lag, "renewing");
    #[cfg(feature = "metrics")]
    metrics::renewals_sent(lag);
}

/// How many leases are kept alive, and how many of them are at risk, has changed.
pub(crate) fn kept(before: Load, now: Load) {
    #[cfg(feature = "metrics")]
    if (before.kept, before.at_risk) != (now.kept, now.at_risk) {
        let more = |before: usize, now: usize| now as f64 - before as f64;
        metrics::kept(
            more(before.kept, now.kept),
            more(before.at_risk, now.at_risk),
        );
    }
    #[cfg(not(feature = "metrics"))]
    let _ = (before, now);
}

/// Renewals that are due wait for others to be answered, by so much by now.
pub(crate) fn renewals_late(load: Load, lag: Duration) {
    let Load {
        kept,
        waiting,
        at_risk,
    } = load;
    warn!(
        target: TARGET, kept, waiting, at_risk, ?lag,
        "renewals are late: the store answers more slowly than leases have to be renewed",
    );
}

/// A renewal is confirmed, when this was left of the lease.
pub(crate) fn renewed(hold: &Hold, left: Duration) {
    trace!(
        target: TARGET, key = hold.key().as_str(), lease = %hold.id(), fence = hold.fence().get(),
        ttl = ?hold.ttl(), ?left, outcome = Outcome::Renewed.as_str(), "renewed",
    );
    #[cfg(feature = "metrics")]
    metrics::renewed(left);
}

/// A renewal failed, or was told that the lease is lost.
pub(crate) fn renewal_failed(hold: &Hold, error: &Error) {
    let outcome = Outcome::of(error);
    debug!(
        target: TARGET, key = hold.key().as_str(), lease = %hold.id(), left = ?hold.remaining(Instant::now()),
        outcome = outcome.as_str(), %error, "not renewed",
    );
    #[cfg(feature = "metrics")]
    metrics::not_renewed(outcome);
}

/// Renewals fail, and less than a third of the ttl is left.
pub(crate) fn at_risk(hold: &Hold) {
    warn!(
        target: TARGET, key = hold.key().as_str(), lease = %hold.id(), fence = hold.fence().get(),
        left = ?hold.remaining(Instant::now()), "a lease is at risk: its renewals fail",
    );
}

/// A lease is lost while its guard lives.
pub(crate) fn lost(hold: &Hold, reason: &LossReason) {
    let (key, fence) = (hold.key().as_str(), hold.fence().get());
    let word = word(reason);
    match reason {
        // It is what the application asked for.
        LossReason::Closed => debug!(
            target: TARGET, key, lease = %hold.id(), fence, reason = word, "a lease ends with its handle",
        ),
        _ => warn!(
            target: TARGET, key, lease = %hold.id(), fence, reason = word, "a lease is lost: {reason}",
        ),
    }
    #[cfg(feature = "metrics")]
    metrics::lost(word);
}

fn word(reason: &LossReason) -> &'static str {
    match reason {
        LossReason::Expired => "expired",
        LossReason::TakenOver => "taken_over",
        LossReason::Unreachable(_) => "unreachable",
        LossReason::Closed => "closed",
    }
}

pub(crate) fn release(hold: &Hold) -> Span {
    span!(
        "leasehold.release", key = hold.key().as_str(), lease = %hold.id(),
        fence = hold.fence().get(),
    )
}

/// A release is answered. Somebody may have waited for it from the beginning.
pub(crate) fn released(unused: &Unused, waited_for: bool, outcome: Outcome) {
    debug!(
        target: TARGET, key = unused.key.as_str(), lease = %unused.lease,
        fence = unused.fence.map(Fence::get), by = by(unused, waited_for),
        outcome = outcome.as_str(), "released",
    );
    #[cfg(feature = "metrics")]
    if !waited_for {
        metrics::released(outcome);
    }
}

/// A release is given up; the key is free when the ttl is over.
pub(crate) fn release_failed(unused: &Unused, waited_for: bool, error: &Error) {
    let outcome = Outcome::Error;
    warn!(
        target: TARGET, key = unused.key.as_str(), lease = %unused.lease,
        fence = unused.fence.map(Fence::get), by = by(unused, waited_for),
        outcome = outcome.as_str(), %error, "could not release; the ttl will",
    );
    #[cfg(feature = "metrics")]
    if !waited_for {
        metrics::released(outcome);
    }
}

/// Who has it released: its holder, its guard by being dropped, or an acquire that nobody waits for.
fn by(unused: &Unused, waited_for: bool) -> &'static str {
    match (waited_for, unused.fence) {
        (true, _) => "caller",
        (false, Some(_)) => "drop",
        (false, None) => "unwanted",
    }
}

pub(crate) fn convert(hold: &Hold, to: Mode) -> Span {
    let (key, mode) = (hold.key().as_str(), to.as_str());
    macro_rules! named {
        ($name:literal) => {
            span!($name, key, lease = %hold.id(), mode, outcome = Empty)
        };
    }
    match to {
        Mode::Exclusive => named!("leasehold.upgrade"),
        Mode::Shared | Mode::Permits => named!("leasehold.downgrade"),
    }
}

/// A conversion is answered, or failed.
pub(crate) fn converted(span: &Span, hold: &Hold, to: Mode, end: &Result<Option<Held>, Error>) {
    let (outcome, error) = match end {
        Ok(None) => (Outcome::Granted, None),
        Ok(Some(_)) => (Outcome::Held, None),
        Err(error) => (Outcome::of(error), Some(error)),
    };
    span.record("outcome", outcome.as_str());
    span.in_scope(|| {
        debug!(
            target: TARGET, key = hold.key().as_str(), lease = %hold.id(), mode = to.as_str(),
            fence = hold.fence().get(), outcome = outcome.as_str(), error = error.map(field::display),
            "asked for another mode",
        );
    });
}

pub(crate) fn resume(ticket: &Ticket) -> Span {
    span!(
        "leasehold.resume",
        key = ticket.key().as_str(),
        fence = ticket.fence().get(),
        outcome = Empty,
    )
}

/// A lease goes on here, or does not.
pub(crate) fn resumed(span: &Span, ticket: &Ticket, end: &Result<Resumed, Error>) {
    let (outcome, lease) = match end {
        Ok(Resumed::Live(lease)) => (Outcome::Granted, Some(lease.id())),
        Ok(Resumed::Gone(_)) => (Outcome::Lost, None),
        Err(error) => (Outcome::of(error), None),
    };
    let reason = match end {
        Ok(Resumed::Gone(reason)) => Some(word(reason)),
        _ => None,
    };
    span.record("outcome", outcome.as_str());
    span.in_scope(|| {
        debug!(
            target: TARGET, key = ticket.key().as_str(), lease = lease.map(field::display),
            fence = ticket.fence().get(), reason, outcome = outcome.as_str(),
            error = end.as_ref().err().map(field::display), "resumed",
        );
    });
}
