//! The look at a collection before it is first used. What the server tells is judged in `fitness.rs`.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use futures::{
    FutureExt as _, TryStreamExt as _,
    future::{BoxFuture, Shared, join},
};
use mongodb::{
    bson::{Document, doc},
    error::Error as DriverError,
};
use parking_lot::Mutex;
use tokio::time::{Instant, timeout};

use super::{
    concern::Collections,
    error::{
        AUTHENTICATION_FAILED, IS_A_VIEW, NAMESPACE_NOT_FOUND, STORE, classify_of_any_collection,
        code,
    },
    fitness::CollectionFacts,
};
use crate::{
    model::{Cause, Error},
    runtime,
};

/// How long a look may take.
const LOOK_TIMEOUT: Duration = Duration::from_secs(60);
/// How long operations join a look that is under way. Its connection may be dead, so a later operation looks by another
/// one.
const JOINED_FOR: Duration = Duration::from_secs(5);

/// Decides whether a collection is fit.
type Judge = fn(&CollectionFacts) -> Result<(), Error>;

/// A look that is under way, for all operations that wait for it.
type RunningLook = Shared<BoxFuture<'static, Result<(), Error>>>;

/// Whether a collection was looked at, in this process. Clones share the answer.
///
/// Operations that come at the same time share one look. A fit collection is not looked at again. After
/// any other outcome the next operation looks again, so that a passing failure, or a collection that was mended, keeps
/// nobody out.
#[derive(Clone, Default)]
pub(super) struct FirstLook {
    is_fit: Arc<AtomicBool>,
    /// The look that is under way, and when it began.
    running: Arc<Mutex<Option<(Instant, RunningLook)>>>,
}

impl FirstLook {
    /// Looks at the collection if that was not done yet.
    ///
    /// What this user may not see is not judged: a user without the rights to list collections and indexes can lock.
    ///
    /// # Errors
    ///
    /// The error of the judge if the collection is not fit. Otherwise the look failed, and nothing was changed.
    pub(super) async fn ensure_fit<T: Clone + Send + Sync + 'static>(
        &self,
        collection: &Collections<T>,
        judge: Judge,
    ) -> Result<(), Error> {
        if self.is_fit.load(Ordering::Acquire) {
            return Ok(());
        }
        let look = {
            let mut running = self.running.lock();
            let joined = running
                .take()
                .filter(|(since, look)| since.elapsed() < JOINED_FOR && look.peek().is_none());
            let (_, look) = running.insert(joined.unwrap_or_else(|| {
                let look = look_in_time(collection.clone(), judge);
                (Instant::now(), look.boxed().shared())
            }));
            look.clone()
        };
        look.await?;
        self.record(true);
        Ok(())
    }

    /// Records what another look has shown.
    pub(super) fn record(&self, is_fit: bool) {
        self.is_fit.store(is_fit, Ordering::Release);
    }
}

/// Looks at the collection in a task of its own, which goes on when nobody waits any more.
async fn look_in_time<T: Clone + Send + Sync + 'static>(
    collection: Collections<T>,
    judge: Judge,
) -> Result<(), Error> {
    let look = async move {
        let (facts, _) = collection.look().await?;
        judge(&facts)
    };
    let outcome = match timeout(LOOK_TIMEOUT, runtime::spawn(look)?).await {
        Ok(Ok(outcome)) => outcome,
        Ok(Err(error)) => Err(runtime::no_outcome(&error)),
        Err(_) => Err(unseen(Cause::text(format!(
            "it did not tell within {LOOK_TIMEOUT:?} what the collection is like"
        )))),
    };
    outcome.map_err(|error| match error {
        // Only a question was lost.
        Error::Interrupted { source, .. } => unseen(source),
        error => error,
    })
}

fn unseen(source: Cause) -> Error {
    Error::Unreachable {
        store: STORE,
        source,
    }
}

impl<T: Send + Sync> Collections<T> {
    /// Asks the server what the collection is like. The second value says why a part of that cannot be seen: this user
    /// may not, or the engine does not tell.
    pub(super) async fn look(&self) -> Result<(CollectionFacts, Option<Error>), Error> {
        // So that an error about these facts can name the servers.
        self.ask_deployment().await?;
        let (namespace, database) = (self.reads().namespace(), self.database());
        let entries = async |question: Document| {
            let answer = database.run_cursor_command(question).await?;
            answer.try_collect::<Vec<Document>>().await
        };
        let by_name = doc! { "name": &namespace.coll };
        let (listed, indexes) = join(
            entries(doc! { "listCollections": 1, "filter": by_name }),
            entries(doc! { "listIndexes": &namespace.coll }),
        )
        .await;
        let mut view = None;
        let indexes = match indexes {
            Err(error) if code(&error) == Some(IS_A_VIEW) => {
                view = Some(doc! { "type": "view" });
                Ok(Vec::new())
            }
            // There is no collection yet.
            Err(error) if code(&error) == Some(NAMESPACE_NOT_FOUND) => Ok(Vec::new()),
            indexes => indexes,
        };
        let (listed, indexes) = (in_sight(listed)?, in_sight(indexes)?);
        let hidden = listed.as_ref().err().or(indexes.as_ref().err()).cloned();
        let facts = CollectionFacts {
            database: namespace.db,
            listed: listed.unwrap_or_default().into_iter().next().or(view),
            indexes: indexes.ok(),
        };
        Ok((facts, hidden))
    }
}

/// Separates an answer that says nothing of the collection from a failure to get any.
fn in_sight<T>(answer: Result<T, DriverError>) -> Result<Result<T, Error>, Error> {
    let error = match answer {
        Ok(answer) => return Ok(Ok(answer)),
        Err(error) => error,
    };
    let is_refusal = code(&error).is_some_and(|code| code != AUTHENTICATION_FAILED);
    match classify_of_any_collection(error) {
        error if is_refusal && !error.is_retryable() => Ok(Err(error)),
        error => Err(error),
    }
}
