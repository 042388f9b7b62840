//! Inline tasks: work that its caller polls, and that continues in a task of its own when it must not depend on the
//! caller.
//!
//! A task for each request would be simpler, but costs more than everything else the client does: in a program that has
//! little to do, two threads wake each other for every request (`docs/performance.md`). On the other hand, work that
//! only its caller polls makes no progress while the caller's future is not polled.
//!
//! Invariants:
//!
//! - Work that has begun is polled until it ends, by its caller or by a task. Only a panic or the end of its runtime
//!   ends it earlier. The caller then gets [`Error::Interrupted`].
//! - The work is [detached](InlineTask::detach), which makes it a task, in three cases: the caller's future is dropped;
//!   a close or another operation on the same key depends on the work; or the work takes long (`inline_tasks.rs`).
//!   After that, the caller only waits for the outcome.
//! - Either the caller or the task polls the work, and the work is never lost between them: see the [slot](Slot).

mod slot;

use std::{
    fmt,
    future::poll_fn,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker},
};

use futures::{FutureExt, future::BoxFuture};
use parking_lot::Mutex;
use tokio::{
    runtime::Handle,
    sync::oneshot::{self, error::TryRecvError},
    task::yield_now,
};

use self::slot::{Slot, Stepped};
use super::{call, outside};
use crate::model::Error;

/// Work that a caller waits for.
pub(crate) struct InlineTask {
    runtime: Handle,
    slot: Slot<Work>,
    /// Whether the task has panicked, which is told when it ends. From the detach until the [reason for a missing
    /// outcome](InlineTask::take_failure) is asked for.
    has_panicked: Mutex<Option<oneshot::Receiver<bool>>>,
}

struct Work {
    work: BoxFuture<'static, ()>,
    /// Wakes the caller that polls the work.
    waker: Option<Waker>,
}

impl InlineTask {
    /// Work that [begins](InlineTask::wait) later. When it is detached, it becomes a task of the current runtime. Fails
    /// outside of a runtime.
    pub(crate) fn new() -> Result<Arc<Self>, Error> {
        let runtime = Handle::try_current().map_err(|_| Error::NoRuntime)?;
        Ok(Self::on(runtime))
    }

    /// The same for work that becomes a task of this runtime.
    pub(crate) fn on(runtime: Handle) -> Arc<Self> {
        Arc::new(Self {
            runtime,
            slot: Slot::new(),
            has_panicked: Mutex::new(None),
        })
    }

    /// The runtime on which the work becomes a task.
    pub(super) fn runtime(&self) -> &Handle {
        &self.runtime
    }

    /// Polls the work until its outcome is there. Fails if the work panics, or is dropped with its runtime. Whenever
    /// this future ends or is dropped, a task takes over the rest of the work.
    pub(crate) async fn wait<T>(
        self: Arc<Self>,
        work: BoxFuture<'static, ()>,
        outcome: oneshot::Receiver<T>,
    ) -> Result<T, Error> {
        self.slot.put(Work { work, waker: None });
        let here = DetachOnDrop(self);
        // The receiver is moved to a local, which is dropped before `here`. So when the drop of `here` detaches the
        // work, the work can see that its caller has gone.
        let mut outcome = outcome;
        // Whether the work was left and resumed here, so that this future was woken and may have woken others.
        let mut is_resumed = false;
        let told = poll_fn(|cx| {
            let told = if here.0.poll_here(cx) {
                // The work sends the outcome while it is polled here, so a check after each poll finds the outcome.
                // Waiting on the channel as well would wake this future once more for nothing, and perhaps a thread.
                match outcome.try_recv() {
                    Ok(outcome) => Poll::Ready(Some(outcome)),
                    Err(TryRecvError::Empty) => Poll::Pending,
                    Err(TryRecvError::Closed) => Poll::Ready(None),
                }
            } else {
                Pin::new(&mut outcome).poll(cx).map(Result::ok)
            };
            is_resumed |= told.is_pending();
            told
        });
        let Some(told) = told.await else {
            return Err(here.0.take_failure().await);
        };
        let may_have_woken = is_resumed && outside::is_used_for(&here.0.runtime);
        drop(here);
        if may_have_woken {
            // The last poll may have woken a task that all requests need, for example the one that has the connections
            // of a driver. No other worker takes that task while the caller computes, so it runs before the caller.
            yield_now().await;
        }
        Ok(told)
    }

    /// Waits for the end of the task, if the work was detached, and returns the reason why it gave no outcome.
    async fn take_failure(&self) -> Error {
        let has_panicked = self.has_panicked.lock().take();
        match has_panicked {
            // The caller polled the work. Such work gives an outcome unless it panics.
            None => call::panicked(),
            Some(has_panicked) => match has_panicked.await {
                Ok(true) => call::panicked(),
                Ok(false) | Err(_) => call::ended(),
            },
        }
    }

    /// Polls the work if it is in the slot. Returns whether the work stays there.
    fn poll_here(&self, cx: &mut Context<'_>) -> bool {
        let stepped = self.slot.step(|Work { work, waker }| {
            let known = waker.as_ref();
            if !known.is_some_and(|known| known.will_wake(cx.waker())) {
                *waker = Some(cx.waker().clone());
            }
            // The caller may poll the work on another runtime than the one on which the work began. If the first
            // runtime has ended, the timers of the work panic. The work then ends without an outcome, as it would in a
            // task.
            let polled = catch_unwind(AssertUnwindSafe(|| work.as_mut().poll(cx)));
            polled.unwrap_or(Poll::Ready(()))
        });
        match stepped {
            Stepped::Here => true,
            Stepped::Left(work) => {
                self.go_on_in_a_task(work);
                false
            }
            Stepped::Gone => false,
        }
    }

