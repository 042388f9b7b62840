//! The clock by which a command is ended, and the end of a lease on that clock.

use std::{collections::VecDeque, time::Duration};

use rustix::time::{ClockId, clock_gettime};
use tokio::time::Instant;

/// The milliseconds since the boot, the same for all processes of the host. On Linux they include the time in which the
/// machine was suspended.
pub fn now() -> i64 {
    #[cfg(target_os = "linux")]
    let clock = ClockId::Boottime;
    #[cfg(not(target_os = "linux"))]
    let clock = ClockId::Monotonic;
    let time = clock_gettime(clock);
    time.tv_sec * 1_000 + time.tv_nsec / 1_000_000
}

/// Pairs of times that two clocks showed at the same moment: the clock of the leases, which stands still while the
/// machine is suspended, and [`now`].
pub struct ClockSamples {
    pairs: VecDeque<(Instant, i64)>,
    /// How long a pair is kept.
    kept: Duration,
}

impl ClockSamples {
    pub fn new(kept: Duration) -> Self {
        let mut this = Self {
            pairs: VecDeque::new(),
            kept,
        };
        this.sample();
        this
    }

    /// Reads both clocks.
    pub fn sample(&mut self) {
        // This clock is read first, so that a pause between the two readings can only make a lease shorter.
        let here = now();
        self.add(Instant::now(), here);
    }

    fn add(&mut self, instant: Instant, here: i64) {
        self.pairs.push_back((instant, here));
        // One pair from before that time stays, for leases that were requested at its beginning.
        let is_old = |at: Instant| instant.saturating_duration_since(at) > self.kept;
        while self.pairs.get(1).is_some_and(|(second, _)| is_old(*second)) {
            self.pairs.pop_front();
        }
    }

    /// Returns when a lease ends, on the clock of [`now`]. The lease was requested at `asked`, and ends at `end`.
    ///
    /// The result is counted from a sample before the request, so it includes all time since then in which the machine
    /// was suspended.
    pub fn until(&self, asked: Instant, end: Instant) -> i64 {
        let before = self.pairs.iter().rev().find(|(at, _)| *at <= asked);
        match before.or(self.pairs.front()) {
            Some((at, here)) => {
                let left = end.saturating_duration_since(*at).as_millis();
                here.saturating_add(i64::try_from(left).unwrap_or(i64::MAX))
            }
            None => i64::MIN,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_in_suspension_is_a_part_of_a_lease() {
        let start = Instant::now();
        let second = Duration::from_secs(1);
        let mut samples = ClockSamples {
            pairs: VecDeque::new(),
            kept: 60 * second,
        };
        samples.add(start, 100_000);
        samples.add(start + second, 101_000);
        let until = |samples: &ClockSamples| samples.until(start + second, start + 31 * second);
        assert_eq!(until(&samples), 131_000);
        // The machine was suspended for an hour, in which the other clock stood still.
        samples.add(start + 2 * second, 102_000 + 3_600_000);
        assert_eq!(until(&samples), 131_000);
        // A lease that is requested afterwards has all of its time.
        let later = samples.until(start + 3 * second, start + 33 * second);
        assert_eq!(later, 102_000 + 3_600_000 + 31_000);
    }

    #[test]
    fn samples_are_kept_for_as_long_as_they_are_of_use() {
        let start = Instant::now();
        let second = Duration::from_secs(1);
        let mut samples = ClockSamples {
            pairs: VecDeque::new(),
            kept: 5 * second,
        };
        for number in 0..100 {
            samples.add(start + second * number, i64::from(number) * 1_000);
        }
        assert!(samples.pairs.len() <= 7, "{}", samples.pairs.len());
        assert_eq!(
            samples.until(start + 95 * second, start + 100 * second),
            100_000
        );
    }
}
