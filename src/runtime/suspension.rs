//! How long the machine was suspended. The clock of tokio stands still meanwhile, and that of the server does not.

use std::time::Duration;

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

/// By how much a reading of [`total`] may be too small.
pub(crate) const INEXACT: Duration = Duration::from_millis(1);

/// How long the machine was suspended since some fixed time before the program started. Only the difference of two
/// readings means something.
#[cfg(any(target_os = "linux", target_os = "android"))]
pub(crate) fn total() -> Duration {
    use rustix::time::{ClockId, Timespec, clock_gettime};

    let nanos = |time: Timespec| i128::from(time.tv_sec) * 1_000_000_000 + i128::from(time.tv_nsec);
    let awake = || nanos(clock_gettime(ClockId::Monotonic));
    loop {
        let before = awake();
        let all = nanos(clock_gettime(ClockId::Boottime));
        let after = awake();
        // If the thread stood still between the readings, the difference of the two clocks says nothing.
        if after - before <= INEXACT.as_nanos() as i128 {
            return Duration::from_nanos(u64::try_from(all - after).unwrap_or(0));
        }
    }
}

/// Without a clock that counts suspensions, by the time of day. A time of day that is set forward looks like a
/// suspension, which is on the safe side.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
pub(crate) fn total() -> Duration {
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
}
