//! Changes of one document, among them conversions and permits, and the reasons why a change was refused or failed.

use chrono::{DateTime, Utc};
use mongodb::{
    bson::{Document, RawDocument},
    options::ReturnDocument,
};

use super::{
    MAX_SENDS,
    decode::{self, Decoded},
    error::{STORE, cause, classify, interrupted, is_race},
    pipelines::Pipelines,
    statements,
};
use crate::{
    messages::{ConvertAnswer, ConvertRequest, GiveBackRequest, PermitAnswer, PermitRequest},
    model::{Error, Key, LockRecord},
    rules,
    store::explained,
};

impl Pipelines<'_> {
    /// Changes the access of a lease.
    pub(super) async fn convert(self, request: &ConvertRequest) -> Result<ConvertAnswer, Error> {
        let update = statements::convert(request, self.store.retention);
        Ok(match self.change(&request.key, update, false).await? {
            Some((record, now)) => rules::answer_convert(Some(&record), request, now)?,
            None => ConvertAnswer::Expired,
        })
    }

    /// Asks a limiter for permits.
    pub(super) async fn permit(self, request: &PermitRequest) -> Result<PermitAnswer, Error> {
        let (filter, update) = (
            statements::limiter_filter(&request.key, &request.quota),
            statements::permit(request),
        );
        let decode = |document: &RawDocument| decode::limiter(document, &request.key);
        match self.send(filter, update, true, decode).await? {
            Some((record, now)) => Ok(rules::answer_permit(&record, request, now)),
            None => Err(interrupted("an upsert gave back no document")),
        }
    }

    /// Gives permits back to a limiter.
    pub(super) async fn give_back(self, request: &GiveBackRequest) -> Result<(), Error> {
        let locks = self.store.locks.durable_writes().await?;
        let filter = statements::limiter_filter(&request.key, &request.quota);
        let update = self.statement_clock.update(statements::give_back(request));
        locks.update_one(filter, update).await.map_err(classify)?;
        Ok(())
    }

    /// Sends a change that ends a lease or a place, and returns whether it changed the document.
    pub(super) async fn end(
        self,
        key: &Key,
        update: Vec<Document>,
        is_undoable: bool,
    ) -> Result<bool, Error> {
        let locks = self.store.writes_of_an_end(is_undoable).await?;
        let update = self.statement_clock.update(update);
        let changed = locks.update_one(statements::filter(key), update).await;
        match changed.map_err(classify) {
            Ok(changed) => Ok(changed.modified_count > 0),
            Err(error) => Err(self.explain_failure(key, error).await),
        }
    }

    /// Sends a change of a lock that is safe to send more than once. `None` if the document does not exist.
    pub(super) async fn change(
        self,
        key: &Key,
        update: Vec<Document>,
        upsert: bool,
    ) -> Result<Option<(LockRecord, DateTime<Utc>)>, Error> {
        let decode = |document: &RawDocument| decode::lock(document, key);
        let answer = self.send(statements::filter(key), update, upsert, decode);
        match answer.await {
            Err(error) => Err(self.explain_failure(key, error).await),
            answer => answer,
        }
    }

    /// Sends a change that is safe to send more than once, until the answer contains the server's time. `None` if the
    /// document does not exist.
    pub(super) async fn send<R>(
        self,
        filter: Document,
        update: Vec<Document>,
        upsert: bool,
        decode: impl Fn(&RawDocument) -> Result<Decoded<R>, Error>,
    ) -> Result<Option<(R, DateTime<Utc>)>, Error> {
        let locks = self.store.locks.durable_writes().await?;
        let clock = self.statement_clock;
        let update = clock.update(update);
        let mut carried_out = false;
        for _ in 0..MAX_SENDS {
            let outcome = locks
                .find_one_and_update(filter.clone(), update.clone())
                .upsert(upsert)
                .projection(clock.projection())
                .return_document(ReturnDocument::After)
                .await;
            let document = match outcome {
                Ok(Some(document)) => document,
                Ok(None) => return Ok(None),
                Err(race) if is_race(&race, "_id") => continue,
                // An earlier attempt was carried out, and may have been a grant, so the error is ambiguous.
                Err(error) if carried_out => {
                    let (store, source) = (STORE, cause(error));
                    return Err(Error::Interrupted { store, source });
                }
                Err(error) => return Err(classify(error)),
            };
            let Decoded { record, now } = decode(&document)?;
            if let Some(now) = now {
                return Ok(Some((record, now)));
            }
            carried_out = true;
        }
        Err(interrupted(
            "other clients, or the connection, got in between each time",
        ))
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
            Error::Store { .. } => {
                let not_a_lock = explained(self.explain_refusal(key).await).err();
                not_a_lock.unwrap_or(error)
            }
            error => error,
        }
    }
}
