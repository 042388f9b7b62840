//! What this process, and a server on the same machine, have had of the processors.

use std::{fs, path::PathBuf, time::Duration};

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

/// A server on this machine.
#[derive(Clone, Copy, Debug)]
pub struct Server {
    pub process: u32,
}

impl Server {
    /// User and system time of its threads so far; `None` if it is not to be seen. Those that have ended do
    /// not count, but servers keep theirs.
    pub fn used(self) -> Option<Duration> {
        let tasks = PathBuf::from(format!("/proc/{}/task", self.process));
        let mut nanos = 0;
        for task in fs::read_dir(tasks).ok()? {
            // It may have ended a moment ago.
            let Ok(text) = fs::read_to_string(task.ok()?.path().join("schedstat")) else {
                continue;
            };
            nanos += text.split_whitespace().next()?.parse::<u64>().ok()?;
        }
        Some(Duration::from_nanos(nanos))
    }
}

fn time(clock: ClockId) -> Duration {
    let time = clock_gettime(clock);
    // Neither is ever below zero.
    let nanos = u32::try_from(time.tv_nsec).unwrap_or(0);
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), nanos)
}
