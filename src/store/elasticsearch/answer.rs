//! Reads the answers of a cluster. The code does not trust them: it checks each field.

use chrono::{DateTime, Utc};
use serde_json::Value;

use super::{error::ErrorResponse, statements};
use crate::{
    model::{Error, Holder, Key, LimiterRecord, LockRecord},
    store::json,
};

/// The outcome of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    Written,
    Deleted,
    None,
}

/// The outcome of a change, with the document as the script left it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ChangeOutcome {
    pub(crate) effect: Effect,
    pub(super) source: Value,
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
            index: refusal.index().map(str::to_owned),
            id: None,
            outcome: Err(refusal),
        }
    }

    /// Whether the change was carried out, on any document.
    pub(crate) fn was_carried_out(&self) -> bool {
        self.outcome.is_ok()
    }

    /// The outcome of the change of this document, in this index if the index is known.
    ///
    /// # Errors
    ///
    /// The problem, if the answer names another document or none. Then another document may have been changed, and
    /// nothing is known about this one.
    pub(crate) fn of(
        self,
        id: &str,
        index: Option<&str>,
    ) -> Result<Result<ChangeOutcome, ErrorResponse>, String> {
        let is_told = match &self.outcome {
            Ok(_) => true,
            // "No such document" is an answer too. It may leave out the index or the id.
            Err(refusal) if refusal.is_missing_document() => false,
            Err(_) => return Ok(self.outcome),
        };
        let is = |told: &Option<String>, asked: &str| match told {
            Some(told) => told == asked,
            None => !is_told,
        };
        if is(&self.id, id) && index.is_none_or(|index| is(&self.index, index)) {
            return Ok(self.outcome);
        }
        let shown = |text: Option<&str>| text.map_or("?".to_owned(), |text| format!("[{text}]"));
        Err(format!(
            "it is of the document {} in the index {}, and {} in {} was asked for: an ingest pipeline \
             sends what is written elsewhere, or an alias was moved",
            shown(self.id.as_deref()),
            shown(self.index.as_deref()),
            shown(Some(id)),
            shown(index),
        ))
    }
}

/// Reads the answer to an update, or an item of the answer to a bulk.
pub(crate) fn read(status: u16, mut answer: Value) -> ItemAnswer {
    let effect = match answer["result"].as_str() {
        Some("created" | "updated") => Ok(Effect::Written),
        Some("deleted") => Ok(Effect::Deleted),
        Some("noop") => Ok(Effect::None),
        _ => Err(ErrorResponse::read(status, &answer)),
    };
    let source = answer.pointer_mut("/get/_source").map(Value::take);
    let text = |name: &str| answer.get(name).and_then(Value::as_str).map(str::to_owned);
    let refused = effect.as_ref().err().and_then(ErrorResponse::index);
    ItemAnswer {
        index: refused.map(str::to_owned).or_else(|| text("_index")),
        id: text("_id"),
        outcome: effect.map(|effect| ChangeOutcome {
            effect,
            source: source.unwrap_or_default(),
        }),
    }
}

/// Reads the answer to a bulk of updates, in the order of its items.
pub(crate) fn read_bulk(mut answer: Value) -> Vec<ItemAnswer> {
    let items = answer.get_mut("items").and_then(Value::as_array_mut);
    let items = items.into_iter().flatten();
    items
        .map(|item| {
            let item = item.get_mut("update").map(Value::take);
            let item = item.unwrap_or_default();
            let status = item["status"].as_u64().and_then(|it| it.try_into().ok());
            // An item without a status counts as a success that makes no sense, which is ambiguous, as it would be as
            // an answer of its own.
            read(status.unwrap_or(200), item)
        })
        .collect()
}

impl ChangeOutcome {
    /// The lock, and the node's time. A change stores the time in the document; a script that changes nothing adds it
    /// to the answer. The time is `None` if the answer does not contain it. It is then not known which holders are
    /// live.
    ///
    /// # Errors
    ///
    /// [`Error::UnsupportedSchema`] for the document of a later version, [`Error::NotALock`] for
    /// anything else that is not a lock.
    pub(crate) fn record(&self, key: &Key) -> Result<(LockRecord, Option<DateTime<Utc>>), Error> {
        self.record_at(key, None)
    }

