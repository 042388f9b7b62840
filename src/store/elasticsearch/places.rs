//! Looks at leases that stay with their process.

use chrono::{DateTime, Utc};
use serde_json::Value;
use tokio::time::Instant;

use super::{
    answer::Answer,
    error::ErrorResponse,
    index_store::IndexStore,
    send::Knows,
    server::{Server, name},
    statements::{self, HttpRequest},
    transport::Transport,
};
use crate::{
    messages::{LookAnswer, LookRequest},
    model::{Error, Key, LeaseId, LockRecord},
    rules,
    store::json,
};

impl<C: Transport> IndexStore<C> {
    /// What a look at these leases tells.
    ///
    /// A get of several documents does not tell the node's time, so they are judged by the time of a recent answer. If
    /// there is none, a lease that has expired counts as a holder, and the keys with places are inspected. Mostly no key
    /// has any, and the time does not matter then.
    pub(super) async fn looked_at(&self, leases: &[LookRequest]) -> Result<Vec<LookAnswer>, Error> {
        if leases.is_empty() {
            return Ok(Vec::new());
        }
        let index = self.located().await?;
        let keys: Vec<_> = leases.iter().map(|it| &it.key).collect();
        let get = self.statements.get_many(&keys);
        let documents = self.documents(&get, &keys, &index).await?;
        let now = self.clock.at(Instant::now());
        let (mut answers, mut unclear) = (Vec::new(), Vec::new());
        for (request, document) in leases.iter().zip(documents) {
            if now.is_none() && document.as_ref().is_some_and(has_places) {
                unclear.push((answers.len(), request));
            }
            let lock = document.map(|document| {
                let now = now.unwrap_or(DateTime::<Utc>::MIN_UTC);
                Ok((json::lock(&document, &request.key)?.at(now)?, now))
            });
            answers.push(looked(lock, request.lease)?);
        }
        if unclear.is_empty() {
            return Ok(answers);
        }
        let inspect = |it: &LookRequest| self.statements.inspect(&it.key);
        let changes = unclear.iter().map(|(_, it)| (&it.key, inspect(it)));
        let outcomes = self.change_many(changes.collect()).await?;
        for ((at, LookRequest { key, lease }), outcome) in unclear.into_iter().zip(outcomes) {
            let lock = outcome?.map(|outcome| self.timed(&outcome, key));
            let answer = looked(lock, *lease)?;
            if let Some(place) = answers.get_mut(at) {
                *place = answer;
            }
        }
        Ok(answers)
    }

    /// What a get has read of the documents of these keys, in the same order. `None` for a document that is missing.
    pub(super) async fn documents(
        &self,
        get: &HttpRequest,
        keys: &[&Key],
        index: &str,
    ) -> Result<Vec<Option<Value>>, Error> {
        let Answer { mut json, server } = self.ask(get).await?;
        let found = json.get_mut("docs").and_then(Value::as_array_mut);
        let found = found.map(std::mem::take).unwrap_or_default();
        if found.len() != keys.len() {
            return Err(server.malformed("it has not as many documents as there were keys"));
        }
        let mut documents = Vec::new();
        for (key, mut document) in keys.iter().zip(found) {
            if !document["error"].is_null() {
                return Err(self.unread(&document["error"], server, index, key).await?);
            }
            if document["_index"] != *index || document["_id"] != *statements::id(key) {
                let [id, found] = ["_id", "_index"].map(|it| name(&document[it].to_string()));
                let problem = format!("a get of one document found {id} in {found}");
                return Err(self.other_index(index, &server, problem));
            }
            let source = document.get_mut("_source").map(Value::take);
            match (document["found"].as_bool(), source) {
                (Some(true), Some(source @ Value::Object(_))) => documents.push(Some(source)),
                (Some(false), None) => documents.push(None),
                _ => return Err(server.malformed("it does not say whether it has the document")),
            }
        }
        Ok(documents)
    }

    /// The error for a document that could not be read. The answer tells no status for it.
    async fn unread(
        &self,
        error: &Value,
        server: Server,
        index: &str,
        key: &Key,
    ) -> Result<Error, Error> {
        let missing = ErrorResponse::read(404, error, server.clone());
        if !missing.is_missing_index() {
            // Nothing was to be changed, and another copy of the shard may answer the next request.
            return Ok(ErrorResponse::read(503, error, server).classify(Some(key)));
        }
        let recovers = self.knows(&self.statements.probe()).await? != Knows::Nothing;
        if !recovers {
            self.aliased_index.forget(index);
        }
        Ok(self.classify(missing, recovers, Some(key)))
    }
}

/// What a look at this lease tells, by what was found of its key.
fn looked(
    lock: Option<Result<(LockRecord, DateTime<Utc>), Error>>,
    lease: LeaseId,
) -> Result<LookAnswer, Error> {
    let lock = rules::found(lock.transpose())?;
    let look = lock.map(|(lock, now)| rules::look(&rules::inspect(&lock, now), lease));
    Ok(look.unwrap_or_default())
}

/// Whether the document lists places, live or not.
fn has_places(document: &Value) -> bool {
    let waiters = document["waiters"].as_array();
    waiters.is_some_and(|waiters| !waiters.is_empty())
}
