//! Reads the answers of a cluster. The code does not trust them: it checks each field. That a document is missing follows
//! only from an answer about this very document.

use chrono::{DateTime, Utc};
use serde_json::Value;

use super::{
    error::ErrorResponse,
    server::{self, Server},
    statements::is_name,
};
use crate::{
    model::{Error, Holder, Key, LimiterRecord, LockRecord},
    store::json,
};

/// JSON with a success status, and who sent it.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    pub(crate) json: Value,
    pub(crate) server: Server,
}

impl Answer {
    /// Requires descriptions of indices, at least one.
    pub(crate) fn describes_indices(self) -> Result<Self, Error> {
        let is_description = |(name, index): (&String, &Value)| {
            let parts = [
                &index["aliases"],
                &index["mappings"],
                &index["settings"]["index"],
            ];
            is_name(name) && parts.into_iter().all(Value::is_object)
        };
        match self.json.as_object() {
            Some(found) if !found.is_empty() && found.iter().all(is_description) => Ok(self),
            _ => Err(self.server.malformed("it does not describe the index")),
        }
    }
}

/// The outcome of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    Written,
    Deleted,
    None,
    /// The document was missing, and the script has not created it.
    Absent,
}

/// The outcome of a change, with the document as the script left it, if it was asked for.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ChangeOutcome {
    pub(crate) effect: Effect,
    pub(super) source: Option<Value>,
    pub(crate) server: Server,
}

/// The outcome of a change, and the document that the answer names.
#[derive(Debug)]
pub(crate) struct ItemAnswer {
    pub(crate) outcome: Result<ChangeOutcome, ErrorResponse>,
    /// The index that the answer names.
    pub(crate) index: Option<String>,
    id: Option<String>,
}

impl ItemAnswer {
    /// The answer to a request that was refused as a whole.
    pub(crate) fn refused(refusal: ErrorResponse) -> Self {
        Self {
            index: refusal.index.clone(),
            id: None,
            outcome: Err(refusal),
        }
    }

    /// The outcome of the change of this document in this index.
    ///
    /// # Errors
    ///
    /// The problem, if the answer names another document or none. Then another document may have been changed, and
    /// nothing is known about this one.
    pub(crate) fn of(
        self,
        id: &str,
        index: &str,
    ) -> Result<Result<ChangeOutcome, ErrorResponse>, Error> {
        let server = match &self.outcome {
            Ok(outcome) => &outcome.server,
            // "No such document" is an answer about the document too.
            Err(refusal) if refusal.is_missing_document() => &refusal.server,
            Err(_) => return Ok(self.outcome),
        };
        if self.id.as_deref() == Some(id) && self.index.as_deref() == Some(index) {
            return Ok(self.outcome);
        }
        let shown = |text: &Option<String>| text.as_deref().map_or("none".to_owned(), server::name);
        Err(server.interrupted(format_args!(
            "an answer not to what was asked: [{}] in [{}] instead of [{}] in [{}]: an alias was moved",
            shown(&self.id),
            shown(&self.index),
            server::name(id),
            server::name(index),
        )))
    }
}

/// Reads the items of the answer to a bulk of updates, in the order of the changes, of which there were so many.
pub(crate) fn read_bulk(answer: Answer, changes: usize) -> Result<Vec<ItemAnswer>, Error> {
    let Answer { mut json, server } = answer;
    let items = json.get_mut("items").map(Value::take);
    match (json["errors"].as_bool(), items) {
        (Some(_), Some(Value::Array(items))) if items.len() == changes => {
            Ok(items.into_iter().map(|it| read(it, &server)).collect())
        }
        _ => Err(server.malformed("it has not one item for each change")),
    }
}

