//! Tests in real time, on a machine that may stand still for a while.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

/// How often the clock is looked at.
const LOOK: Duration = Duration::from_millis(5);
/// After which time a test is not begun once more but for a last time.
const ENOUGH: Duration = Duration::from_secs(300);

/// What a process did too late, in a test whose other faults are panics.
pub struct Late {
    what: String,
    /// By how much, at the least.
    by: Duration,
    /// How long the step took in which it was, if that is short on a machine that is quick.
    step: Duration,
}

impl Late {
    pub fn new(what: impl Into<String>, by: Duration) -> Self {
        Self {
            what: what.into(),
            by,
            step: Duration::ZERO,
        }
    }

    pub fn in_a_step_of(self, step: Duration) -> Self {
        Self { step, ..self }
    }
}

impl fmt::Debug for Late {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { what, by, step } = self;
        write!(f, "late by {by:?} in a step of {step:?}: {what}")
    }
}

/// A thread that sees for how long the machine lets threads wait that have something to do.
struct Stalls {
    ended: Arc<AtomicBool>,
    longest: Option<JoinHandle<Duration>>,
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
        let longest = Some(longest);
        Self { ended, longest }
    }

    fn longest(mut self) -> Duration {
        self.ended.store(true, Relaxed);
        self.longest.take().unwrap().join().unwrap()
    }
}

impl Drop for Stalls {
    fn drop(&mut self) {
        self.ended.store(true, Relaxed);
    }
}

/// How long before the end of its lease a command is to be dead.
pub fn spare(ttl: u64) -> Duration {
    (Duration::from_secs(ttl) / 20).min(Duration::from_secs(1))
}

/// Tests with a lease of this many seconds, in whose last moments processes have to get the processor. One that is
/// late is excused if the machine kept a thread from the processor meanwhile for a time that explains it, or the test
/// saw it take that long to start; then it has to go well with a longer lease. The last time it has to go well in any case.
pub fn keeping_pace(seconds: u64, test: impl Fn(u64) -> Result<(), Late>) {
    let start = Instant::now();
    for longer in [1, 3].into_iter().chain(std::iter::repeat(10)) {
        let is_last = start.elapsed() > ENOUGH;
        let stalls = Stalls::watch();
        let Err(late) = test(seconds * longer) else {
            return;
        };
        let stall = stalls.longest();
        // A process wakes up, sends a signal, and another ends of it: each may have to wait.
        let is_explained = stall >= late.by / 3 || late.step >= late.by;
        let is_excused = !is_last && is_explained;
        assert!(
            is_excused,
            "{late:?}, and the machine stood still for {stall:?}"
        );
        println!("{late:?}, as the machine stood still for {stall:?}: once more");
    }
}

/// A process of a command that did not end with its lease, but does so later.
pub fn outlived(ttl: u64, is_there: impl Fn() -> bool) -> Late {
    let start = Instant::now();
    super::until(|| (!is_there()).then_some(()));
    Late::new("a process outlived its lease", spare(ttl) + start.elapsed())
}
