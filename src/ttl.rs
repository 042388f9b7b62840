//! How long a lease may last.

use std::time::Duration;

use crate::Error;

/// The longest time to live: 365 days. A lease meant to outlast it is not a lease.
pub const MAX_TTL: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// Checks a time to live and cuts it to whole milliseconds, the resolution of every store.
///
/// Less than twice the margin would leave less than half of the lease usable.
pub(crate) fn checked(ttl: Duration, clock_margin: Duration) -> Result<Duration, Error> {
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
        let short = checked(Duration::from_millis(199), MARGIN);
        assert!(matches!(short, Err(Error::InvalidTtl { shortest, .. }) if shortest == 2 * MARGIN));
        assert!(checked(Duration::from_millis(200), MARGIN).is_ok());
        assert!(checked(MAX_TTL, MARGIN).is_ok());
        assert!(checked(MAX_TTL + Duration::from_nanos(1), MARGIN).is_err());
        assert!(checked(Duration::MAX, MARGIN).is_err());
    }

    #[test]
    fn without_a_margin_a_millisecond_is_the_shortest() {
        assert!(checked(Duration::from_micros(999), Duration::ZERO).is_err());
        let cut = checked(Duration::from_micros(1_999), Duration::ZERO).unwrap();
        assert_eq!(cut, Duration::from_millis(1));
    }
}
