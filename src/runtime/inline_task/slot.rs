//! The slot that keeps work while its caller polls it. Each poll is a step, and any thread may take the work away.
//!
//! Invariants:
//!
//! - The work is in one place: in the slot, with the thread that took it away, or nowhere once it has ended.
//! - A thread that leaves the work sets a mark, and never waits for the lock of the slot. If the slot is locked, the
//!   leaving thread goes on. The thread that polls the work looks for the mark after it has unlocked the slot, and then
//!   takes the work away itself.
//! - So work that was left does not stay in the slot. The two threads cannot miss each other: each of them first writes
//!   (the mark, or the unlocked state), then passes a memory fence, and only then reads what the other thread wrote.

#[cfg(not(leasehold_loom))]
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::task::Poll;

#[cfg(leasehold_loom)]
use loom::sync::atomic::{AtomicBool, Ordering, fence};
#[cfg(not(leasehold_loom))]
use parking_lot::Mutex;

#[cfg(leasehold_loom)]
use self::loom_mutex::Mutex;

/// A place for work.
pub(super) struct Slot<W> {
    /// `None` before the work begins, and after it has ended or was taken away.
    work: Mutex<Option<W>>,
    is_left: AtomicBool,
}

/// Where the work is after a step.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Stepped<W> {
    /// The work has not ended, and stays in the slot.
    Here,
    /// The work was left before or during the step. The caller of the step must have it continue elsewhere.
    Left(W),
    /// The work has ended, or continues elsewhere.
    Gone,
}

impl<W> Slot<W> {
    pub(super) fn new() -> Self {
        Self {
            work: Mutex::new(None),
            is_left: AtomicBool::new(false),
        }
    }

    /// Puts the work into the slot, when it begins.
    pub(super) fn put(&self, work: W) {
        *self.work.lock() = Some(work);
    }

    /// Takes a step of the work, if it is in the slot.
    pub(super) fn step(&self, step: impl FnOnce(&mut W) -> Poll<()>) -> Stepped<W> {
        let mut work = self.work.lock();
        let is_here = work.as_mut().is_some_and(|work| step(work).is_pending());
        if !is_here {
            *work = None;
        }
        drop(work);
        fence(Ordering::SeqCst);
        if !is_here {
            Stepped::Gone
        } else if !self.is_left.load(Ordering::SeqCst) {
            Stepped::Here
        } else {
            // Another thread may have taken the work since the lock was released.
            self.take().map_or(Stepped::Gone, Stepped::Left)
        }
    }

    /// Leaves the work, and takes it away. `None` if the work is not in the slot, or if a step is under way. The step
    /// then takes the work away.
    pub(super) fn leave(&self) -> Option<W> {
        self.is_left.store(true, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        self.take()
    }

    fn take(&self) -> Option<W> {
        self.work.try_lock().and_then(|mut work| work.take())
    }
}

/// The lock of loom with the interface of `parking_lot`. Loom tries every order of the threads' steps.
#[cfg(leasehold_loom)]
mod loom_mutex {
    use loom::sync::{self, MutexGuard};

    pub(super) struct Mutex<T>(sync::Mutex<T>);

    impl<T> Mutex<T> {
        pub(super) fn new(value: T) -> Self {
            Self(sync::Mutex::new(value))
        }

        pub(super) fn lock(&self) -> MutexGuard<'_, T> {
            self.0.lock().unwrap()
        }

        pub(super) fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
            self.0.try_lock().ok()
        }
    }
}

/// Run with `RUSTFLAGS='--cfg leasehold_loom' cargo test --lib --target-dir target/loom slot`.
///
/// Loom treats the state of a lock as sequentially consistent, so the model passes without the memory fences too. The
/// code needs them for the reason that the invariants give.
#[cfg(all(test, leasehold_loom))]
mod tests {
    use loom::{sync::Arc, thread};

    use super::*;

    fn in_every_order(leaving: usize, steps: usize) {
        loom::model(move || {
            let slot = Arc::new(Slot::new());
            let leave = |slot: Arc<Slot<usize>>| thread::spawn(move || slot.leave().is_some());
            let leaving: Vec<_> = (0..leaving).map(|_| leave(slot.clone())).collect();
            slot.put(steps);
            let step = |left: &mut usize| {
                *left -= 1;
                if *left == 0 {
                    Poll::Ready(())
                } else {
                    Poll::Pending
                }
            };
            let stepped = slot.step(step);
            let taken = leaving.into_iter().map(|leaving| leaving.join().unwrap());
            let taken = taken.filter(|taken| *taken).count();
            match stepped {
                // The caller sleeps now, so another thread must have taken the work.
                Stepped::Here => assert_eq!(taken, 1, "it stays where nobody polls it"),
                Stepped::Left(_) => assert_eq!(taken, 0, "two have it"),
                Stepped::Gone if steps == 1 => assert!(taken <= 1, "two have it"),
                Stepped::Gone => assert_eq!(taken, 1, "nobody has it"),
            }
        });
    }

    #[test]
    fn work_that_is_left_during_a_step_goes_on_elsewhere() {
        in_every_order(1, 2);
    }

    #[test]
    fn work_that_is_left_twice_goes_on_once() {
        in_every_order(2, 2);
    }

    #[test]
    fn work_that_is_left_during_its_last_step_is_over_or_goes_on() {
        in_every_order(1, 1);
    }
}
