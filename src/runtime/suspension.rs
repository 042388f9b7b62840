//! How long the machine was suspended. The clock of tokio stands still meanwhile, and that of the server does not.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use tokio::time::Instant;

/// When a request was sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SentAt {
    pub(crate) instant: Instant,
    /// How long the machine had been suspended in all by then, or a little before.
    pub(crate) suspended: Duration,
}

impl SentAt {
    /// For a request that is sent now.
    pub(crate) fn now() -> Self {
        let suspended = total();
        let instant = Instant::now();
        Self { instant, suspended }
    }
}

/// How long the machine was suspended since some fixed time before the program started. Only the difference of two
/// values means something. No value is less than an earlier one, so what was over once stays over.
pub(crate) fn total() -> Duration {
    // The two clocks of the machine are not read at the same moment, so each reading differs by nanoseconds.
    #[cfg(feature = "testing")]
    if crate::random::seeded::is_on() {
        return Duration::ZERO;
    }
    static GREATEST: AtomicU64 = AtomicU64::new(0);
    greatest(&GREATEST, reading())
}

/// The greatest of this reading and those before.
fn greatest(before: &AtomicU64, reading: Duration) -> Duration {
    let nanos = u64::try_from(reading.as_nanos()).unwrap_or(u64::MAX);
    let known = before.load(Ordering::Relaxed);
    if nanos <= known {
        // This is the usual case, and spares the other threads the cost of a write.
        return Duration::from_nanos(known);
    }
    let known = before.fetch_max(nanos, Ordering::Relaxed);
    Duration::from_nanos(known.max(nanos))
}

/// One reading of the clocks.
#[cfg(any(target_os = "linux", target_os = "android"))]
fn reading() -> Duration {
    use rustix::time::{ClockId, Timespec, clock_gettime};

    let nanos = |time: Timespec| i128::from(time.tv_sec) * 1_000_000_000 + i128::from(time.tv_nsec);
    let awake = || nanos(clock_gettime(ClockId::Monotonic));
    loop {
        let before = awake();
        let all = nanos(clock_gettime(ClockId::Boottime));
        let after = awake();
        // If the thread stood still between the readings, the difference of the two clocks says nothing.
        if after - before <= EXACT {
            return Duration::from_nanos(u64::try_from(all - after).unwrap_or(0));
        }
    }
}

/// By how much a reading may be too small, in nanoseconds.
#[cfg(any(target_os = "linux", target_os = "android"))]
const EXACT: i128 = 1_000_000;

/// Without a clock that counts suspensions, one reading is by the time of day. A time of day that is set forward looks
/// like a suspension, which is on the safe side.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
fn reading() -> Duration {
    use std::{
        sync::OnceLock,
        time::{Instant, SystemTime},
    };

    static START: OnceLock<(Instant, SystemTime)> = OnceLock::new();
    let (start, of_day) = START.get_or_init(|| (Instant::now(), SystemTime::now()));
    let awake = start.elapsed();
    let all = SystemTime::now().duration_since(*of_day);
    all.unwrap_or_default().saturating_sub(awake)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_does_not_count_while_the_machine_is_awake() {
        let before = total();
        std::thread::sleep(Duration::from_millis(50));
        let slept = total().saturating_sub(before);
        assert!(slept <= Duration::from_millis(1), "{slept:?}");
    }

    #[test]
    fn no_reading_counts_for_less_than_an_earlier_one() {
        let before = AtomicU64::new(0);
        let counts = [2, 5, 3, 6].map(|it| greatest(&before, Duration::from_secs(it)).as_secs());
        assert_eq!(counts, [2, 5, 5, 6]);
    }
}
