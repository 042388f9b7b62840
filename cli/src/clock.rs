//! The clock by which a command is ended, and the end of a lease on that clock.

use std::collections::VecDeque;

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

/// A pair of times is kept if one clock has gone this many milliseconds further than the other since the last pair that
/// was kept. The time between the two readings of a pair makes a smaller difference.
const DIFFERENCE: u64 = 50;
/// The most pairs that are kept. So many suspensions are not forgotten during a lease.
const MOST: usize = 1_000;

/// Pairs of times that two clocks showed at the same moment: the clock of the leases, which stands still while the
/// machine is suspended, and [`now`]. Between two pairs both clocks went at the same speed.
pub struct ClockSamples {
    pairs: VecDeque<(Instant, i64)>,
    /// Whether pairs were forgotten.
    forgets: bool,
}

impl ClockSamples {
    pub fn new() -> Self {
        let mut this = Self::empty();
        this.sample();
        this
    }

    fn empty() -> Self {
        Self {
            pairs: VecDeque::new(),
            forgets: false,
        }
    }

    /// Reads both clocks.
    pub fn sample(&mut self) {
        // This clock is read first, so that a pause between the two readings can only make a lease shorter.
        let here = now();
        self.add(Instant::now(), here);
    }

    fn add(&mut self, instant: Instant, here: i64) {
        let differs = |(at, then): &(Instant, i64)| {
            let passed = instant.saturating_duration_since(*at).as_millis();
            let passed = i64::try_from(passed).unwrap_or(i64::MAX);
            here.saturating_sub(*then).abs_diff(passed) > DIFFERENCE
        };
        if self.pairs.back().is_none_or(differs) {
            self.pairs.push_back((instant, here));
        }
        if self.pairs.len() > MOST {
            self.pairs.pop_front();
            self.forgets = true;
        }
    }

    /// Returns when a lease ends, on the clock of [`now`]. The lease was requested at `asked`, and ends at `end`.
    ///
    /// The result is counted from a sample before the request, so it includes all time since then in which the machine
    /// was suspended.
    pub fn until(&self, asked: Instant, end: Instant) -> i64 {
        let before = self.pairs.iter().rev().find(|(at, _)| *at <= asked);
        // `asked` is computed from the end, by the clock of a server, and may be before this process began.
        let first = self.pairs.front().filter(|_| !self.forgets);
        match before.or(first) {
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
    use std::time::Duration;

    use super::*;

    #[test]
    fn time_in_suspension_is_a_part_of_a_lease() {
        let start = Instant::now();
        let second = Duration::from_secs(1);
        let mut samples = ClockSamples::empty();
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

    /// The answer to a renewal may come minutes later, if the ttl is long.
    #[test]
    fn a_suspension_before_a_late_answer_is_not_forgotten() {
        let (start, second) = (Instant::now(), Duration::from_secs(1));
        let mut samples = ClockSamples::empty();
        samples.add(start, 0);
        for number in 1..1_000 {
            // The machine is suspended for ten minutes in the first second. The readings vary by some milliseconds.
            let varies = i64::from(number % 7) - 3;
            let here = 600_000 + i64::from(number) * 1_000 + varies;
            samples.add(start + second * number, here);
        }
        assert_eq!(samples.until(start, start + 3_600 * second), 3_600_000);
        assert_eq!(samples.pairs.len(), 2);
    }

    #[test]
    fn the_pairs_have_a_bound() {
        let (start, second) = (Instant::now(), Duration::from_secs(1));
        let mut samples = ClockSamples::empty();
        for number in 0..10_000 {
            samples.add(start + second * number, i64::from(number) * 2_000);
        }
        assert_eq!(samples.pairs.len(), MOST);
        assert_eq!(samples.until(start, start + second), i64::MIN);
    }
}
