//! The server's time, from what it told a moment ago.

use std::time::Duration;

use chrono::{DateTime, Utc};
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::model::after;

/// How long what was told is of use: this machine may be suspended, and another server take over.
const USE: Duration = Duration::from_secs(10);

/// The newest time that the server told, and when it was heard.
#[derive(Debug, Default)]
pub(crate) struct ServerClock(Mutex<Option<(Instant, DateTime<Utc>)>>);

impl ServerClock {
    /// The server told its time, in an answer that came now.
    pub(crate) fn record_time(&self, time: DateTime<Utc>, now: Instant) {
        // A time that is behind what is known came with an answer that took longer.
        if self.at(now).is_none_or(|known| known <= time) {
            *self.0.lock() = Some((now, time));
        }
    }

    /// About the time that it was on the server at this instant, for people; `None` if it was never told.
    #[cfg(feature = "mongodb")]
    pub(crate) fn about(&self, instant: Instant) -> Option<DateTime<Utc>> {
        let (heard, time) = (*self.0.lock())?;
        Some(after(time, instant.saturating_duration_since(heard)))
    }

    /// The time that it was at least on the server at this instant, less what the two clocks have drifted
    /// apart since it was told; `None` if that is long ago.
    pub(crate) fn at(&self, instant: Instant) -> Option<DateTime<Utc>> {
        let (heard, time) = (*self.0.lock())?;
        let since = instant.saturating_duration_since(heard);
        (since < USE).then(|| after(time, since))
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
        // A request that was sent before the answer came.
        assert_eq!(clock.at(start - second), Some(noon));
        assert_eq!(clock.at(start + USE), None);
        clock.record_time(noon + second, start + USE);
        assert_eq!(clock.at(start + USE + second), Some(noon + second * 2));
    }
}
