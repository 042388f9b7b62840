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

/// How a term ended.
#[derive(Clone, Copy)]
pub(crate) enum TermOutcome<'a> {
    /// The work succeeded.
    Finished,
    /// The work failed, and the next campaign begins after the pause.
    Failed {
        error: &'a dyn fmt::Display,
        pause: Duration,
    },
    Resigned,
    Lost,
    /// The client was closed.
    Closed,
    /// The future was dropped.
    Cancelled,
    Panicked,
}

impl TermOutcome<'_> {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Finished => "finished",
            Self::Failed { .. } => "failed",
            Self::Resigned => "resigned",
            Self::Lost => "lost",
            Self::Closed => "closed",
            Self::Cancelled => "cancelled",
            Self::Panicked => "panicked",
        }
    }
}

/// The span of a term. It reports the begin and the end of the term. A drop without [`end`](TermSpan::end) reports that
/// the term was cancelled, or that its work has panicked.
pub(crate) struct TermSpan {
    span: Span,
    key: Key,
    lease: LeaseId,
    fence: Fence,
    began: Instant,
    is_over: bool,
}

impl TermSpan {
    /// Reports that this process leads from now on.
    pub(crate) fn begin(of: LeaseFields<'_>, owner: &str) -> Self {
        let LeaseFields {
            key,
            lease,
            fence,
            ttl,
        } = of;
        let span = span!(
            "leasehold.term", key = key.as_str(), owner, lease = %lease, fence = fence.get(),
            outcome = Empty, lasted = Empty,
        );
        info!(
            target: TARGET, key = key.as_str(), owner, %lease, fence = fence.get(), ?ttl,
            "a term begins",
        );
        metrics::add(metrics::LEADING, 1.0);
        Self {
            span,
            key: key.clone(),
            lease,
            fence,
            began: Instant::now(),
            is_over: false,
        }
    }

    /// The span, for the work of the term.
    pub(crate) fn span(&self) -> Span {
        self.span.clone()
    }

    /// Reports that the term is over.
    pub(crate) fn end(mut self, outcome: TermOutcome<'_>) {
        self.report(outcome);
    }

    fn report(&mut self, outcome: TermOutcome<'_>) {
        self.is_over = true;
        let (key, lease, fence) = (self.key.as_str(), self.lease, self.fence.get());
        let (label, lasted) = (outcome.as_str(), self.began.elapsed());
        self.span.record("outcome", label);
        self.span.record("lasted", field::debug(lasted));
        if let TermOutcome::Failed { error, pause } = outcome {
            warn!(
                target: TARGET, key, %lease, fence, outcome = label, ?lasted, ?pause, %error,
                "a term ends: its work failed",
            );
        } else {
            info!(
                target: TARGET, key, %lease, fence, outcome = label, ?lasted, "a term ends",
            );
        }
        let labels = [("outcome", label)];
        metrics::add(metrics::LEADING, -1.0);
        metrics::count(metrics::TERMS, &labels, 1);
        metrics::record(metrics::TERM_TIME, &labels, lasted.as_secs_f64());
    }
}

impl Drop for TermSpan {
    fn drop(&mut self) {
        if !self.is_over {
            let outcome = if std::thread::panicking() {
                TermOutcome::Panicked
            } else {
                TermOutcome::Cancelled
            };
            self.report(outcome);
        }
    }
}

/// Reports that a campaign has failed, and that the next one begins after `pause`.
pub(crate) fn campaign_failed(key: &str, pause: Duration, error: &Error) {
    warn!(target: TARGET, key, ?pause, %error, "a campaign failed, and is tried again");
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
