//! A thread beside the runtimes, which starts what is due.
//!
//! A worker of a multi-threaded runtime of tokio keeps the task that it woke or spawned last for itself: no other worker
//! takes it (the "LIFO slot" in tokio's documentation). If the task that did so goes on computing, the other one waits
//! for it, although other workers are idle. And a worker that waited for I/O and timers on behalf of all, and then
//! computes, hands that on to no other worker. A task that is woken or spawned by this thread, which is no worker, goes
//! to the queue that all workers share. An idle worker takes it from there, and then waits for I/O and timers if no
//! other worker does.
//!
//! So what must not wait for a caller of this library starts here: the renewals, the releases in the background, and
//! operations whose callers have gone.
//!
//! A current-thread runtime has one thread, so nothing can be started beside a task that computes. There this module
//! changes nothing: a paused clock goes on only when that runtime has nothing to do, and a wake from another thread
//! would come at a moment that no test controls.

use std::{
    collections::{BTreeMap, VecDeque},
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    thread,
};

use parking_lot::{Condvar, Mutex, MutexGuard};
use tokio::{
    runtime::{Handle, RuntimeFlavor},
    sync::Notify,
    time::Instant,
};

/// What the thread runs.
type Job = Box<dyn FnOnce() + Send>;

/// The work of the thread. The process has one thread, from the first work on.
static OUTSIDE: Mutex<Outside> = Mutex::new(Outside {
    jobs: VecDeque::new(),
    alarms: BTreeMap::new(),
    last_alarm: 0,
    has_thread: false,
});

/// Wakes the thread, because there is other work.
static CHANGED: Condvar = Condvar::new();

struct Outside {
    jobs: VecDeque<Job>,
    /// What is woken later, by its time and its number.
    alarms: BTreeMap<(std::time::Instant, u64), Arc<Notify>>,
    last_alarm: u64,
    has_thread: bool,
}

/// Whether tasks of this runtime are started from the thread.
pub(crate) fn is_used_for(runtime: &Handle) -> bool {
    runtime.runtime_flavor() != RuntimeFlavor::CurrentThread
}

/// Whether the task that calls this runs on a runtime with several workers.
pub(crate) fn runs_beside_others() -> bool {
    Handle::try_current().is_ok_and(|here| is_used_for(&here))
}

/// Spawns work that must not wait for the task that calls this. If the runtime has ended, the work is dropped.
pub(crate) fn spawn(runtime: &Handle, work: impl Future<Output = ()> + Send + 'static) {
    let is_here = Handle::try_current().is_ok_and(|here| here.id() == runtime.id());
    if is_here && is_used_for(runtime) {
        let runtime = runtime.clone();
        run(Box::new(move || drop(runtime.spawn(work))));
    } else {
        runtime.spawn(work);
    }
}

/// Wakes a task from the thread, once for each time that it is set.
pub(crate) struct Alarm {
    number: u64,
    wakes: Arc<Notify>,
    /// When it was last set to. The time may have passed: the task is awake then, and sets the alarm anew.
    at: Option<Instant>,
}

impl Alarm {
    /// An alarm that is not set yet.
    pub(crate) fn new(wakes: Arc<Notify>) -> Self {
        let mut state = OUTSIDE.lock();
        state.last_alarm += 1;
        Self {
            number: state.last_alarm,
            wakes,
            at: None,
        }
    }

    /// Sets the alarm to this time, whatever it was set to before. Returns whether it is set as asked: without a thread
    /// it cannot be.
    #[must_use]
    pub(crate) fn set(&mut self, at: Option<Instant>) -> bool {
        let mut state = OUTSIDE.lock();
        self.unset(&mut state);
        let Some(at) = at else {
            return true;
        };
        if !state.has_thread() {
            return false;
        }
        let key = (at.into_std(), self.number);
        state.alarms.insert(key, self.wakes.clone());
        self.at = Some(at);
        if state.alarms.first_key_value().map(|(first, _)| *first) == Some(key) {
            CHANGED.notify_one();
        }
        true
    }

