//! `Quota`: how many permits a limiter grants in a window.

use std::time::Duration;

use super::{error::Error, limits::MAX_WINDOW};

/// How many permits a limiter grants in a window, and when they come back.
///
/// Each request contains its quota, and the store does not keep it. So a new deployment can use another one.
///
/// ```
/// use std::time::Duration;
/// use leasehold::store::Quota;
///
/// // One permit every 100 ms, and up to three at once after a pause.
/// let quota = Quota::fixed(10, Duration::from_secs(1))?.smooth(3)?;
/// assert_eq!(quota.most_at_once(), 3);
/// # Ok::<(), leasehold::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Quota {
    limit: u32,
    /// In whole milliseconds, the resolution of every store.
    window: Duration,
    kind: WindowKind,
}

/// When the permits of a limiter come back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WindowKind {
    /// All permits come back at the start of each window.
    Fixed,
    /// The permits come back one at a time.
    Smooth {
        /// How many permits can be taken at once after a pause.
        burst: u32,
    },
}

impl Quota {
    /// A quota of `limit` permits in each window of the server's clock. Windows begin at multiples of their length
    /// since 1970, so a window of a second is a second of the clock, and a window of a day is a day of UTC. The window
    /// is cut to whole milliseconds.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidLimit`] for a limit of 0, and [`Error::InvalidWindow`] for a window of less than a millisecond
    /// or more than [`MAX_WINDOW`].
    pub fn fixed(limit: u32, window: Duration) -> Result<Self, Error> {
        if limit == 0 {
            return Err(Error::InvalidLimit);
        }
        if window < Duration::from_millis(1) || window > MAX_WINDOW {
            return Err(Error::InvalidWindow { window });
        }
        let window = Duration::new(window.as_secs(), window.subsec_millis() * 1_000_000);
        Ok(Self {
            limit,
            window,
            kind: WindowKind::Fixed,
        })
    }

    /// The same quota with permits that come back one at a time: one permit after each `limit`-th of the window. After
    /// a pause up to `burst` permits can be taken at once.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidBurst`] for a burst of 0, or of more than the limit.
    pub fn smooth(mut self, burst: u32) -> Result<Self, Error> {
        let limit = self.limit;
        if burst == 0 || burst > limit {
            return Err(Error::InvalidBurst { burst, limit });
        }
        self.kind = WindowKind::Smooth { burst };
        Ok(self)
    }

    /// How many permits a window has.
    pub fn limit(&self) -> u32 {
        self.limit
    }

    /// The length of a window.
    pub fn window(&self) -> Duration {
        self.window
    }

    /// When the permits come back.
    pub fn window_kind(&self) -> WindowKind {
        self.kind
    }

    /// The most permits that can be taken at once: the burst of a smooth limiter, or the limit.
    pub fn most_at_once(&self) -> u32 {
        match self.kind {
            WindowKind::Fixed => self.limit,
            WindowKind::Smooth { burst } => burst,
        }
    }

    /// The window in milliseconds.
    pub(crate) fn window_millis(&self) -> i64 {
        // A year has 35 bits of milliseconds.
        i64::try_from(self.window.as_millis()).unwrap_or(i64::MAX)
    }

    /// How long one permit takes to come back, in nanoseconds. The time is rounded up, because rounding down would
    /// grant more than the limit.
    pub(crate) fn interval_nanos(&self) -> i64 {
        let nanos = self.window.as_nanos().div_ceil(u128::from(self.limit));
        // A year has 55 bits of nanoseconds.
        i64::try_from(nanos).unwrap_or(i64::MAX)
    }

    /// How long the permits of a whole burst take to come back, in nanoseconds. With fixed windows: those of a window.
    pub(crate) fn credit_nanos(&self) -> i64 {
        self.interval_nanos()
            .saturating_mul(self.most_at_once().into())
    }

    /// The longest debt of a smooth limiter that counts, in nanoseconds: that of a request with any burst for this
    /// window. (The intervals are rounded up, so with another limit it may be some nanoseconds more, which are
    /// forgotten.)
    pub(crate) fn max_debt_nanos(&self) -> i64 {
        let window = i64::try_from(self.window.as_nanos()).unwrap_or(i64::MAX);
        self.credit_nanos().max(window)
    }

    /// How long after the start of its window a grant can limit later requests, in milliseconds.
    pub(crate) fn memory_millis(&self) -> i64 {
        let window = self.window_millis();
        match self.kind {
            WindowKind::Fixed => window,
            WindowKind::Smooth { .. } => window + (self.credit_nanos() / 1_000_000 + 1).max(window),
        }
    }

    /// The word for the kind of windows, which is a part of the document's id.
    #[allow(dead_code, reason = "the store in memory has no documents")]
    pub(crate) fn kind(&self) -> &'static str {
        match self.kind {
            WindowKind::Fixed => "fixed",
            WindowKind::Smooth { .. } => "smooth",
        }
    }

    /// The longest time until the next permits come back if all are taken.
    pub(crate) fn longest_refill(&self) -> Duration {
        match self.kind {
            WindowKind::Fixed => self.window,
            WindowKind::Smooth { .. } => self.window / self.limit,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_limit_is_at_least_one_and_a_window_at_most_a_year() {
        assert!(matches!(Quota::fixed(0, SECOND), Err(Error::InvalidLimit)));
        for window in [
            Duration::ZERO,
            Duration::from_micros(999),
            MAX_WINDOW + Duration::from_nanos(1),
            Duration::MAX,
        ] {
            let quota = Quota::fixed(1, window);
            assert!(matches!(quota, Err(Error::InvalidWindow { .. })));
        }
        let shortest = Quota::fixed(u32::MAX, Duration::from_micros(1_999)).unwrap();
        assert_eq!(shortest.window(), Duration::from_millis(1));
        assert!(Quota::fixed(1, MAX_WINDOW).is_ok());
    }

    #[test]
    fn a_burst_is_at_most_the_limit() {
        let quota = Quota::fixed(3, SECOND).unwrap();
        assert!(quota.smooth(0).is_err() && quota.smooth(4).is_err());
        assert_eq!(quota.most_at_once(), 3);
        assert_eq!(quota.smooth(2).unwrap().most_at_once(), 2);
    }

    #[test]
    fn the_permits_of_a_window_take_no_less_than_a_window_to_be_earned_back() {
        for (limit, window) in [(3, SECOND), (1, MAX_WINDOW), (u32::MAX, SECOND)] {
            let quota = Quota::fixed(limit, window).unwrap();
            assert!(
                quota.credit_nanos() as u128 >= window.as_nanos(),
                "{quota:?}"
            );
        }
    }
}
