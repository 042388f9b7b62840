//! How long the machine was suspended. The clock of tokio stands still meanwhile, and that of the server does not.

use std::time::Duration;

/// How long the machine was suspended since some fixed time before the program started. Only the difference of two
/// readings means something. A reading may be a little too large, if the thread stood still in the middle of it.
#[cfg(any(target_os = "linux", target_os = "android"))]
pub(crate) fn total() -> Duration {
    use rustix::time::{ClockId, Timespec, clock_gettime};

    let nanos = |time: Timespec| i128::from(time.tv_sec) * 1_000_000_000 + i128::from(time.tv_nsec);
    let awake = clock_gettime(ClockId::Monotonic);
    let all = clock_gettime(ClockId::Boottime);
    Duration::from_nanos(u64::try_from(nanos(all) - nanos(awake)).unwrap_or(0))
}

/// Without a clock that counts suspensions, by the time of day. Somebody who sets it forward looks like a suspension,
/// which is on the safe side.
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
        let readings = |()| (0..5).map(|_| total()).min().unwrap_or_default();
        let before = readings(());
        std::thread::sleep(Duration::from_millis(50));
        // The smallest of several readings is free of the pauses of the thread.
        let after = readings(());
        assert!(after.saturating_sub(before) < Duration::from_millis(25));
    }
}