    fn unset(&mut self, state: &mut Outside) {
        if let Some(at) = self.at.take() {
            state.alarms.remove(&(at.into_std(), self.number));
        }
    }
}

impl Drop for Alarm {
    fn drop(&mut self) {
        self.unset(&mut OUTSIDE.lock());
    }
}

/// Runs a job on the thread. Without a thread, it runs here.
fn run(job: Job) {
    let mut state = OUTSIDE.lock();
    if state.has_thread() {
        state.jobs.push_back(job);
        CHANGED.notify_one();
    } else {
        drop(state);
        job();
    }
}

/// What the thread does.
fn work_off() {
    let mut state = OUTSIDE.lock();
    loop {
        if let Some(job) = state.next(std::time::Instant::now()) {
            // A job may drop work of the application, which may panic.
            MutexGuard::unlocked(&mut state, || catch_unwind(AssertUnwindSafe(job)).ok());
        } else if let Some((&(at, _), _)) = state.alarms.first_key_value() {
            CHANGED.wait_until(&mut state, at);
        } else {
            CHANGED.wait(&mut state);
        }
    }
}

impl Outside {
    /// Whether the thread runs. Starts it at the first call. That fails if the process may have no more threads.
    fn has_thread(&mut self) -> bool {
        if !self.has_thread {
            let thread = thread::Builder::new().name("leasehold".into());
            self.has_thread = thread.spawn(work_off).is_ok();
        }
        self.has_thread
    }

    /// What is to be run now.
    fn next(&mut self, now: std::time::Instant) -> Option<Job> {
        if let Some(job) = self.jobs.pop_front() {
            return Some(job);
        }
        let first = self.alarms.first_entry();
        let wakes = first.filter(|first| first.key().0 <= now)?.remove();
        Some(Box::new(move || wakes.notify_one()))
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::mpsc, time::Duration};

    use tokio::runtime::{Builder, Runtime};

    use super::*;

    /// Ends a test that would hang.
    const PATIENCE: Duration = Duration::from_secs(180);

    fn threads() -> Runtime {
        let mut threads = Builder::new_multi_thread();
        threads.worker_threads(2).enable_all().build().unwrap()
    }

    #[test]
    fn work_begins_beside_the_task_that_spawned_it() {
        let threads = threads();
        let computes = threads.spawn(async {
            let (begin, begun) = mpsc::channel();
            spawn(&Handle::current(), async move { begin.send(()).unwrap() });
            begun.recv_timeout(PATIENCE)
        });
        threads.block_on(computes).unwrap().unwrap();
    }

    #[test]
    fn a_job_that_panics_ends_nothing() {
        run(Box::new(|| panic!("as it should")));
        let (tell, told) = mpsc::channel();
        run(Box::new(move || tell.send(()).unwrap()));
        told.recv_timeout(PATIENCE).unwrap();
    }

    #[test]
    fn an_alarm_wakes_when_it_was_last_set_to() {
        let far = || Some(Instant::now() + PATIENCE * 2);
        let now = || Some(Instant::now());
        threads().block_on(async {
            let wakes = Arc::<Notify>::default();
            let mut alarm = Alarm::new(wakes.clone());
            let woken = async || {
                let woken = tokio::time::timeout(PATIENCE, wakes.notified());
                woken.await.expect("it is woken");
            };
            assert!(alarm.set(far()) && alarm.set(now()));
            woken().await;
            // What it was set to before does not count any more.
            let soon = Instant::now() + Duration::from_millis(20);
            assert!(alarm.set(Some(soon)) && alarm.set(far()));
            let mut other = Alarm::new(wakes.clone());
            assert!(other.set(Some(soon + Duration::from_millis(20))));
            woken().await;
            assert!(Instant::now() > soon + Duration::from_millis(20));
            drop((alarm, other));
        });
    }
}
