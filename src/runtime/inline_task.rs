//! Work that is done by whoever waits for it, and goes on in a task of its own as soon as it is left
//! alone.
//!
//! A task for each request would do, and costs more than all else that the client does: where the program
//! has little to do, two threads wake each other for every request (`docs/performance.md`). But work that
//! only its caller does stands still while nobody polls the caller's future. So the work is
//! [detached](InlineTask::detach) to a task when its future is dropped, when a close or another who waits for the same
//! key depends on it, and when it takes long.

use std::{
    collections::{HashMap, HashSet},
    fmt,
    future::poll_fn,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering, fence},
    },
    task::{Context, Poll, Waker},
    time::Duration,
};

use futures::future::BoxFuture;
use parking_lot::Mutex;
use tokio::{
    runtime::{Handle, Id},
    sync::oneshot::{self, error::TryRecvError},
    time::{Instant, sleep},
};

use crate::model::Error;

/// Work that somebody waits for.
pub(crate) struct InlineTask {
    runtime: Handle,
    /// `None` before it begins, and after it has ended or was left.
    here: Mutex<Option<Here>>,
    left: AtomicBool,
}

struct Here {
    work: BoxFuture<'static, ()>,
    /// The one who does it.
    waker: Option<Waker>,
}

impl InlineTask {
    /// Work of this runtime, which [begins](InlineTask::wait) later.
    pub(crate) fn new() -> Result<Arc<Self>, Error> {
        Ok(Arc::new(Self {
            runtime: Handle::try_current().map_err(|_| Error::NoRuntime)?,
            here: Mutex::default(),
            left: AtomicBool::new(false),
        }))
    }

    /// Does the work until its outcome is there; `None` if it ends without one. Dropping the future leaves
    /// the rest to a task.
    pub(crate) async fn wait<T>(
        self: Arc<Self>,
        work: BoxFuture<'static, ()>,
        outcome: oneshot::Receiver<T>,
    ) -> Option<T> {
        *self.here.lock() = Some(Here { work, waker: None });
        let here = Waiting(self);
        // Dropped before the rest is left, so that the work knows by then that nobody waits any more.
        let mut outcome = outcome;
        poll_fn(|cx| {
            match here.0.poll_here(cx) {
                // The outcome comes of the steps that are taken here. Told of it besides, this future would
                // be polled once more, and a thread woken for nothing else.
                true => match outcome.try_recv() {
                    Ok(outcome) => Poll::Ready(Some(outcome)),
                    Err(TryRecvError::Empty) => Poll::Pending,
                    Err(TryRecvError::Closed) => Poll::Ready(None),
                },
                false => Pin::new(&mut outcome).poll(cx).map(Result::ok),
            }
        })
        .await
    }

    /// Takes the next steps of the work. Says whether there are more to take here.
    fn poll_here(&self, cx: &mut Context<'_>) -> bool {
        let mut here = self.here.lock();
        if let Some(Here { work, waker }) = &mut *here {
            if !waker
                .as_ref()
                .is_some_and(|known| known.will_wake(cx.waker()))
            {
                *waker = Some(cx.waker().clone());
            }
            // The caller may poll the work on another runtime, whose end takes its timers along: then the
            // work ends without an outcome, as it would in a task.
            let polled = catch_unwind(AssertUnwindSafe(|| work.as_mut().poll(cx)));
            if !matches!(polled, Ok(Poll::Pending)) {
                *here = None;
            }
        }
        let more = here.is_some();
        drop(here);
        // After the lock: whoever could not get it has said so before.
        fence(Ordering::SeqCst);
        if more && self.left.load(Ordering::SeqCst) {
            self.detach();
            return false;
        }
        more
    }

    /// Has a task go on with the work, if it is not at its end.
    pub(crate) fn detach(&self) {
        self.left.store(true, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        // A thread that has the lock is polling the work, and sees `left` when it is done.
        let here = self.here.try_lock().and_then(|mut here| here.take());
        if let Some(Here { work, waker }) = here {
            self.runtime.spawn(work);
            // From now on it waits for the outcome.
            if let Some(waker) = waker {
                waker.wake();
            }
        }
    }
}

struct Waiting(Arc<InlineTask>);

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.detach();
    }
}

impl fmt::Debug for InlineTask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InlineTask").finish_non_exhaustive()
    }
}

/// All the work that somebody waits for.
#[derive(Debug, Default)]
pub(crate) struct InlineTasks(Mutex<Entries>);

#[derive(Debug, Default)]
struct Entries {
    works: HashMap<u64, (Weak<InlineTask>, Instant)>,
    /// The name of the next.
    next: u64,
    /// When they were last looked through.
    swept: Option<Instant>,
    /// The runtimes that have a sweeper. One at the most each: of those that stand still none would end.
    sweeping: HashSet<Id>,
}

/// How long work may take before a task goes on with it, be its future polled or not: while nobody does, it
/// keeps what others wait for, a key or a connection.
const PATIENCE: Duration = Duration::from_millis(50);

/// Takes the work out again.
pub(crate) struct Entry<'a>(&'a InlineTasks, u64);