    /// As [`record`](Self::record). If the answer does not contain the node's time, the holders are judged by `at`, a
    /// lower bound of the node's time.
    pub(crate) fn record_at(
        &self,
        key: &Key,
        at: Option<DateTime<Utc>>,
    ) -> Result<(LockRecord, Option<DateTime<Utc>>), Error> {
        let now = self.now().map_err(|problem| not_a_lock(key, problem))?;
        let found = json::lock(&self.source, key)?;
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
        json::evicted(&self.source, key)
    }

    /// The limiter, and the node's time, as [`record`](Self::record) gives those of a lock.
    ///
    /// # Errors
    ///
    /// [`Error::UnsupportedSchema`] for the document of a later version, [`Error::NotALimiter`] for
    /// anything else that is not a limiter.
    pub(crate) fn limiter(
        &self,
        key: &Key,
    ) -> Result<(LimiterRecord, Option<DateTime<Utc>>), Error> {
        let now = self.now().map_err(|problem| Error::NotALimiter {
            key: key.clone(),
            problem: problem.to_owned(),
        })?;
        Ok((json::limiter(&self.source, key)?, now))
    }

    /// The node's time. In an answer that changed nothing, `written_at` is the time of an earlier change, so it must
    /// not be read then.
    fn now(&self) -> Result<Option<DateTime<Utc>>, &'static str> {
        let now = match self.effect {
            Effect::Written => &self.source["written_at"],
            Effect::None => &self.source["now"],
            Effect::Deleted => &Value::Null,
        };
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

/// The lock and the time from a hit of a search.
pub(crate) fn hit(hit: &Value, key: &Key) -> Result<(LockRecord, DateTime<Utc>), Error> {
    let found = json::lock(&hit["_source"], key)?;
    if hit["_id"] != *statements::id(key) {
        return Err(not_a_lock(key, "it is the document of another key"));
    }
    let now = hit["fields"]["now"][0]
        .as_i64()
        .and_then(DateTime::from_timestamp_millis);
    let now = now.ok_or_else(|| not_a_lock(key, "the search tells no time"))?;
    Ok((found.at(now)?, now))
}

fn not_a_lock(key: &Key, problem: impl ToString) -> Error {
    Error::NotALock {
        key: key.clone(),
        problem: problem.to_string(),
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

    fn noop(source: Value) -> ChangeOutcome {
        let effect = Effect::None;
        ChangeOutcome { effect, source }
    }

    #[test]
    fn a_lock_is_read_with_every_field() {
        let answer = json!({ "result": "noop", "get": { "_source": lock() } });
        let outcome = read(200, answer).outcome.unwrap();
        assert_eq!(outcome.effect, Effect::None);
        let (record, now) = outcome.record(&key()).unwrap();
        assert_eq!(now.unwrap().timestamp_millis(), 5);
        assert_eq!(record.fence, Fence::new(7));
        let holder = &record.holders[0];
        assert_eq!((holder.mode, holder.permits), (Mode::Permits, 3));
        assert_eq!(holder.note.as_deref(), Some("nightly"));
    }

    /// The time of the last change must not be taken for the time of an answer that changed nothing.
    #[test]
    fn the_time_is_that_of_the_answer() {
        let time = |effect, missing: &str| {
            let mut source = lock();
            source.as_object_mut().unwrap().remove(missing);
            let (_, now) = ChangeOutcome { effect, source }.record(&key()).unwrap();
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
            noop(later).record(&key()),
            Err(Error::UnsupportedSchema { .. })
        ));
        for field in ["schema", "fence", "expires_at", "holders", "now"] {
            let mut broken = lock();
            broken[field] = json!("nonsense");
            let outcome = noop(broken).record(&key());
            assert!(
                matches!(outcome, Err(Error::NotALock { .. })),
                "{field}: {outcome:?}"
            );
        }
        for field in ["lease", "mode", "permits", "fence", "expires_at"] {
            let mut broken = lock();
            broken["holders"][0][field] = json!(true);
            let outcome = noop(broken).record(&key());
            assert!(
                matches!(outcome, Err(Error::NotALock { .. })),
                "{field}: {outcome:?}"
            );
        }
    }

    #[test]
    fn nonsense_is_refused_and_no_panic() {
        for answer in [
            json!(null),
            json!([]),
            json!({ "result": 7 }),
            json!("text"),
        ] {
            assert!(read(200, answer.clone()).outcome.is_err());
            assert!(read_bulk(answer).is_empty());
        }
        let empty = read(200, json!({ "result": "updated", "get": 7 }));
        let empty = empty.outcome.unwrap();
        assert!(matches!(empty.record(&key()), Err(Error::NotALock { .. })));
    }

    /// The change may have been carried out.
    #[test]
    fn an_item_of_nonsense_is_ambiguous() {
        for item in [
            json!({}),
            json!({ "update": {} }),
            json!({ "update": 7 }),
            json!(7),
        ] {
            let answer = read_bulk(json!({ "items": [item] })).pop().unwrap();
            let refusal = answer.outcome.unwrap_err();
            let error = refusal.classify("Elasticsearch", None);
            assert!(error.is_ambiguous() && error.is_retryable(), "{error:?}");
        }
    }

    #[test]
    fn the_items_of_a_bulk_keep_their_order() {
        let error = json!({ "type": "document_missing_exception", "reason": "missing" });
        let answer = json!({ "errors": true, "items": [
            { "update": { "status": 404, "error": error } },
            { "update": { "status": 200, "result": "noop", "get": { "_source": lock() } } },
        ] });
        let answers = read_bulk(answer);
        let first = answers[0].outcome.as_ref();
        assert!(first.is_err_and(ErrorResponse::is_missing_document));
        assert!(answers[1].outcome.is_ok());
    }

    /// Answers that wrote and answers that did not, about this document and about others.
    #[test]
    fn an_answer_of_another_document_is_none() {
        let told = |result: &str, index: Value, id: Value| {
            read(200, json!({ "result": result, "_index": index, "_id": id }))
        };
        for result in ["created", "updated", "noop", "deleted"] {
            let right = told(result, json!("i"), json!("k"));
            assert!(matches!(right.of("k", Some("i")), Ok(Ok(_))), "{result}");
            for (index, id) in [("i", "other"), ("other", "k"), ("other", "other")] {
                let problem = told(result, json!(index), json!(id)).of("k", Some("i"));
                let problem = problem.unwrap_err();
                assert!(
                    problem.contains(&format!("[{id}] in the index [{index}]")),
                    "{problem}"
                );
            }
            for nothing in [Value::Null, json!(7), json!(["k"])] {
                assert!(
                    told(result, nothing.clone(), json!("k"))
                        .of("k", Some("i"))
                        .is_err()
                );
                assert!(
                    told(result, json!("i"), nothing)
                        .of("k", Some("i"))
                        .is_err()
                );
            }
            // A guard that does not know the index yet compares only the id.
            assert!(
                told(result, json!("other"), json!("k"))
                    .of("k", None)
                    .is_ok()
            );
            assert!(
                told(result, json!("i"), json!("other"))
                    .of("k", None)
                    .is_err()
            );
        }
    }

    #[test]
    fn that_another_document_is_missing_is_no_answer() {
        let missing = |index: Option<&str>, id: Option<&str>| {
            let error = json!({ "type": "document_missing_exception", "index": index });
            read(404, json!({ "_id": id, "error": error }))
        };
        for (index, id, is_it) in [
            (Some("i"), Some("k"), true),
            (Some("i"), None, true),
            (None, Some("k"), true),
            (Some("other"), Some("k"), false),
            (Some("i"), Some("other"), false),
        ] {
            let answer = missing(index, id).of("k", Some("i"));
            assert_eq!(answer.is_ok(), is_it, "{index:?} {id:?}");
        }
    }
}
