//! The changes that wait for the file. They are committed together, because a commit waits for the disk.

use std::{
    collections::VecDeque,
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use tokio::{runtime::Handle, select, sync::oneshot};

use super::{file::File, table::Transaction};
use crate::{model::Error, runtime};

/// The most changes of one transaction. The changes of other processes wait until it ends.
const LARGEST: usize = 256;
/// After this time a transaction begins no further change, because a change may be of many rows.
const LONGEST: Duration = Duration::from_millis(10);

/// The open file, and the changes that wait for it.
#[derive(Clone)]
pub(super) struct SharedFile {
    // The lock is awaited, so that what waits for it takes no threads from the pool.
    file: Arc<tokio::sync::Mutex<File>>,
    waiting: Arc<Mutex<VecDeque<Change>>>,
}

type Work = Box<dyn FnOnce(&mut Transaction<'_>) -> Result<(), Error> + Send>;

/// A part of a transaction.
struct Change {
    work: Work,
    /// Is told when the transaction has ended. If nobody listens any more, the change is left out.
    outcome: oneshot::Sender<Result<(), Error>>,
}

impl SharedFile {
    pub(super) fn new(file: File) -> Self {
        Self {
            file: Arc::new(tokio::sync::Mutex::new(file)),
            waiting: Arc::default(),
        }
    }

    /// Runs `work` in a read transaction.
    pub(super) async fn read<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Transaction<'_>) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let mut file = self.file.clone().lock_owned().await;
        blocking(move || file.read(work)).await
    }

    /// Runs `work` in a write transaction, together with the other changes that wait for the file. Each write has to be
    /// complete by itself: what `work` wrote before it failed is committed, too.
    pub(super) async fn change<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Transaction<'_>) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        // Without a runtime nothing is begun.
        let runtime = Handle::try_current().map_err(|_| Error::NoRuntime)?;
        let (answer, mut answered) = oneshot::channel();
        let (outcome, mut ended) = oneshot::channel();
        let work = Box::new(move |transaction: &mut Transaction<'_>| {
            let _ = answer.send(work(transaction)?);
            Ok(())
        });
        self.waiting.lock().push_back(Change { work, outcome });
        let lost = || runtime::interrupted("the thread of its transaction ended");
        loop {
            let mut file = select! {
                biased;
                ended = &mut ended => {
                    ended.map_err(|_| lost())??;
                    return answered.try_recv().map_err(|_| lost());
                }
                file = self.file.clone().lock_owned() => file,
            };
            let waiting = self.waiting.clone();
            let done = runtime.spawn_blocking(move || carry_out(&mut file, &waiting));
            done.await.map_err(|error| runtime::no_outcome(&error))?;
        }
    }
}

/// Carries out the changes that wait, in one transaction.
fn carry_out(file: &mut File, waiting: &Mutex<VecDeque<Change>>) {
    let next = || waiting.lock().pop_front();
    let before = waiting.lock().len();
    // A change that came after the clock was read would get a time from before it was asked for, and its lease would
    // end in the file before it ends for its holder.
    let count = || waiting.lock().len().min(LARGEST);
    let mut done = Vec::new();
    let committed = file.change(count, |transaction, count| {
        let began = Instant::now();
        let changes = (0..count).take_while(|_| began.elapsed() < LONGEST);
        for Change { work, outcome } in changes.map_while(|_| next()) {
            // Nobody waits for it any more.
            if outcome.is_closed() {
                continue;
            }
            let result = work(transaction);
            done.push((outcome, result.clone()));
            // Of a change that failed in a damaged file a half may be left.
            if transaction.is_undone() || matches!(result, Err(Error::File { .. })) {
                return result;
            }
        }
        Ok(())
    });
    if committed.is_err() && done.is_empty() {
        // There was no transaction. To each of the changes that waited for this one the same would happen.
        let failed = (0..before).map_while(|_| next());
        done.extend(failed.map(|it| (it.outcome, Ok(()))));
    }
    for (outcome, result) in done {
        let _ = outcome.send(committed.clone().and(result));
    }
}

/// Runs `work` on a thread of tokio's blocking pool.
pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    let runtime = Handle::try_current().map_err(|_| Error::NoRuntime)?;
    let done = runtime.spawn_blocking(work).await;
    done.unwrap_or_else(|error| Err(runtime::no_outcome(&error)))
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use chrono::TimeDelta;
    use futures::future::poll_immediate;
    use tokio::time::sleep;

    use super::{super::opening::Make, *};

    /// A holder counts its lease from the instant before it asks, so a change must not be judged by an earlier time.
    #[tokio::test]
    async fn a_change_that_comes_while_others_are_carried_out_has_a_later_time() {
        const WORKS: Duration = Duration::from_millis(5);
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("locks.db");
        let file = SharedFile::new(File::open(&path, Make::IfMissing).unwrap());
        let (started, has_started) = oneshot::channel();
        let (goes_on, may_go_on) = mpsc::channel();
        let mut first = Box::pin(file.change(move |transaction| {
            started.send(()).unwrap();
            may_go_on.recv().unwrap();
            Ok(transaction.now)
        }));
        assert!(poll_immediate(&mut first).await.is_none());
        has_started.await.unwrap();
        sleep(WORKS).await;
        let mut second = Box::pin(file.change(|transaction| Ok(transaction.now)));
        assert!(poll_immediate(&mut second).await.is_none());
        goes_on.send(()).unwrap();
        let (first, second) = (first.await.unwrap(), second.await.unwrap());
        let later = TimeDelta::from_std(WORKS).unwrap();
        assert!(second - first >= later, "{first} {second}");
    }
}
