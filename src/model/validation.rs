//! Checks of keys, ticks and times to live.

use std::{str::FromStr, time::Duration};

use chrono::{DateTime, NaiveDate};

use super::{
    error::Error,
    key::Key,
    limits::{MAX_KEY_BYTES, MAX_TTL},
    tick::Tick,
};

impl Key {
    /// Makes a key from a text.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidKey`] if the text is empty or longer than [`MAX_KEY_BYTES`].
    pub fn new(text: impl AsRef<str>) -> Result<Self, Error> {
        let text = text.as_ref();
        if text.is_empty() || text.len() > MAX_KEY_BYTES {
            return Err(Error::InvalidKey { bytes: text.len() });
        }
        Ok(Self(text.into()))
    }
}

impl TryFrom<String> for Key {
    type Error = Error;

    fn try_from(text: String) -> Result<Self, Error> {
        Self::new(text)
    }
}

impl FromStr for Tick {
    type Err = Error;

    /// Reads a whole number as a counter, `2026-11-24` as a date, `2026-11-24T03:00:00Z` (RFC 3339) as a time, and
    /// `1.2.3` or `1.2` as a version.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidTick`] for anything else.
    fn from_str(text: &str) -> Result<Self, Error> {
        let version = || {
            let parts: Option<Vec<u16>> = text.split('.').map(|it| it.parse().ok()).collect();
            match *parts? {
                [major, minor] => Some(Self::version(major, minor, 0)),
                [major, minor, patch] => Some(Self::version(major, minor, patch)),
                _ => None,
            }
        };
        let time = || DateTime::parse_from_rfc3339(text).ok();
        let number = text.parse().ok().map(Self::counter);
        number
            .or_else(|| text.parse().ok().map(|date: NaiveDate| date.into()))
            .or_else(|| time().map(|time| time.to_utc().into()))
            .or_else(version)
            .ok_or_else(|| Error::InvalidTick {
                text: text.chars().take(64).collect(),
            })
    }
}

/// Checks a time to live, and cuts it to whole milliseconds, the resolution of every store.
///
/// The shortest ttl is twice the clock margin. With a shorter one the holder could use less than half of its ttl.
pub(crate) fn checked_ttl(ttl: Duration, clock_margin: Duration) -> Result<Duration, Error> {
    let shortest = clock_margin.saturating_mul(2).max(Duration::from_millis(1));
    if ttl < shortest || ttl > MAX_TTL {
        return Err(Error::InvalidTtl {
            ttl,
            shortest,
            longest: MAX_TTL,
        });
    }
    Ok(Duration::new(
        ttl.as_secs(),
        ttl.subsec_millis() * 1_000_000,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MARGIN: Duration = Duration::from_millis(100);

    #[test]
    fn a_ttl_is_at_least_twice_the_margin_and_at_most_a_year() {
        let short = checked_ttl(Duration::from_millis(199), MARGIN);
        assert!(matches!(short, Err(Error::InvalidTtl { shortest, .. }) if shortest == 2 * MARGIN));
        assert!(checked_ttl(Duration::from_millis(200), MARGIN).is_ok());
        assert!(checked_ttl(MAX_TTL, MARGIN).is_ok());
        assert!(checked_ttl(MAX_TTL + Duration::from_nanos(1), MARGIN).is_err());
        assert!(checked_ttl(Duration::MAX, MARGIN).is_err());
    }

    #[test]
    fn without_a_margin_a_millisecond_is_the_shortest() {
        assert!(checked_ttl(Duration::from_micros(999), Duration::ZERO).is_err());
        let cut = checked_ttl(Duration::from_micros(1_999), Duration::ZERO).unwrap();
        assert_eq!(cut, Duration::from_millis(1));
    }

    #[test]
    fn the_bounds_are_in_bytes() {
        assert!(Key::new("x").is_ok());
        assert!(Key::new("x".repeat(512)).is_ok());
        assert!(Key::new("é".repeat(256)).is_ok());
        assert!(matches!(Key::new(""), Err(Error::InvalidKey { bytes: 0 })));
        assert!(matches!(
            Key::new("é".repeat(257)),
            Err(Error::InvalidKey { bytes: 514 })
        ));
    }
}
