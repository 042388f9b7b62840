//! The processor time of this process, and of a server on the same machine.

use std::{fs, path::PathBuf, time::Duration};

use rustix::time::{ClockId, clock_gettime};

/// The user and system time of all threads so far.
pub fn used() -> Duration {
    // This clock counts both, with a resolution of a nanosecond.
    time(ClockId::ProcessCPUTime)
}

/// A clock that all processes of the machine share, and that is never set.
pub fn monotonic() -> Duration {
    time(ClockId::Monotonic)
}

/// A server on this machine.
#[derive(Clone, Copy, Debug)]
pub struct Server {
    pub process: u32,
}

impl Server {
    /// The user and system time of its threads so far; `None` if it cannot be read. Threads that have ended are not
    /// counted, but servers keep their threads.
    pub fn used(self) -> Option<Duration> {
        let tasks = PathBuf::from(format!("/proc/{}/task", self.process));
        let mut nanos = 0;
        for task in fs::read_dir(tasks).ok()? {
            // The thread may have ended a moment ago.
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
    // The kernel returns no negative values.
    let nanos = u32::try_from(time.tv_nsec).unwrap_or(0);
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), nanos)
}
