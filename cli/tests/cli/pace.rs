//! Tests in real time, on a machine that may stand still for a while.

use std::{
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

/// How often the clock is looked at.
const LOOK: Duration = Duration::from_millis(5);

/// A thread that sees for how long the machine lets threads wait that have something to do.
struct Stalls {
    ended: Arc<AtomicBool>,
    longest: JoinHandle<Duration>,
}

impl Stalls {
    fn watch() -> Self {
        let ended = Arc::new(AtomicBool::new(false));
        let over = ended.clone();
        let longest = thread::spawn(move || {
            let mut longest = Duration::ZERO;
            let mut last = Instant::now();
            while !over.load(Relaxed) {
                thread::sleep(LOOK);
                longest = longest.max(last.elapsed().saturating_sub(LOOK));
                last = Instant::now();
            }
            longest
        });
        Self { ended, longest }
    }

    fn longest(self) -> Duration {
        self.ended.store(true, Relaxed);
        self.longest.join().unwrap()
    }
}

/// Tests with a lease of this many seconds, in whose last moments a process has to get the processor. A failure
/// does not count if the machine demonstrably gave none to a thread for as long as a part of those moments; then
/// it has to go well with a longer lease.
pub fn keeping_pace(seconds: u64, test: impl Fn(u64)) {
    for longer in [1, 3, 10] {
        let ttl = Duration::from_secs(seconds * longer);
        // A command is to be dead so long before the end of its lease.
        let spare = (ttl / 20).min(Duration::from_secs(1));
        let stalls = Stalls::watch();
        let tested = catch_unwind(AssertUnwindSafe(|| test(ttl.as_secs())));
        let stall = stalls.longest();
        match tested {
            Ok(()) => return,
            Err(_) if stall > spare / 3 && longer < 10 => {
                println!("the machine stood still for {stall:?}: once more");
            }
            Err(failure) => resume_unwind(failure),
        }
    }
}
