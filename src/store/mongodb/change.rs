//! Changes of one document that may be sent more than once, and the reasons why a change was refused or failed.

use chrono::{DateTime, Utc};
use mongodb::{
    bson::{Document, RawDocument},
    options::ReturnDocument,
};

use super::{
    MAX_SENDS,
    decode::{self, Decoded},
    error::{STORE, cause, classify, is_race},
    pipelines::Pipelines,
    statements,
};
use crate::{
    model::{Cause, Error, Key, LockRecord},
    store::explained,
};

/// A change of one document. The answer is the changed document.
pub(super) struct Change {
    pub(super) filter: Document,
    pub(super) update: Vec<Document>,
    pub(super) upsert: bool,
}

impl Pipelines<'_> {
    /// Sends a change of a lock that is safe to send more than once. `None` if the document does not exist.
    pub(super) async fn change(
        self,
        key: &Key,
        update: Vec<Document>,
        upsert: bool,
    ) -> Result<Option<(LockRecord, DateTime<Utc>)>, Error> {
        let change = Change {
            filter: statements::filter(key),
            update,
            upsert,
        };
        let answer = self.send(change, |document| decode::lock(document, key));
        match answer.await {
            Err(error) => Err(self.explain_failure(key, error).await),
            answer => answer,
        }
    }

    /// Sends a change that is safe to send more than once, until the answer contains the server's time. `None` if the
    /// document does not exist.
    pub(super) async fn send<R>(
        self,
        change: Change,
        decode: impl Fn(&RawDocument) -> Result<Decoded<R>, Error>,
    ) -> Result<Option<(R, DateTime<Utc>)>, Error> {
        let locks = self.store.locks.durable_writes().await?;
        let clock = self.statement_clock;
        let update = clock.update(change.update);
        let mut carried_out = false;
        for _ in 0..MAX_SENDS {
            let outcome = locks
                .find_one_and_update(change.filter.clone(), update.clone())
                .upsert(change.upsert)
                .projection(clock.projection())
                .return_document(ReturnDocument::After)
                .await;
            let document = match outcome {
                Ok(Some(document)) => document,
                Ok(None) => return Ok(None),
                Err(race) if is_race(&race, "_id") => continue,
                // An earlier attempt was carried out, and may have been a grant, so the error is ambiguous.
                Err(error) if carried_out => {
                    let source = cause(error);
                    return Err(Error::Interrupted {
                        store: STORE,
                        source,
                    });
                }
                Err(error) => return Err(classify(error)),
            };
            let Decoded { record, now } = decode(&document)?;
            if let Some(now) = now {
                return Ok(Some((record, now)));
            }
            carried_out = true;
        }
        Err(Error::Interrupted {
            store: STORE,
            source: Cause::text("other clients, or the connection, got in between each time"),
        })
    }

    /// The reason why a conditional change left the document as it was: an error if the document is not a lock of this
    /// version, `Ok` if the condition was false.
    pub(super) async fn explain_refusal(self, key: &Key) -> Result<(), Error> {
        if let Some(document) = self.read(key).await? {
            decode::lock(&document, key)?;
        }
        Ok(())
    }

    /// The error of a statement that failed. The server fails to evaluate a statement on fields of some types. The
    /// document is then not a lock.
    pub(super) async fn explain_failure(self, key: &Key, error: Error) -> Error {
        match error {
            Error::Store { .. } => match explained(self.explain_refusal(key).await) {
                Err(not_a_lock) => not_a_lock,
                Ok(()) => error,
            },
            error => error,
        }
    }
}
