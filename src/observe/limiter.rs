//! Requests for permits of a limiter.

use std::time::Duration;

use tokio::time::Instant;
use tracing::{
    Span, debug,
    field::{self, Empty},
};

#[cfg(feature = "metrics")]
use super::metrics;
use super::{Outcome, TARGET};
use crate::{
    limiter::PermitAttempt,
    model::{Error, Key},
};

/// A request for permits under way. Dropped before its [end](AskedPermits::ends), it was cancelled.
pub(crate) struct AskedPermits<'a> {
    span: Span,
    since: Instant,
    key: &'a Key,
    permits: u32,
    over: bool,
}

impl<'a> AskedPermits<'a> {
    pub(crate) fn begins(key: &'a Key, permits: u32) -> Self {
        Self {
            span: span!(
                "leasehold.permit",
                key = key.as_str(),
                permits,
                outcome = Empty,
                waited = Empty,
            ),
            since: Instant::now(),
            key,
            permits,
            over: false,
        }
    }

    pub(crate) fn span(&self) -> Span {
        self.span.clone()
    }

    pub(crate) fn since(&self) -> Instant {
        self.since
    }

    pub(crate) fn ends(mut self, end: &Result<PermitAttempt, Error>) {
        match end {
            Ok(PermitAttempt::Granted(_)) => self.over(Outcome::Granted, None, None),
            Ok(PermitAttempt::Full { retry_in }) => self.over(Outcome::Full, Some(*retry_in), None),
            Err(error) => self.over(Outcome::of(error), None, Some(error)),
        }
    }

    fn over(&mut self, outcome: Outcome, retry_in: Option<Duration>, error: Option<&Error>) {
        self.over = true;
        let waited = self.since.elapsed();
        self.span.record("outcome", outcome.as_str());
        self.span.record("waited", field::debug(waited));
        self.span.in_scope(|| {
            debug!(
                target: TARGET, key = self.key.as_str(), permits = self.permits, ?waited,
                outcome = outcome.as_str(), retry_in = retry_in.map(field::debug),
                error = error.map(field::display), "asked for permits",
            );
        });
        #[cfg(feature = "metrics")]
        metrics::asked_for_permits(outcome, waited);
    }
}

impl Drop for AskedPermits<'_> {
    fn drop(&mut self) {
        if !self.over {
            self.over(Outcome::Cancelled, None, None);
        }
    }
}
