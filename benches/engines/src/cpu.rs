//! What this process has had of the processors.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// User and system time of all threads so far.
pub fn used() -> Duration {
    // The clock counts both, to the nanosecond.
    time(ClockId::ProcessCPUTime)
}

/// A clock that all processes of the machine share, and that nobody sets.
pub fn monotonic() -> Duration {
    time(ClockId::Monotonic)
}

fn time(clock: ClockId) -> Duration {
    let time = clock_gettime(clock);
    // Neither is ever below zero.
    let nanos = u32::try_from(time.tv_nsec).unwrap_or(0);
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), nanos)
}
