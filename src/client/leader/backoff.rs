//! The pause of a candidate between a failure of its work and the next campaign.

use std::time::Duration;

/// The pause after the first failure, before jitter.
const FIRST: Duration = Duration::from_secs(1);
/// The longest pause.
const LONGEST: Duration = Duration::from_secs(60);
/// After a term that lasted at least this long, the pauses start again with the shortest one.
const LASTING: Duration = LONGEST;

/// Counts the terms in a row whose work failed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Backoff {
    failures: u32,
}

impl Backoff {
    /// Records how long a term `lasted`, however it ended.
    pub(super) fn after_term(&mut self, lasted: Duration) {
        if lasted >= LASTING {
            self.failures = 0;
        }
    }

    /// Counts a failure of the work in the last recorded term, and returns the pause before the next campaign.
    ///
    /// The pause doubles from 1 s up to 60 s. A jitter then shortens it to between a half and the whole, so that
    /// processes whose work fails for the same reason do not campaign again at the same moment. `chance` is a random
    /// number from 0 to 1.
    pub(super) fn after_failure(&mut self, chance: f64) -> Duration {
        let doubled = FIRST.saturating_mul(2u32.saturating_pow(self.failures));
        self.failures = self.failures.saturating_add(1);
        let jitter = 0.5 + 0.5 * chance.clamp(0.0, 1.0);
        doubled.min(LONGEST).mul_f64(jitter)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pause_doubles_up_to_the_longest() {
        let mut backoff = Backoff::default();
        let pauses: Vec<_> = (0..8)
            .map(|_| backoff.after_failure(1.0).as_secs())
            .collect();
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 60, 60]);
        backoff.failures = u32::MAX;
        assert_eq!(backoff.after_failure(1.0), LONGEST);
    }

    #[test]
    fn the_jitter_keeps_between_a_half_and_the_whole() {
        let pause = |chance| Backoff::default().after_failure(chance);
        assert_eq!(pause(0.0), FIRST / 2);
        assert_eq!(pause(1.0), FIRST);
        assert_eq!(pause(7.0), FIRST);
    }

    #[test]
    fn a_term_that_lasted_begins_anew_and_a_short_one_does_not() {
        let mut backoff = Backoff { failures: 3 };
        backoff.after_term(LASTING - Duration::from_millis(1));
        assert_eq!(backoff.after_failure(1.0), FIRST * 8);
        backoff.after_term(LASTING);
        assert_eq!(backoff.after_failure(1.0), FIRST);
    }
}
