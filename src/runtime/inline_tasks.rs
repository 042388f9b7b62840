//! The list of the inline tasks of a client, and the sweeper, which [detaches](InlineTask::detach) those that take
//! long.
//!
//! Invariants:
//!
//! - An inline task is in the list while its caller waits, unless the sweeper or a close has detached it.
//! - A runtime has at most one sweeper. If no sweeper has run for a while, the next inline task starts one on its own
//!   runtime.

use std::{
    collections::{BTreeMap, HashSet},
    sync::{Arc, Weak},
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{
    runtime::Id,
    time::{Instant, sleep},
};

use super::{inline_task::InlineTask, outside};

/// How long an inline task may take before the sweeper detaches it. The sweeper runs at this interval. It cannot see
/// whether the caller still polls the work, and work that nobody polls may keep a key or a connection from other
/// callers.
const MAX_POLL_TIME: Duration = Duration::from_millis(50);

/// The list of the inline tasks.
#[derive(Debug, Default)]
pub(crate) struct InlineTasks(Mutex<Entries>);

#[derive(Debug, Default)]
struct Entries {
    tasks: BTreeMap<u64, (Weak<InlineTask>, Instant)>,
    /// The number of the next entry.
    next: u64,
    /// When a sweeper last looked through the list, or started; `None` if the list was empty then.
    swept: Option<Instant>,
    /// The runtimes that have a sweeper. Each has at most one, because on a runtime that is blocked or not driven no
    /// sweeper ends, and the sweepers would accumulate.
    sweeping: HashSet<Id>,
}

/// An entry of the list. Dropping it removes the inline task from the list.
pub(crate) struct TaskEntry<'a>(&'a InlineTasks, u64);

impl InlineTasks {
    pub(crate) fn enter(self: &Arc<Self>, task: &Arc<InlineTask>, now: Instant) -> TaskEntry<'_> {
        let mut entries = self.0.lock();
        let name = entries.next;
        entries.next += 1;
        entries.tasks.insert(name, (Arc::downgrade(task), now));
        // If the last sweep was long ago, its sweeper may be on a runtime that is blocked or not driven.
        let swept = |at| now.saturating_duration_since(at) < MAX_POLL_TIME * 4;
        let runtime = task.runtime().id();
        if !entries.swept.is_some_and(swept) && entries.sweeping.insert(runtime) {
            entries.swept = Some(now);
            let sweeper = Sweeper {
                tasks: Arc::downgrade(self),
                runtime,
                is_listed: true,
            };
            drop(entries);
            outside::spawn(task.runtime(), sweeper.run());
        }
        TaskEntry(self, name)
    }

    /// Detaches all inline tasks.
    pub(crate) fn detach(&self) {
        self.detach_those(|_| true);
    }

    /// Detaches the inline tasks that take long. Returns whether others are left in the list. If not, the sweeper of
    /// this runtime ends: the next inline task starts another one.
    fn sweep(&self, now: Instant, runtime: Id) -> bool {
        self.detach_those(|since| now.saturating_duration_since(since) >= MAX_POLL_TIME);
        let mut entries = self.0.lock();
        let any = !entries.tasks.is_empty();
        entries.swept = any.then_some(now);
        if !any {
            entries.sweeping.remove(&runtime);
        }
        any
    }

    /// Detaches the inline tasks for which `which` returns `true`, and removes them from the list.
    fn detach_those(&self, which: impl Fn(Instant) -> bool) {
        let mut entries = self.0.lock();
        let mut chosen = Vec::new();
        entries.tasks.retain(|_, (task, since)| {
            let is_chosen = which(*since);
            if is_chosen {
                chosen.extend(task.upgrade());
            }
            !is_chosen
        });
        drop(entries);
        chosen.iter().for_each(|task| task.detach());
    }
}

/// Looks through the list from time to time, on one runtime.
struct Sweeper {
    tasks: Weak<InlineTasks>,
    runtime: Id,
    /// Whether this sweeper is the one that the list has for its runtime.
    is_listed: bool,
}

impl Sweeper {
    async fn run(mut self) {
        while self.is_listed {
            sleep(MAX_POLL_TIME).await;
            self.sweep(Instant::now());
        }
    }

    fn sweep(&mut self, now: Instant) {
        let tasks = self.tasks.upgrade();
        self.is_listed = tasks.is_some_and(|tasks| tasks.sweep(now, self.runtime));
    }
}

impl Drop for Sweeper {
    fn drop(&mut self) {
        if let Some(tasks) = self.tasks.upgrade().filter(|_| self.is_listed) {
            tasks.0.lock().sweeping.remove(&self.runtime);
        }
    }
}

impl Drop for TaskEntry<'_> {
    fn drop(&mut self) {
        self.0.0.lock().tasks.remove(&self.1);
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;

    use super::*;

    /// On a runtime that is blocked for a while, the sweeper runs late.
    #[tokio::test(start_paused = true)]
    async fn a_stall_starts_no_other_sweeper_and_what_is_detached_needs_none() {
        let tasks = Arc::<InlineTasks>::default();
        let start = Instant::now();
        let (outcome, told) = oneshot::channel::<u8>();
        let long = InlineTask::new().unwrap();
        let _entry = tasks.enter(&long, start);
        for stall in 1..10 {
            let short = InlineTask::new().unwrap();
            drop(tasks.enter(&short, start + MAX_POLL_TIME * 5 * stall));
        }
        assert_eq!(Arc::weak_count(&tasks), 1);
        let waiting = tokio::spawn(long.clone().wait(Box::pin(std::future::pending()), told));
        sleep(MAX_POLL_TIME * 60).await;
        assert_eq!(
            Arc::weak_count(&tasks),
            0,
            "work that is detached is not looked at again"
        );
        let _ = outcome.send(7);
        assert_eq!(waiting.await.unwrap().ok(), Some(7));
    }

    #[tokio::test(start_paused = true)]
    async fn sweepers_do_not_pile_up_while_there_is_work() {
        let tasks = Arc::<InlineTasks>::default();
        for stall in 0..10 {
            let work = InlineTask::new().unwrap();
            drop(tasks.enter(&work, Instant::now() + MAX_POLL_TIME * 5 * stall));
        }
        let works: Vec<_> = (0..100).map(|_| InlineTask::new().unwrap()).collect();
        for work in &works {
            let _entry = tasks.enter(work, Instant::now());
            sleep(MAX_POLL_TIME / 2).await;
        }
        let sweepers = Arc::weak_count(&tasks);
        assert!(sweepers <= 1, "{sweepers} sweepers");
    }

    /// A new task comes between the last look of a sweeper and its end.
    #[tokio::test(start_paused = true)]
    async fn a_sweeper_that_ends_leaves_no_task_without_one() {
        let tasks = Arc::<InlineTasks>::default();
        let mut ending = Sweeper {
            tasks: Arc::downgrade(&tasks),
            runtime: tokio::runtime::Handle::current().id(),
            is_listed: true,
        };
        tasks.0.lock().sweeping.insert(ending.runtime);
        ending.sweep(Instant::now());
        let work = InlineTask::new().unwrap();
        let _entry = tasks.enter(&work, Instant::now());
        drop(ending);
        assert_eq!(Arc::weak_count(&tasks), 1, "a sweeper looks after the task");
        assert_eq!(tasks.0.lock().sweeping.len(), 1);
    }
}
