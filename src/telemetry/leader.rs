//! Telemetry of campaigns, of terms, and of followers.

use std::{fmt, time::Duration};

use tokio::time::Instant;
use tracing::{
    Span, debug,
    field::{self, Empty},
    info, warn,
};

use super::{lease::LeaseFields, metrics, words::TARGET};
use crate::model::{Error, Fence, Key, LeaseId};

/// The span of a term. It reports the begin and the end of the term. A drop without [`end`](TermSpan::end) reports that
/// the term was cancelled, or that its work has panicked.
pub(crate) struct TermSpan {
    /// The span, for the work of the term.
    pub(crate) span: Span,
    key: Key,
    lease: LeaseId,
    fence: Fence,
    began: Instant,
    is_over: bool,
}

impl TermSpan {
    /// Reports that this process leads from now on.
    pub(crate) fn begin(of: LeaseFields<'_>, owner: &str) -> Self {
        let (key, lease, fence) = (of.key.as_str(), of.lease, of.fence.get());
        let span = span!(
            "leasehold.term", key, owner, lease = %lease, fence, outcome = Empty, lasted = Empty,
        );
        info!(target: TARGET, key, owner, %lease, fence, ttl = ?of.ttl, "a term begins");
        metrics::add(metrics::LEADING, 1.0);
        Self {
            span,
            key: of.key.clone(),
            lease,
            fence: of.fence,
            began: Instant::now(),
            is_over: false,
        }
    }

    /// Reports that the term is over. `failure` is the error of its work, and the pause before the next campaign.
    pub(crate) fn end(
        mut self,
        outcome: &'static str,
        failure: Option<(&dyn fmt::Display, Duration)>,
    ) {
        self.report(outcome, failure);
    }

    fn report(&mut self, outcome: &'static str, failure: Option<(&dyn fmt::Display, Duration)>) {
        self.is_over = true;
        let (key, lease, fence) = (self.key.as_str(), self.lease, self.fence.get());
        let lasted = self.began.elapsed();
        self.span.record("outcome", outcome);
        self.span.record("lasted", field::debug(lasted));
        if let Some((error, pause)) = failure {
            warn!(
                target: TARGET, key, %lease, fence, outcome, ?lasted, ?pause, %error,
                "a term ends: its work failed",
            );
        } else {
            info!(target: TARGET, key, %lease, fence, outcome, ?lasted, "a term ends");
        }
        let labels = [("outcome", outcome)];
        metrics::add(metrics::LEADING, -1.0);
        metrics::count(metrics::TERMS, &labels, 1);
        metrics::record(metrics::TERM_TIME, &labels, lasted.as_secs_f64());
    }
}

impl Drop for TermSpan {
    fn drop(&mut self) {
        if !self.is_over {
            let panics = std::thread::panicking();
            self.report(if panics { "panicked" } else { "cancelled" }, None);
        }
    }
}

/// Reports that a campaign has failed, and that the next one begins after `pause`.
pub(crate) fn campaign_failed(key: Option<&Key>, pause: Duration, error: &Error) {
    warn!(target: TARGET, key = key.map(Key::as_str), ?pause, %error, "a campaign failed, and is tried again");
}

/// Reports that a follower has read another leader, with its owner and its fence, or that no process leads.
pub(crate) fn leader_changed(key: &Key, leader: Option<(&str, Fence)>) {
    let (owner, fence) = leader.unzip();
    debug!(
        target: TARGET, key = key.as_str(), owner, fence = fence.map(Fence::get),
        "the leader has changed",
    );
}

/// Reports that a follower could not read the leader. The follower keeps the last value.
pub(crate) fn leader_unknown(key: &Key, error: &Error) {
    warn!(
        target: TARGET, key = key.as_str(), %error,
        "who leads cannot be read; the last value stays until its lease is over",
    );
}
