//! The clock by which a command is ended, and until when a lease lasts on it.

use std::{collections::VecDeque, time::Duration};

use rustix::time::{ClockId, clock_gettime};
use tokio::time::Instant;

/// The milliseconds since the boot, those in suspension too where that is counted. The same for all
/// processes of the host.
pub fn now() -> i64 {
    #[cfg(target_os = "linux")]
    let clock = ClockId::Boottime;
    #[cfg(not(target_os = "linux"))]
    let clock = ClockId::Monotonic;
    let time = clock_gettime(clock);
    time.tv_sec * 1_000 + time.tv_nsec / 1_000_000
}

/// What two clocks have shown at the same moments: that of the leases, which stands still while the machine
/// is suspended, and this one.
pub struct ClockSamples {
    pairs: VecDeque<(Instant, i64)>,
    /// How long a pair is of use.
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
        // This one first: what comes in between makes a lease shorter.
        let here = now();
        self.add(Instant::now(), here);
    }

    fn add(&mut self, instant: Instant, here: i64) {
        self.pairs.push_back((instant, here));
        // The oldest that is of use is the last before that time.
        let is_old = |at: Instant| instant.saturating_duration_since(at) > self.kept;
        while self.pairs.get(1).is_some_and(|(second, _)| is_old(*second)) {
            self.pairs.pop_front();
        }
    }

    /// When a lease ends, on [`now`], that was asked for at an instant and ends at another.
    ///
    /// It is reckoned from a look before it was asked for, so that no time in suspension since then is
    /// missing.
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
        // An hour, of which the other clock knows nothing.
        samples.add(start + 2 * second, 102_000 + 3_600_000);
        assert_eq!(until(&samples), 131_000);
        // What is asked for afterwards has all of its time.
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
