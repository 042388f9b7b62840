//! The changes that wait for the file. They are committed together, because a commit waits for the disk.

use std::{collections::VecDeque, sync::Arc};

use parking_lot::Mutex;
use tokio::{runtime::Handle, select, sync::oneshot};

use super::{file::File, table::Transaction};
use crate::{model::Error, runtime};

/// The most changes of one transaction. The changes of other processes wait until it ends.
const LARGEST: usize = 256;

/// The open file, and the changes that wait for it.
#[derive(Clone)]
pub(super) struct SharedFile {
    // The lock is awaited, so that what waits for it takes no threads from the pool.
    file: Arc<tokio::sync::Mutex<File>>,
    waiting: Arc<Mutex<VecDeque<Change>>>,
}

/// A part of a transaction.
struct Change {
    work: Box<dyn FnOnce(&mut Transaction<'_>) -> Result<(), Error> + Send>,
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
            blocking(move || {
                carry_out(&mut file, &waiting);
                Ok(())
            })
            .await?;
        }
    }
}

/// Carries out the changes that wait, in one transaction.
fn carry_out(file: &mut File, waiting: &Mutex<VecDeque<Change>>) {
    let next = || waiting.lock().pop_front();
    let mut done = Vec::new();
    let committed = file.change(|transaction| {
        while done.len() < LARGEST
            && let Some(Change { work, outcome }) = next()
        {
            if outcome.is_closed() {
                continue;
            }
            let result = work(transaction);
            done.push((outcome, result.clone()));
            if transaction.is_undone() {
                return result;
            }
        }
        Ok(())
    });
    if committed.is_err() && done.is_empty() {
        // There was no transaction. To each of the changes that waited for this one the same would happen.
        done.extend(std::iter::from_fn(next).map(|it| (it.outcome, Ok(()))));
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