impl InlineTasks {
    pub(crate) fn enter(self: &Arc<Self>, work: &Arc<InlineTask>, now: Instant) -> Entry<'_> {
        let mut entries = self.0.lock();
        let name = entries.next;
        entries.next += 1;
        entries.works.insert(name, (Arc::downgrade(work), now));
        // The sweeper that is there may be on a runtime that stands still.
        let swept = |at| now.saturating_duration_since(at) < PATIENCE * 4;
        let runtime = work.runtime.id();
        if !entries.swept.is_some_and(swept) && entries.sweeping.insert(runtime) {
            entries.swept = Some(now);
            let sweeper = Sweeper {
                tasks: Arc::downgrade(self),
                runtime,
            };
            drop(entries);
            work.runtime.spawn(sweeper.run());
        }
        Entry(self, name)
    }

    /// Leaves all of it to tasks.
    pub(crate) fn detach(&self) {
        self.detach_those(|_| true);
    }

    /// Leaves what takes long to tasks, and says whether there is any other work.
    fn sweep(&self, now: Instant) -> bool {
        self.detach_those(|since| now.saturating_duration_since(since) >= PATIENCE);
        let mut entries = self.0.lock();
        let any = !entries.works.is_empty();
        entries.swept = any.then_some(now);
        any
    }

    /// What is detached is not looked at again.
    fn detach_those(&self, which: impl Fn(Instant) -> bool) {
        let mut entries = self.0.lock();
        let mut chosen = Vec::new();
        entries.works.retain(|_, (work, since)| {
            let is_chosen = which(*since);
            if is_chosen {
                chosen.extend(work.upgrade());
            }
            !is_chosen
        });
        drop(entries);
        chosen.iter().for_each(|work| work.detach());
    }
}

/// Looks through the work from time to time, on one runtime.
struct Sweeper {
    tasks: Weak<InlineTasks>,
    runtime: Id,
}

impl Sweeper {
    async fn run(self) {
        loop {
            sleep(PATIENCE).await;
            match self.tasks.upgrade() {
                Some(tasks) if tasks.sweep(Instant::now()) => {}
                _ => return,
            }
        }
    }
}

impl Drop for Sweeper {
    fn drop(&mut self) {
        if let Some(tasks) = self.tasks.upgrade() {
            tasks.0.lock().sweeping.remove(&self.runtime);
        }
    }
}

impl Drop for Entry<'_> {
    fn drop(&mut self) {
        self.0.0.lock().works.remove(&self.1);
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::timeout;

    use super::*;

    const MOMENT: Duration = Duration::from_millis(10);

    /// Work that takes a moment, and then has this outcome and another moment to go.
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
        assert_eq!((waited, start.elapsed()), (Some(7), MOMENT));
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
            assert_eq!(timeout(MOMENT, waiting).await.unwrap().unwrap(), Some(7));
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

    #[tokio::test(start_paused = true)]
    async fn work_that_ends_without_an_outcome_is_told() {
        let (outcome, told) = oneshot::channel::<u8>();
        let rest = async move { drop(outcome) };
        assert_eq!(
            InlineTask::new().unwrap().wait(Box::pin(rest), told).await,
            None
        );
    }

    /// A runtime that stands still has its sweeper run late.
    #[tokio::test(start_paused = true)]
    async fn a_stall_starts_no_other_sweeper_and_what_is_detached_needs_none() {
        let tasks = Arc::<InlineTasks>::default();
        let start = Instant::now();
        let (outcome, told) = oneshot::channel::<u8>();
        let long = InlineTask::new().unwrap();
        let _entry = tasks.enter(&long, start);
        for stall in 1..10 {
            let short = InlineTask::new().unwrap();
            drop(tasks.enter(&short, start + PATIENCE * 5 * stall));
        }
        assert_eq!(Arc::weak_count(&tasks), 1);
        let waiting = tokio::spawn(long.clone().wait(Box::pin(std::future::pending()), told));
        sleep(PATIENCE * 60).await;
        assert_eq!(
            Arc::weak_count(&tasks),
            0,
            "work that is detached is not looked at again"
        );
        let _ = outcome.send(7);
        assert_eq!(waiting.await.unwrap(), Some(7));
    }

    #[tokio::test(start_paused = true)]
    async fn sweepers_do_not_pile_up_while_there_is_work() {
        let tasks = Arc::<InlineTasks>::default();
        for stall in 0..10 {
            let work = InlineTask::new().unwrap();
            drop(tasks.enter(&work, Instant::now() + PATIENCE * 5 * stall));
        }
        let works: Vec<_> = (0..100).map(|_| InlineTask::new().unwrap()).collect();
        for work in &works {
            let _entry = tasks.enter(work, Instant::now());
            sleep(PATIENCE / 2).await;
        }
        let sweepers = Arc::weak_count(&tasks);
        assert!(sweepers <= 1, "{sweepers} sweepers");
    }

    /// Whoever leaves it, from whichever thread and at whichever moment, it comes to its end.
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
                assert_eq!(timeout(limit, waiting).await.unwrap().unwrap(), Some(7));
                leaving.await.unwrap();
            }
        });
    }
}
