//! Which keys other processes wait for.

use serde_json::Value;
use tokio::time::Instant;

use super::{
    error::ErrorResponse, index_store::IndexStore, send::Knows, statements, transport::Transport,
};
use crate::{
    model::{Error, Key},
    store::json,
};

impl<C: Transport> IndexStore<C> {
    /// Those of these keys that have a live place.
    ///
    /// A get of several documents does not tell the node's time, so the places are judged by the time of a recent
    /// answer. If there is none, the keys with places are inspected. Mostly no key has any, and the time does not
    /// matter then.
    pub(super) async fn keys_with_places(&self, keys: &[Key]) -> Result<Vec<Key>, Error> {
        if keys.is_empty() {
            return Ok(Vec::new());
        }
        let queued = self.queued(keys).await?;
        let Some(now) = self.clock.at(Instant::now()) else {
            return self.inspected(queued).await;
        };
        let is_live = |(key, document): &(&Key, Value)| {
            let lock = json::lock(document, key).and_then(|found| found.at(now));
            lock.is_ok_and(|lock| lock.live_places(now).next().is_some())
        };
        let live = queued.into_iter().filter(is_live);
        Ok(live.map(|(key, _)| key.clone()).collect())
    }

    /// The keys whose documents list places, live or not, with what was read of these documents.
    async fn queued<'a>(&self, keys: &'a [Key]) -> Result<Vec<(&'a Key, Value)>, Error> {
        let index = self.located().await?;
        let mut answer = self.ask(&self.statements.get_many(keys)).await?;
        let found = answer.get_mut("docs").and_then(Value::as_array_mut);
        let found = found.map(std::mem::take).unwrap_or_default();
        if found.len() != keys.len() {
            return Err(self.malformed("it has not as many documents as there were keys"));
        }
        let mut queued = Vec::new();
        for (key, mut document) in keys.iter().zip(found) {
            if !document["error"].is_null() {
                return Err(self.unread(&document, &index, key).await?);
            }
            if document["_index"] != *index || document["_id"] != *statements::id(key) {
                let (id, found) = (&document["_id"], &document["_index"]);
                let problem = format!("a get of {key} in {index} found {id} in {found}");
                return Err(self.other_index(&index, problem));
            }
            let source = document.get_mut("_source").map(Value::take);
            let source = match (document["found"].as_bool(), source) {
                (Some(true), Some(source @ Value::Object(_))) => source,
                (Some(false), None) => continue,
                _ => return Err(self.malformed("it does not say whether it has the document")),
            };
            let waiters = source["waiters"].as_array();
            if waiters.is_some_and(|waiters| !waiters.is_empty()) {
                queued.push((key, source));
            }
        }
        Ok(queued)
    }

    /// The error for a document that could not be read. The answer tells no status for it.
    async fn unread(&self, document: &Value, index: &str, key: &Key) -> Result<Error, Error> {
        let missing = ErrorResponse::read(404, document);
        if !missing.is_missing_index() {
            // Nothing was to be changed, and another copy of the shard may answer the next request.
            return Ok(ErrorResponse::read(503, document).classify(C::NAME, Some(key)));
        }
        let knows = self.knows(&self.statements.probe()).await?;
        if knows == Knows::Nothing {
            self.aliased_index.forget(index);
        }
        Ok(self.classify(missing, knows != Knows::Nothing, Some(key)))
    }

    /// Those of these keys that have a live place, by an inspection of each, all in one request.
    async fn inspected(&self, queued: Vec<(&Key, Value)>) -> Result<Vec<Key>, Error> {
        if queued.is_empty() {
            return Ok(Vec::new());
        }
        let changes = queued
            .iter()
            .map(|(key, _)| (*key, self.statements.inspect(key)));
        let outcomes = self.change_many(changes.collect()).await?;
        let mut live = Vec::new();
        for ((key, _), outcome) in queued.into_iter().zip(outcomes) {
            let Some(outcome) = outcome? else { continue };
            match self.timed(&outcome, key) {
                Ok((lock, now)) if lock.live_places(now).next().is_some() => live.push(key.clone()),
                Ok(_) | Err(Error::NotALock { .. } | Error::UnsupportedSchema { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(live)
    }
}