    /// Makes a task of the work, if it has not ended. Work that has not begun becomes a task when it begins.
    pub(crate) fn detach(&self) {
        if let Some(work) = self.slot.leave() {
            self.go_on_in_a_task(work);
        }
    }

    fn go_on_in_a_task(&self, Work { work, waker }: Work) {
        let (panics, has_panicked) = oneshot::channel();
        // This is set before the spawn. A runtime that has ended drops the work at once. That wakes the caller, which
        // then asks for the reason.
        *self.has_panicked.lock() = Some(has_panicked);
        outside::spawn(&self.runtime, async move {
            let ended = AssertUnwindSafe(work).catch_unwind().await;
            // This fails if the caller does not wait any more.
            let _ = panics.send(ended.is_err());
        });
        // The caller has to be polled once more, so that it waits for the outcome on the channel.
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

struct DetachOnDrop(Arc<InlineTask>);

impl Drop for DetachOnDrop {
    fn drop(&mut self) {
        self.0.detach();
    }
}

impl fmt::Debug for InlineTask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InlineTask").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::{sleep, timeout};

    use super::*;

    const MOMENT: Duration = Duration::from_millis(10);

    /// Work that has an outcome after a moment, and takes another moment after that.
    async fn work(outcome: oneshot::Sender<u8>) {
        sleep(MOMENT).await;
        let _ = outcome.send(7);
        sleep(MOMENT).await;
    }

    #[tokio::test(start_paused = true)]
    async fn it_is_done_by_who_waits_and_its_outcome_ends_the_wait() {
        let (outcome, told) = oneshot::channel();
        let start = tokio::time::Instant::now();
        let waited = InlineTask::new()
            .unwrap()
            .wait(Box::pin(work(outcome)), told)
            .await;
        assert_eq!((waited.ok(), start.elapsed()), (Some(7), MOMENT));
    }

    #[tokio::test(start_paused = true)]
    async fn it_goes_on_when_it_is_left_before_or_while_somebody_waits() {
        for early in [true, false] {
            let (outcome, told) = oneshot::channel();
            let left = InlineTask::new().unwrap();
            if early {
                left.detach();
            }
            let waiting = tokio::spawn(left.clone().wait(Box::pin(work(outcome)), told));
            sleep(MOMENT / 2).await;
            left.detach();
            let outcome = timeout(MOMENT, waiting).await.unwrap().unwrap();
            assert_eq!(outcome.ok(), Some(7));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn it_goes_on_when_nobody_waits_any_more() {
        let (outcome, told) = oneshot::channel();
        let (done, ended) = oneshot::channel();
        let rest = async move {
            work(outcome).await;
            let _ = done.send(());
        };
        let wait = InlineTask::new().unwrap().wait(Box::pin(rest), told);
        assert!(timeout(MOMENT / 2, wait).await.is_err());
        assert!(timeout(MOMENT * 2, ended).await.unwrap().is_ok());
    }

    /// Work that ends without an outcome, by a panic or with its runtime.
    #[tokio::test(start_paused = true)]
    async fn the_reason_for_a_missing_outcome_is_told() {
        async fn wait(task: &Arc<InlineTask>, panics: bool) -> String {
            let (outcome, told) = oneshot::channel::<u8>();
            let work = async move {
                sleep(MOMENT).await;
                assert!(!panics, "the store is broken");
                std::future::pending::<()>().await;
                drop(outcome);
            };
            let ended = task.clone().wait(Box::pin(work), told).await;
            let error = ended.unwrap_err();
            std::error::Error::source(&error).unwrap().to_string()
        }
        let here = InlineTask::new().unwrap();
        assert_eq!(wait(&here, true).await, "it panicked");
        let left = InlineTask::new().unwrap();
        left.detach();
        assert_eq!(wait(&left, true).await, "it panicked");
        let other = std::thread::spawn(|| {
            let runtime = tokio::runtime::Builder::new_current_thread().build();
            runtime
                .unwrap()
                .block_on(async { InlineTask::new().unwrap() })
        });
        let left = other.join().unwrap();
        left.detach();
        assert_eq!(wait(&left, false).await, "its runtime ended");
    }

    /// The work comes to its end, whichever thread detaches it, and at whichever moment.
    #[test]
    fn it_is_left_from_any_thread() {
        let threads = tokio::runtime::Builder::new_multi_thread();
        let threads = { threads }.worker_threads(2).enable_all().build().unwrap();
        threads.block_on(async {
            for _ in 0..5_000 {
                let (outcome, told) = oneshot::channel();
                let left = InlineTask::new().unwrap();
                let rest = async move {
                    tokio::task::yield_now().await;
                    tokio::task::yield_now().await;
                    let _ = outcome.send(7);
                };
                let waiting = tokio::spawn(left.clone().wait(Box::pin(rest), told));
                let leaving = tokio::spawn(async move { left.detach() });
                let limit = Duration::from_secs(180);
                let outcome = timeout(limit, waiting).await.unwrap().unwrap();
                assert_eq!(outcome.ok(), Some(7));
                leaving.await.unwrap();
            }
        });
    }
}