fn read(mut item: Value, server: &Server) -> ItemAnswer {
    // OpenSearch calls an update an index request if an ingest pipeline has failed.
    let kind = ["update", "index"]
        .into_iter()
        .find(|it| item.get(*it).is_some());
    let mut told = kind.map_or(Value::Null, |kind| item[kind].take());
    let status = told["status"].as_u64().and_then(|it| it.try_into().ok());
    let effect = match (kind, status, told["result"].as_str()) {
        (Some("update"), Some(200..=299), Some("created" | "updated")) => Ok(Effect::Written),
        (Some("update"), Some(200..=299), Some("deleted")) => Ok(Effect::Deleted),
        (Some("update"), Some(200..=299), Some("noop")) => match told["get"]["found"].as_bool() {
            Some(false) => Ok(Effect::Absent),
            _ => Ok(Effect::None),
        },
        (_, Some(status @ 400..), None) if told["error"]["type"].is_string() => {
            Err(ErrorResponse::read(status, &told["error"], server.clone()))
        }
        // An item that makes no sense is ambiguous, as an answer of a success status is that makes none.
        _ => Err(ErrorResponse::foreign(200, server.clone())),
    };
    let source = told.pointer_mut("/get/_source").map(Value::take);
    let text = |name: &str| told.get(name).and_then(Value::as_str).map(str::to_owned);
    let refused = effect
        .as_ref()
        .err()
        .and_then(|refusal| refusal.index.clone());
    ItemAnswer {
        index: refused.or_else(|| text("_index")),
        id: text("_id"),
        outcome: effect.map(|effect| ChangeOutcome {
            effect,
            source: source.filter(Value::is_object),
            server: server.clone(),
        }),
    }
}

impl ChangeOutcome {
    /// The lock, and the node's time. A change stores the time in the document; a script that changes nothing adds it
    /// to the answer. The time is `None` if the answer does not contain it. The holders are then judged by `at`, a lower
    /// bound of the node's time. Without that it is not known which holders are live.
    ///
    /// # Errors
    ///
    /// [`Error::UnsupportedSchema`] for the document of a later version, [`Error::NotALock`] for
    /// anything else that is not a lock.
    pub(crate) fn record(
        &self,
        key: &Key,
        at: Option<DateTime<Utc>>,
    ) -> Result<(LockRecord, Option<DateTime<Utc>>), Error> {
        let now = self
            .now()
            .map_err(|problem| Error::not_a_lock(key, problem))?;
        let found = json::lock(self.document()?, key)?;
        let record = match now.or(at) {
            Some(now) => found.at(now),
            None => found.at_any_time(),
        };
        Ok((record?, now))
    }

    /// The holders that an eviction removed.
    ///
    /// # Errors
    ///
    /// [`Error::NotALock`] if the document does not list them.
    pub(crate) fn evicted(&self, key: &Key) -> Result<Vec<Holder>, Error> {
        json::evicted(self.document()?, key)
    }

    /// The limiter, and the node's time, as [`record`](Self::record) gives those of a lock.
    ///
    /// # Errors
    ///
    /// [`Error::UnsupportedSchema`] for the document of a later version, [`Error::NotALimiter`] for
    /// anything else that is not a limiter.
    pub(crate) fn limiter(&self, key: &Key) -> Result<(LimiterRecord, DateTime<Utc>), Error> {
        let now = self.now().map_err(|problem| Error::NotALimiter {
            key: key.clone(),
            problem: problem.to_owned(),
        })?;
        let limiter = json::limiter(self.document()?, key)?;
        match now {
            Some(now) => Ok((limiter, now)),
            None => Err(self.server.malformed("it tells no time")),
        }
    }

    /// The document, where it was asked for.
    pub(crate) fn document(&self) -> Result<&Value, Error> {
        let document = self.source.as_ref();
        document.ok_or_else(|| self.server.malformed("it lacks the document"))
    }

