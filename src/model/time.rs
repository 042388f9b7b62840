//! Times in whole milliseconds, the resolution of the stores.

use std::time::Duration;

use chrono::{DateTime, SubsecRound, TimeDelta, Utc};

/// The time `by` after `at`, cut to whole milliseconds. If that is beyond the calendar, the last time of the calendar.
pub(crate) fn after(at: DateTime<Utc>, by: Duration) -> DateTime<Utc> {
    TimeDelta::from_std(by)
        .ok()
        .and_then(|by| at.checked_add_signed(by))
        .unwrap_or(DateTime::<Utc>::MAX_UTC)
        .trunc_subsecs(3)
}

/// The time from `from` to `to`; zero if `to` is not later.
pub(crate) fn between(from: DateTime<Utc>, to: DateTime<Utc>) -> Duration {
    (to - from).to_std().unwrap_or(Duration::ZERO)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_saturate() {
        let now = DateTime::<Utc>::UNIX_EPOCH;
        assert_eq!(after(now, Duration::from_millis(5)).timestamp_millis(), 5);
        assert!(after(now, Duration::MAX) > now);
        assert_eq!(
            between(after(now, Duration::from_secs(1)), now),
            Duration::ZERO
        );
        assert_eq!(
            between(now, after(now, Duration::from_secs(1))),
            Duration::from_secs(1)
        );
        let span = between(DateTime::<Utc>::MIN_UTC, DateTime::<Utc>::MAX_UTC);
        assert!(span > Duration::from_secs(1));
    }
}
