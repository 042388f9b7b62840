//! The server's time, estimated from its recent answers.

use std::time::Duration;

use chrono::{DateTime, Utc};
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::model::after;

/// How long a time of the server is used for an estimate. It is short, because this machine may be suspended, and
/// another server may take over.
const MAX_AGE: Duration = Duration::from_secs(10);

/// The newest time of the server, and the instant at which this process received it.
#[derive(Debug, Default)]
pub(crate) struct ServerClock(Mutex<Option<(Instant, DateTime<Utc>)>>);

impl ServerClock {
    /// Records the server's time from an answer that has just come.
    pub(crate) fn record_time(&self, time: DateTime<Utc>, now: Instant) {
        // A time before the current estimate came with a slower answer, and would make the estimate worse.
        if self.at(now).is_none_or(|known| known <= time) {
            *self.0.lock() = Some((now, time));
        }
    }

    /// The server's time at this instant. The estimate may be old, so it is only for dates that are shown, and is never
    /// compared with an expiry. `None` before the first answer.
    #[cfg(feature = "mongodb")]
    pub(crate) fn about(&self, instant: Instant) -> Option<DateTime<Utc>> {
        let (received, time) = (*self.0.lock())?;
        Some(after(time, instant.saturating_duration_since(received)))
    }

    /// A lower bound of the server's time at this instant, but for the drift of the two clocks since the last answer.
    /// `None` if the last answer is older than [`MAX_AGE`].
    pub(crate) fn at(&self, instant: Instant) -> Option<DateTime<Utc>> {
        let (received, time) = (*self.0.lock())?;
        let since = instant.saturating_duration_since(received);
        (since < MAX_AGE).then(|| after(time, since))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_goes_on_from_what_was_told_and_is_forgotten() {
        let (clock, start) = (ServerClock::default(), Instant::now());
        assert_eq!(clock.at(start), None);
        let noon: DateTime<Utc> = "2026-01-01T12:00:00Z".parse().unwrap();
        clock.record_time(noon, start);
        assert_eq!(clock.at(start), Some(noon));
        let second = Duration::from_secs(1);
        assert_eq!(clock.at(start + second), Some(noon + second));
        // The instant of a request that was sent before the answer came.
        assert_eq!(clock.at(start - second), Some(noon));
        assert_eq!(clock.at(start + MAX_AGE), None);
        clock.record_time(noon + second, start + MAX_AGE);
        assert_eq!(clock.at(start + MAX_AGE + second), Some(noon + second * 2));
    }
}
