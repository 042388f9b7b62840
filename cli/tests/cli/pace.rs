//! Support for tests that depend on real time, on a machine that may not run their threads for a while.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

/// How often the clock is read.
const INTERVAL: Duration = Duration::from_millis(5);
/// How long a test is repeated after an excused failure. The repetition after this time is the last one.
const MAX_DURATION: Duration = Duration::from_secs(300);

/// The failure of a test because a process was too late. All other failures are panics.
pub struct Late {
    what: String,
    /// By at least how much the process was late.
    by: Duration,
    /// How long the step took in which the process was late, if that step is short on an idle machine.
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

/// A thread that measures how long the machine does not run a thread that is ready to run.
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
                thread::sleep(INTERVAL);
                longest = longest.max(last.elapsed().saturating_sub(INTERVAL));
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

/// How long before the end of its lease a command must be dead.
pub fn spare(ttl: u64) -> Duration {
    (Duration::from_secs(ttl) / 20).min(Duration::from_secs(1))
}

/// Runs a test with a lease of this many seconds. At the end of the lease, processes must get the processor in time.
///
/// A late process is excused in two cases: the machine meanwhile did not run a thread for long enough to explain it, or
/// the process took that long to start. The test is then repeated with a longer lease. The last repetition must
/// succeed.
pub fn keeping_pace(seconds: u64, test: impl Fn(u64) -> Result<(), Late>) {
    let start = Instant::now();
    for longer in [1, 3].into_iter().chain(std::iter::repeat(10)) {
        let is_last = start.elapsed() > MAX_DURATION;
        let stalls = Stalls::watch();
        let Err(late) = test(seconds * longer) else {
            return;
        };
        let stall = stalls.longest();
        // A third of the delay is enough, because three steps may each have to wait for the processor: a process wakes
        // up, it sends a signal, and the other process ends.
        let is_explained = stall >= late.by / 3 || late.step >= late.by;
        let is_excused = !is_last && is_explained;
        assert!(
            is_excused,
            "{late:?}, and the machine stood still for {stall:?}"
        );
        println!("{late:?}, as the machine stood still for {stall:?}: once more");
    }
}

/// The failure of a process that outlives its lease. Waits until the process has ended.
pub fn outlived(ttl: u64, is_there: impl Fn() -> bool) -> Late {
    let start = Instant::now();
    super::until(|| (!is_there()).then_some(()));
    Late::new("a process outlived its lease", spare(ttl) + start.elapsed())
}