    /// The node's time. In an answer that changed nothing, `written_at` is the time of an earlier change, so it must
    /// not be read then.
    fn now(&self) -> Result<Option<DateTime<Utc>>, &'static str> {
        let field = match self.effect {
            Effect::Written => "written_at",
            Effect::None => "now",
            Effect::Deleted | Effect::Absent => return Ok(None),
        };
        let now = self.source.as_ref().map_or(&Value::Null, |it| &it[field]);
        match now {
            Value::Null => Ok(None),
            now => now
                .as_i64()
                .and_then(DateTime::from_timestamp_millis)
                .map(Some)
                .ok_or("its time is no time"),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::model::{Fence, LeaseId, Mode, SCHEMA};

    fn key() -> Key {
        Key::new("k").unwrap()
    }

    fn lock() -> Value {
        json!({
            "key": "k", "schema": SCHEMA, "fence": 7, "expires_at": 9, "written_at": 4, "now": 5,
            "holders": [{
                "lease": LeaseId::random().to_string(), "owner": "me", "mode": "permits",
                "permits": 3, "fence": 7, "acquired_at": 1, "expires_at": 9, "note": "nightly",
            }],
        })
    }

    fn server() -> Server {
        Server {
            store: "Elasticsearch",
            host: "es:9200".into(),
        }
    }

    fn outcome(effect: Effect, source: Value) -> ChangeOutcome {
        ChangeOutcome {
            effect,
            source: Some(source),
            server: server(),
        }
    }

    fn noop(source: Value) -> ChangeOutcome {
        outcome(Effect::None, source)
    }

    fn bulk(json: Value, changes: usize) -> Result<Vec<ItemAnswer>, Error> {
        let server = server();
        read_bulk(Answer { json, server }, changes)
    }

    fn read(update: Value) -> ItemAnswer {
        let answer = json!({ "errors": false, "items": [{ "update": update }] });
        bulk(answer, 1).unwrap().remove(0)
    }

    #[test]
    fn a_lock_is_read_with_every_field() {
        let answer = json!({ "status": 200, "result": "noop", "get": { "_source": lock() } });
        let outcome = read(answer).outcome.unwrap();
        assert_eq!(outcome.effect, Effect::None);
        let (record, now) = outcome.record(&key(), None).unwrap();
        assert_eq!(now.unwrap().timestamp_millis(), 5);
        assert_eq!(record.fence, Fence::new(7));
        let holder = &record.holders[0];
        assert_eq!((holder.mode, holder.permits), (Mode::Permits, 3));
        assert_eq!(holder.note.as_deref(), Some("nightly"));
    }

    /// So both engines answer to an upsert whose script writes nothing.
    #[test]
    fn a_document_that_was_not_created_is_told_from_one_that_was_not_changed() {
        let answer = json!({
            "_index": "locks-v1", "_id": "k", "_version": -1, "result": "noop",
            "get": { "found": false }, "status": 200,
        });
        let outcome = read(answer).outcome.unwrap();
        assert_eq!(outcome.effect, Effect::Absent);
        assert!(outcome.document().is_err());
    }

    /// The time of the last change must not be taken for the time of an answer that changed nothing.
    #[test]
    fn the_time_is_that_of_the_answer() {
        let time = |effect, missing: &str| {
            let mut source = lock();
            source.as_object_mut().unwrap().remove(missing);
            let (_, now) = outcome(effect, source).record(&key(), None).unwrap();
            now.map(|now| now.timestamp_millis())
        };
        assert_eq!(time(Effect::Written, ""), Some(4));
        assert_eq!(time(Effect::None, ""), Some(5));
        assert_eq!(time(Effect::Written, "written_at"), None);
        assert_eq!(time(Effect::None, "now"), None);
    }

    #[test]
    fn what_is_not_a_lock_is_named() {
        let mut later = lock();
        later["schema"] = json!("leasehold.lock.2");
        assert!(matches!(
            noop(later).record(&key(), None),
            Err(Error::UnsupportedSchema { .. })
        ));
        for field in ["schema", "fence", "expires_at", "holders", "now"] {
            let mut broken = lock();
            broken[field] = json!("nonsense");
            let outcome = noop(broken).record(&key(), None);
            assert!(
                matches!(outcome, Err(Error::NotALock { .. })),
                "{field}: {outcome:?}"
            );
        }
        for field in ["lease", "mode", "permits", "fence", "expires_at"] {
            let mut broken = lock();
            broken["holders"][0][field] = json!(true);
            let outcome = noop(broken).record(&key(), None);
            assert!(
                matches!(outcome, Err(Error::NotALock { .. })),
                "{field}: {outcome:?}"
            );
        }
    }

    /// The change may have been carried out.
    #[test]
    fn nonsense_is_ambiguous_and_no_panic() {
        for answer in [
            json!(null),
            json!([]),
            json!("text"),
            json!({ "items": [] }),
            json!({ "errors": false, "items": {} }),
            json!({ "errors": false, "items": [] }),
            json!({ "errors": false, "items": [{}, {}] }),
            json!({ "items": [{ "update": { "status": 200, "result": "noop" } }] }),
        ] {
            let error = bulk(answer.clone(), 1).unwrap_err();
            assert!(error.is_ambiguous(), "{answer}: {error:?}");
        }
        let missing = json!({ "type": "document_missing_exception", "reason": "missing" });
        for item in [
            json!({}),
            json!({ "update": {} }),
            json!({ "update": 7 }),
            json!(7),
            json!({ "update": { "status": 200, "result": 7 } }),
            json!({ "update": { "result": "updated" } }),
            json!({ "update": { "status": 404, "result": "noop" } }),
            json!({ "index": { "status": 200, "result": "updated" } }),
            json!({ "update": { "error": missing } }),
            json!({ "update": { "status": 200, "error": missing } }),
            json!({ "update": { "status": 404 } }),
        ] {
            let answer = json!({ "errors": false, "items": [item] });
            let answer = bulk(answer, 1).unwrap().remove(0);
            let error = answer.outcome.unwrap_err().classify(None);
            assert!(
                error.is_ambiguous() && error.is_retryable(),
                "{item}: {error:?}"
            );
        }
        for got in [json!(null), json!(7), json!({}), json!({ "_source": 7 })] {
            let update = json!({ "status": 200, "result": "updated", "get": got });
            let error = read(update)
                .outcome
                .unwrap()
                .record(&key(), None)
                .unwrap_err();
            assert!(error.is_ambiguous(), "{error:?}");
        }
    }

    #[test]
    fn the_items_of_a_bulk_keep_their_order() {
        let error = json!({ "type": "document_missing_exception", "reason": "missing" });
        let answer = json!({ "errors": true, "items": [
            { "update": { "status": 404, "error": error } },
            { "update": { "status": 200, "result": "noop", "get": { "_source": lock() } } },
        ] });
        let answers = bulk(answer, 2).unwrap();
        let first = answers[0].outcome.as_ref();
        assert!(first.is_err_and(ErrorResponse::is_missing_document));
        assert!(answers[1].outcome.is_ok());
    }

    /// Answers that wrote and answers that did not, about this document and about others.
    #[test]
    fn an_answer_of_another_document_is_none() {
        let told = |result: &str, index: Value, id: Value| {
            let told = json!({ "status": 200, "result": result, "_index": index, "_id": id });
            read(told).of("k", "i")
        };
        for result in ["created", "updated", "noop", "deleted"] {
            let right = told(result, json!("i"), json!("k"));
            assert!(matches!(right, Ok(Ok(_))), "{result}");
            for (index, id) in [("i", "other"), ("other", "k"), ("other", "other")] {
                let error = told(result, json!(index), json!(id)).unwrap_err();
                let problem = std::error::Error::source(&error).unwrap().to_string();
                assert!(
                    problem.contains(&format!("[{id}] in [{index}]")),
                    "{problem}"
                );
            }
            for nothing in [Value::Null, json!(7), json!(["k"])] {
                assert!(told(result, nothing.clone(), json!("k")).is_err());
                assert!(told(result, json!("i"), nothing).is_err());
            }
        }
    }

    #[test]
    fn only_an_answer_of_a_document_says_that_it_is_missing() {
        for (index, id, is_it) in [
            (json!("i"), json!("k"), true),
            (json!("i"), json!(null), false),
            (json!(null), json!("k"), false),
            (json!("other"), json!("k"), false),
            (json!("i"), json!("other"), false),
        ] {
            let error = json!({ "type": "document_missing_exception", "index": index });
            let answer = read(json!({ "status": 404, "_id": id, "error": error }));
            assert_eq!(answer.of("k", "i").is_ok(), is_it, "{index:?} {id:?}");
        }
    }

    #[test]
    fn an_index_is_described_with_all_its_parts() {
        let whole = json!({ "aliases": {}, "mappings": {}, "settings": { "index": {} } });
        let described = |json: Value| {
            let server = server();
            Answer { json, server }.describes_indices().is_ok()
        };
        assert!(described(json!({ "locks-v1": whole })));
        for nonsense in [json!({}), json!([]), json!(null), json!("locks-v1")] {
            assert!(!described(nonsense));
        }
        for name in ["", "..", "a/b", "a,b", "*"] {
            assert!(!described(json!({ name: whole })), "{name}");
        }
        for part in ["aliases", "mappings", "settings"] {
            let mut half = whole.clone();
            half.as_object_mut().unwrap().remove(part);
            assert!(!described(json!({ "locks-v1": half })), "{part}");
        }
    }
}
