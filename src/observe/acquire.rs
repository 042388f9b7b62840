//! Acquires: of one key, of several, and who waits meanwhile.

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
    acquire::Attempt,
    acquisition::Patience,
    ask::Ask,
    lease::Lease,
    model::{Error, Held, Key, Mode},
    set::LeaseSet,
};

/// An acquire under way. Dropped before its [end](Asked::ends), it was cancelled.
pub(crate) struct Asked {
    span: Span,
    since: Instant,
    mode: Mode,
    /// There only if somebody listens.
    key: Option<Key>,
    over: bool,
}

impl Asked {
    pub(crate) fn begins(ask: &Ask, key: Option<&Key>, patience: Patience) -> Self {
        let (name, mode) = (key.map(Key::as_str), ask.mode.as_str());
        let (owner, ttl) = (&**ask.owner(), ask.ttl);
        // The name of a span is part of its place in the program.
        macro_rules! named {
            ($name:literal) => {
                span!(
                    $name,
                    key = name,
                    mode,
                    owner,
                    ?ttl,
                    lease = Empty,
                    fence = Empty,
                    outcome = Empty,
                    waited = Empty,
                )
            };
        }
        let span = match patience {
            Patience::None => named!("leasehold.try_acquire"),
            Patience::For(_) | Patience::Endless => named!("leasehold.acquire"),
        };
        Self {
            since: Instant::now(),
            mode: ask.mode,
            key: key.filter(|_| !span.is_disabled()).cloned(),
            span,
            over: false,
        }
    }

    pub(crate) fn span(&self) -> Span {
        self.span.clone()
    }

    pub(crate) fn since(&self) -> Instant {
        self.since
    }

    pub(crate) fn ends(mut self, end: &Result<Attempt, Error>, now: Instant) {
        match end {
            Ok(Attempt::Acquired(lease)) => self.granted(lease, now),
            Ok(Attempt::Held(held)) => self.in_vain(Outcome::Held, Some(held), None, now),
            Err(error) => self.in_vain(Outcome::of(error), None, Some(error), now),
        }
    }

    fn granted(&mut self, lease: &Lease, now: Instant) {
        let waited = self.over(Outcome::Granted, now);
        self.span.record("lease", field::display(lease.id()));
        self.span.record("fence", lease.fence().get());
        self.span.in_scope(|| {
            debug!(
                target: TARGET, key = lease.key().as_str(), lease = %lease.id(),
                mode = self.mode.as_str(), owner = lease.owner(), fence = lease.fence().get(),
                ttl = ?lease.ttl(), ?waited, outcome = Outcome::Granted.as_str(), "acquired",
            );
        });
    }

    fn in_vain(
        &mut self,
        outcome: Outcome,
        held: Option<&Held>,
        error: Option<&Error>,
        now: Instant,
    ) {
        let waited = self.over(outcome, now);
        self.span.in_scope(|| {
            debug!(
                target: TARGET, key = self.key.as_ref().map(Key::as_str), mode = self.mode.as_str(),
                holder = held.map(Held::owner), expires_in = held.map(|held| field::debug(held.expires_in())),
                ?waited, outcome = outcome.as_str(), error = error.map(field::display), "not acquired",
            );
        });
    }

    /// Counts it, and says how long it took.
    fn over(&mut self, outcome: Outcome, now: Instant) -> Duration {
        self.over = true;
        let waited = now.saturating_duration_since(self.since);
        #[cfg(feature = "metrics")]
        metrics::asked(outcome, self.mode, waited);
        self.span.record("outcome", outcome.as_str());
        self.span.record("waited", field::debug(waited));
        waited
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        if !self.over {
            self.in_vain(Outcome::Cancelled, None, None, Instant::now());
        }
    }
}

/// An acquire of a lease that is to be kept alive waits until renewals are in time again.
pub(crate) fn slowed_down(key: &Key, waited: Duration) {
    debug!(
        target: TARGET, key = key.as_str(), ?waited,
        "an acquire was slowed down: renewals of what is kept alive are late",
    );
}

/// A task that waits for a key, until it is dropped.
#[derive(Debug)]
pub(crate) struct Waiting(());

impl Waiting {
    pub(crate) fn begins(key: &Key) -> Self {
        debug!(target: TARGET, key = key.as_str(), "waits for the key");
        #[cfg(feature = "metrics")]
        metrics::waits();
        Self(())
    }
}

#[cfg(feature = "metrics")]
impl Drop for Waiting {
    fn drop(&mut self) {
        metrics::waits_no_more();
    }
}

/// The span of an acquire of several keys, beside which there is one for each of them.
pub(crate) fn acquire_all(ask: &Ask, keys: Option<usize>) -> Span {
    span!(
        "leasehold.acquire_all", keys, mode = ask.mode.as_str(),
        owner = &**ask.owner(), ttl = ?ask.ttl, outcome = Empty, waited = Empty,
    )
}

/// What became of it.
pub(crate) fn acquired_all(span: &Span, since: Instant, end: &Result<LeaseSet, Error>) {
    let (waited, error) = (since.elapsed(), end.as_ref().err());
    let outcome = error.map_or(Outcome::Granted, Outcome::of).as_str();
    span.record("outcome", outcome);
    span.record("waited", field::debug(waited));
    span.in_scope(
        || debug!(target: TARGET, ?waited, outcome, error = error.map(field::display), "asked for several keys"),
    );
}
