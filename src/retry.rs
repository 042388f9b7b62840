//! After which pause a request is sent again, and how often an operation is tried. `model/error_kind.rs` says after
//! which errors, and `WaitPolicy` for how long a caller waits in total.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::{model::Error, random};

/// The first pause, before it doubles, and before jitter.
const FIRST: Duration = Duration::from_millis(10);
/// The shortest pause before a held lock, or permits of a full limiter, are requested again, even if they are free sooner.
pub(crate) const SHORTEST_PAUSE: Duration = Duration::from_millis(1);

/// The longest pause of a waiter that has no process ahead of it. If the store does not report a release, this waiter
/// notices it after this time at most.
pub(crate) const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// How long a request waits for an answer before it is sent once more, if its answer depends on other requests or other
/// tasks depend on it.
pub(crate) const OVERDUE: Duration = Duration::from_secs(1);
/// After this many pauses a waiter pauses for [`LONGEST_PAUSE`] before jitter, which is the longest pause.
pub(crate) const PAUSES_TO_LONGEST: u32 = 7;
/// The longest pause between the requests of background work, for which no caller waits.
pub(crate) const BACKGROUND: Duration = Duration::from_secs(10);

/// The pause before the next request, after this many pauses.
///
/// The pause doubles from 10 ms up to `longest`. A jitter then shortens it to between a half and the whole, so that
/// clients that were refused at the same moment do not retry at the same moment. `chance` is a random number from 0 to
/// 1.
pub(crate) fn pause(pauses: u32, longest: Duration, chance: f64) -> Duration {
    pause_from(FIRST, pauses, longest, chance)
}

/// As [`pause`], but doubling from `first`.
pub(crate) fn pause_from(first: Duration, pauses: u32, longest: Duration, chance: f64) -> Duration {
    let doubled = first.saturating_mul(2u32.saturating_pow(pauses));
    doubled
        .min(longest)
        .mul_f64(0.5 + 0.5 * chance.clamp(0.0, 1.0))
}

/// The pause before a held lock is requested again. It ends no later than the earliest expiry of a holder, because no
/// store reports an expiry to waiters. It is at least 1 ms. `expires_in` is `None` if no holder is known.
pub(crate) fn pause_until_free(pauses: u32, expires_in: Option<Duration>, chance: f64) -> Duration {
    let pause = pause(pauses, LONGEST_PAUSE, chance);
    expires_in.map_or(pause, |free| pause.min(free.max(SHORTEST_PAUSE)))
}

/// The next request to a full limiter is sent after this time at the latest, because the document may have been removed,
/// or the server's clock may have been wrong.
const RECHECK: Duration = Duration::from_secs(10 * 60);
/// The next request to a full limiter is sent a random time after permits become available, so that not all processes
/// send theirs at once. That time is at most this share of the time in which they come back, and at most [`MAX_DELAY`].
const MAX_DELAY_SHARE: f64 = 0.05;
const MAX_DELAY: Duration = Duration::from_secs(1);

/// When the next request is sent to a limiter that is full until `free`, at this instant or later. `refill` is how long
/// its permits take to come back.
pub(crate) fn after_refill(free: Instant, refill: Duration, now: Instant, chance: f64) -> Instant {
    let late = refill.mul_f64(MAX_DELAY_SHARE * chance).min(MAX_DELAY);
    let next = (free + late).min(now + RECHECK);
    next.max(now + SHORTEST_PAUSE)
}

/// The longest wait that an `Instant` is sure to express: thirty years.
const LONGEST_WAIT: Duration = Duration::from_secs(30 * 365 * 24 * 60 * 60);

/// When a wait that began at this time is over.
pub(crate) fn wait_end(since: Instant, wait: Duration) -> Instant {
    since + wait.min(LONGEST_WAIT)
}

/// How many times an operation is sent before its error is returned to the caller.
pub(crate) const TRIES: u32 = 3;

/// Counts the tries of one operation.
#[derive(Debug, Default)]
pub(crate) struct Tries {
    failed: u32,
}

impl Tries {
    /// Counts a failed try, and returns the pause before the next one. `None` if a retry cannot help, or [`TRIES`]
    /// tries have failed.
    pub(crate) fn pause_after(&mut self, error: &Error) -> Option<Duration> {
        self.failed += 1;
        let again = self.failed < TRIES && error.is_retryable();
        // The first pause is skipped, because a store that has failed needs more time than a held key.
        again.then(|| pause(self.failed, LONGEST_PAUSE, random::fraction()))
    }

    /// Counts a failed try, and pauses before the next one, for `longest` at most. Fails with this error if there is no
    /// [next try](Self::pause_after).
    pub(crate) async fn pause(&mut self, error: Error, longest: Duration) -> Result<(), Error> {
        let pause = self.pause_after(&error).ok_or(error)?;
        sleep(pause.min(longest)).await;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_doubles_up_to_the_longest() {
        let pauses = [0, 1, 2, 6, PAUSES_TO_LONGEST, 40]
            .map(|pauses| pause(pauses, LONGEST_PAUSE, 1.0).as_millis());
        assert_eq!(pauses, [10, 20, 40, 640, 1000, 1000]);
        assert_eq!(pause(40, BACKGROUND, 1.0), BACKGROUND);
        let of_leader = |pauses| pause_from(LONGEST_PAUSE, pauses, 60 * LONGEST_PAUSE, 1.0);
        assert_eq!(
            [0, 5, 6, u32::MAX].map(|it| of_leader(it).as_secs()),
            [1, 32, 60, 60]
        );
    }

    #[test]
    fn the_jitter_keeps_between_a_half_and_the_whole() {
        assert_eq!(pause(7, LONGEST_PAUSE, 0.0), Duration::from_millis(500));
        assert_eq!(pause(7, LONGEST_PAUSE, 0.5), Duration::from_millis(750));
        assert_eq!(pause(7, LONGEST_PAUSE, 7.0), Duration::from_secs(1));
    }

    #[test]
    fn it_never_sleeps_past_the_earliest_expiry_and_never_spins() {
        let soon = Duration::from_millis(3);
        assert_eq!(pause_until_free(7, Some(soon), 1.0), soon);
        assert_eq!(
            pause_until_free(7, Some(Duration::ZERO), 1.0),
            SHORTEST_PAUSE
        );
        assert_eq!(pause_until_free(0, None, 1.0), FIRST);
    }

    #[test]
    fn what_may_pass_is_tried_three_times() {
        let passing = Error::TimedOut {
            store: "the store".to_owned(),
            operation: "acquire",
            limit: Duration::from_secs(1),
        };
        let mut tries = Tries::default();
        assert!(tries.pause_after(&passing).is_some());
        assert!(tries.pause_after(&passing).is_some());
        assert!(tries.pause_after(&passing).is_none());
        assert!(Tries::default().pause_after(&Error::Closed).is_none());
    }
}
