//! How long to wait before a held lock is asked for again.

use std::time::Duration;

/// The pause after the first refusal, before jitter.
const FIRST: Duration = Duration::from_millis(10);
/// The longest pause, before jitter: how late a release is noticed at the worst.
const LONGEST: Duration = Duration::from_secs(1);

/// The pause after this many refusals (0 after the first).
///
/// It doubles from 10 ms up to 1 s and is cut by a jitter to between a half and the whole, so that
/// clients that were refused together do not come back together. It never reaches past the
/// earliest expiry, which is the first moment at which the lock is free for certain.
///
/// `chance` is a random number from 0 to 1.
pub(crate) fn pause(refusals: u32, expires_in: Duration, chance: f64) -> Duration {
    let doubled = FIRST
        .saturating_mul(2u32.saturating_pow(refusals))
        .min(LONGEST);
    let jittered = doubled.mul_f64(0.5 + 0.5 * chance.clamp(0.0, 1.0));
    jittered.min(expires_in)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(3600);

    #[test]
    fn it_doubles_up_to_the_longest() {
        let pauses: Vec<_> = [0, 1, 2, 6, 7, 40]
            .map(|refusals| pause(refusals, LONG, 1.0).as_millis())
            .into();
        assert_eq!(pauses, [10, 20, 40, 640, 1000, 1000]);
    }

    #[test]
    fn the_jitter_keeps_between_a_half_and_the_whole() {
        assert_eq!(pause(7, LONG, 0.0), Duration::from_millis(500));
        assert_eq!(pause(7, LONG, 0.5), Duration::from_millis(750));
        assert_eq!(pause(7, LONG, 7.0), Duration::from_secs(1));
    }

    #[test]
    fn it_never_sleeps_past_the_earliest_expiry() {
        let soon = Duration::from_millis(3);
        assert_eq!(pause(7, soon, 1.0), soon);
        assert_eq!(pause(7, Duration::ZERO, 1.0), Duration::ZERO);
    }
}
