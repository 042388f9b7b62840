//! Telemetry of the requests of callers for permits of a limiter.

use std::time::Duration;

use tokio::time::Instant;
use tracing::{
    Span, debug,
    field::{self, Empty},
};

use super::{
    metrics,
    words::{TARGET, outcome_of},
};
use crate::model::{Error, Key};

/// The span of a request for permits that is under way. If this is dropped before an outcome is reported, it reports
/// that the request was cancelled.
pub(crate) struct PermitSpan<'a> {
    pub(crate) span: Span,
    pub(crate) since: Instant,
    key: &'a Key,
    permits: u32,
    ended: bool,
}

impl<'a> PermitSpan<'a> {
    pub(crate) fn begin(key: &'a Key, permits: u32) -> Self {
        Self {
            span: span!(
                "leasehold.limiter",
                key = key.as_str(),
                permits,
                outcome = Empty,
                waited = Empty,
            ),
            since: Instant::now(),
            key,
            permits,
            ended: false,
        }
    }

    /// Reports the outcome. `None` if the permits were granted.
    pub(crate) fn end(mut self, error: Option<&Error>) {
        match error {
            None => self.report("granted", None, None),
            // The limiter does not have enough permits now, which is no failure.
            Some(Error::LimitReached { retry_in, .. }) => {
                self.report("full", Some(*retry_in), None);
            }
            Some(error) => self.report(outcome_of(error), None, Some(error)),
        }
    }

    fn report(&mut self, outcome: &'static str, retry_in: Option<Duration>, error: Option<&Error>) {
        self.ended = true;
        let waited = self.since.elapsed();
        self.span.record("outcome", outcome);
        self.span.record("waited", field::debug(waited));
        self.span.in_scope(|| {
            debug!(
                target: TARGET, key = self.key.as_str(), permits = self.permits, ?waited,
                outcome, retry_in = retry_in.map(field::debug),
                error = error.map(field::display), "asked for permits",
            );
        });
        let labels = [("outcome", outcome)];
        metrics::count(metrics::LIMITER_REQUESTS, &labels, 1);
        metrics::record(metrics::LIMITER_WAIT, &labels, waited.as_secs_f64());
    }
}

impl Drop for PermitSpan<'_> {
    fn drop(&mut self) {
        if !self.ended {
            self.report("cancelled", None, None);
        }
    }
}
