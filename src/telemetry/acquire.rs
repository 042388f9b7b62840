//! Telemetry of acquires of one key and of several keys, and of the tasks that wait for a key.

use std::time::Duration;

use tokio::time::Instant;
use tracing::{
    Span, debug,
    field::{self, Empty},
};

use super::{
    lease::LeaseFields,
    metrics,
    words::{TARGET, outcome_of},
};
use crate::model::{Error, Held, Key, Mode};

/// The span of an acquire that is under way. If this is dropped before an outcome is reported, it reports that the
/// acquire was cancelled.
pub(crate) struct AcquireSpan {
    span: Span,
    since: Instant,
    mode: Mode,
    /// How many waiting processes came first when a request was first refused.
    ahead: Option<usize>,
    /// The key for the event at the end. `None` if no subscriber wants the span, which saves the clone.
    key: Option<Key>,
    ended: bool,
}

impl AcquireSpan {
    /// Begins the span of an acquire. The key is `None` if the caller named an invalid one.
    pub(crate) fn begin(
        key: Option<&Key>,
        (mode, owner, ttl): (Mode, &str, Duration),
        waits: bool,
    ) -> Self {
        let name = key.map(Key::as_str);
        // `tracing` needs the name of a span as a constant, so each name has its own call.
        macro_rules! named {
            ($name:literal) => {
                span!(
                    $name, key = name, mode = mode.as_str(), owner, ttl = ?ttl, lease = Empty, fence = Empty,
                    outcome = Empty, waited = Empty, ahead = Empty,
                )
            };
        }
        let span = if waits {
            named!("leasehold.acquire")
        } else {
            named!("leasehold.try_acquire")
        };
        Self {
            since: Instant::now(),
            mode,
            ahead: None,
            key: key.filter(|_| !span.is_disabled()).cloned(),
            span,
            ended: false,
        }
    }

    pub(crate) fn span(&self) -> Span {
        self.span.clone()
    }

    pub(crate) fn since(&self) -> Instant {
        self.since
    }

    /// Records how many waiting processes came first when a request of the acquire was first refused. `None` if no
    /// request was refused.
    pub(crate) fn set_ahead(&mut self, ahead: Option<usize>) {
        self.ahead = ahead;
        self.span.record("ahead", ahead);
    }

    pub(crate) fn granted(mut self, of: LeaseFields<'_>, owner: &str, now: Instant) {
        let outcome = "granted";
        let waited = self.end(outcome, now);
        let fence = of.fence.get();
        self.span.record("lease", field::display(of.lease));
        self.span.record("fence", fence);
        self.span.in_scope(|| {
            debug!(
                target: TARGET, key = of.key.as_str(), lease = %of.lease, mode = self.mode.as_str(), owner,
                fence, ttl = ?of.ttl, ?waited, ahead = self.ahead, outcome, "acquired",
            );
        });
    }

    pub(crate) fn refused(mut self, held: &Held, now: Instant) {
        self.not_acquired("held", Some(held), None, now);
    }

    pub(crate) fn failed(mut self, error: &Error, now: Instant) {
        let held = match error {
            Error::WaitTimedOut { held, .. } => Some(held),
            _ => None,
        };
        self.not_acquired(outcome_of(error), held, Some(error), now);
    }

    fn not_acquired(
        &mut self,
        outcome: &'static str,
        held: Option<&Held>,
        error: Option<&Error>,
        now: Instant,
    ) {
        let waited = self.end(outcome, now);
        self.span.in_scope(|| {
            debug!(
                target: TARGET, key = self.key.as_ref().map(Key::as_str), mode = self.mode.as_str(),
                holder = held.map(Held::owner), expires_in = held.map(|held| field::debug(held.expires_in())),
                ?waited, ahead = self.ahead, outcome, error = error.map(field::display),
                "not acquired",
            );
        });
    }

    /// Records the outcome in the span and the metrics, and returns how long the acquire took.
    fn end(&mut self, outcome: &'static str, now: Instant) -> Duration {
        self.ended = true;
        let waited = now.saturating_duration_since(self.since);
        let ended = ("outcome", outcome);
        let mode = ("mode", self.mode.as_str());
        metrics::count(metrics::ACQUIRES, &[ended, mode], 1);
        metrics::record(metrics::ACQUIRE_WAIT, &[ended], waited.as_secs_f64());
        self.span.record("outcome", outcome);
        self.span.record("waited", field::debug(waited));
        waited
    }
}

impl Drop for AcquireSpan {
    fn drop(&mut self) {
        if !self.ended {
            self.not_acquired("cancelled", None, None, Instant::now());
        }
    }
}

/// Reports that an acquire of a lease that is to be kept alive has waited because renewals were late.
pub(crate) fn slowed_down(key: &Key, waited: Duration) {
    debug!(
        target: TARGET, key = key.as_str(), ?waited,
        "an acquire was slowed down: renewals of what is kept alive are late",
    );
}

/// Counts a task as waiting for a key until this is dropped.
#[derive(Debug)]
pub(crate) struct Waiting(());

impl Waiting {
    /// Reports the beginning of a wait. `ahead` is how many waiting processes come first. `None` if that is not known
    /// yet.
    pub(crate) fn begins(key: &Key, ahead: Option<usize>) -> Self {
        debug!(target: TARGET, key = key.as_str(), ahead, "waits for the key");
        metrics::add(metrics::WAITING_TASKS, 1.0);
        Self(())
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        metrics::add(metrics::WAITING_TASKS, -1.0);
    }
}

/// The span of an acquire of several keys. The acquire of each key also has a span of its own.
pub(crate) fn acquire_all(keys: Option<usize>, (mode, owner, ttl): (Mode, &str, Duration)) -> Span {
    span!(
        "leasehold.acquire_all", keys, mode = mode.as_str(), owner, ttl = ?ttl, outcome = Empty,
        waited = Empty,
    )
}

/// Reports the outcome of an acquire of several keys.
pub(crate) fn acquired_all(span: &Span, since: Instant, error: Option<&Error>) {
    let waited = since.elapsed();
    let outcome = error.map_or("granted", outcome_of);
    span.record("outcome", outcome);
    span.record("waited", field::debug(waited));
    span.in_scope(
        || debug!(target: TARGET, ?waited, outcome, error = error.map(field::display), "asked for several keys"),
    );
}
