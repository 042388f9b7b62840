//! Locks and limiters as JSON documents. Each field is checked as it is read.
//!
//! Elasticsearch, OpenSearch and the rows of an SQLite file contain these documents. Times are in milliseconds since
//! 1970.

use chrono::{DateTime, Utc};
use serde_json::Value;
#[cfg(feature = "sqlite")]
use serde_json::json;

use crate::model::Holder;
#[cfg(feature = "sqlite")]
use crate::model::{Done, LIMITER_SCHEMA, LockRecord, Mode, Place, SCHEMA};
use crate::{
    model::{Error, Key, LimiterRecord},
    store::stored::{self, Field, Fields, Found, time_of},
};

/// Reads the document of a lock. Whether the document is damaged depends on the time, because expired holders do not
/// matter. So [`Found::at`] decides that, when the time is known.
///
/// # Errors
///
/// [`Error::UnsupportedSchema`] for the document of another version, [`Error::NotALock`] for anything
/// else that is not a lock.
pub(crate) fn lock(document: &Value, key: &Key) -> Result<Found, Error> {
    stored::lock(&Json(document), key)
}

/// Reads the evicted holders from the document of a lock, as the eviction left it.
///
/// # Errors
///
/// [`Error::NotALock`] if the field is missing or makes no sense.
#[cfg(any(feature = "elasticsearch", feature = "opensearch"))]
pub(crate) fn evicted(document: &Value, key: &Key) -> Result<Vec<Holder>, Error> {
    stored::evicted(&Json(document), key)
}

/// A document, or an element of a list, which may be a value that is not a document.
struct Json<'a>(&'a Value);

impl<'a> Json<'a> {
    fn read<T>(&self, field: &str, read: impl Fn(&'a Value) -> Option<T>) -> Field<T> {
        match self.0.get(field) {
            None | Some(Value::Null) => Field::Missing,
            Some(value) => read(value).map_or(Field::Wrong, Field::Is),
        }
    }
}

impl Fields for Json<'_> {
    fn text(&self, field: &str) -> Field<&str> {
        self.read(field, Value::as_str)
    }

    fn number(&self, field: &str) -> Field<i64> {
        self.read(field, number)
    }

    fn float(&self, field: &str) -> Field<f64> {
        self.read(field, Value::as_f64)
    }

    fn whole(&self, field: &str) -> Field<i64> {
        self.read(field, Value::as_i64)
    }

    fn time(&self, field: &str) -> Field<DateTime<Utc>> {
        self.read(field, |value| number(value).map(time_of))
    }

    fn document(&self, field: &str) -> Field<Self> {
        self.read(field, |value| value.is_object().then_some(Json(value)))
    }

    fn list(&self, field: &str) -> Field<Vec<Self>> {
        self.read(field, |value| {
            Some(value.as_array()?.iter().map(Json).collect())
        })
    }
}

/// A number without its fraction. A number that 64 bits cannot hold becomes the nearest one that they can.
fn number(value: &Value) -> Option<i64> {
    value.as_i64().or_else(|| Some(value.as_f64()? as i64))
}

/// Reads the document of a limiter.
///
/// # Errors
///
/// [`Error::UnsupportedSchema`] for the document of a later version, [`Error::NotALimiter`] for
/// anything else that is not the limiter of this key.
pub(crate) fn limiter(document: &Value, key: &Key) -> Result<LimiterRecord, Error> {
    let limiter = stored::limiter(&Json(document), key)?;
    if document["key"] != key.as_str() {
        return Err(Error::NotALimiter {
            key: key.clone(),
            problem: "it is the document of another key".to_owned(),
        });
    }
    Ok(limiter)
}

/// The document of a lock, for a store that writes it as a whole. The fields of a single exclusive holder are fields of
/// the document itself.
#[cfg(feature = "sqlite")]
pub(crate) fn of_lock(lock: &LockRecord) -> Value {
    let at = Some(lock.expires_at.timestamp_millis());
    let (sole, several, expires_at, released_at) = match &*lock.holders {
        [] => (None, &[][..], None, at),
        // None of these holders is live, and the key was released after the last one had expired.
        left if left.iter().all(|it| it.expires_at < lock.expires_at) => (None, left, None, at),
        [sole] if sole.mode == Mode::Exclusive && sole.fence == lock.fence => {
            let expires_at = sole.expires_at.timestamp_millis();
            (Some(sole), &[][..], Some(expires_at), None)
        }
        several => (None, several, at, None),
    };
    without_empty(json!({
        "schema": SCHEMA,
        "fence": lock.fence.get(),
        "lease": sole.map(|it| it.lease.to_string()),
        "owner": sole.map(|it| &*it.owner),
        "acquired_at": sole.map(|it| it.acquired_at.timestamp_millis()),
        "holders": several.iter().map(of_holder).collect::<Vec<_>>(),
        "expires_at": expires_at,
        "note": sole.and_then(|it| it.note.as_deref()),
        "released_at": released_at,
        "evicted": lock.evicted.iter().map(of_holder).collect::<Vec<_>>(),
        "waiters": lock.waiters.iter().map(of_place).collect::<Vec<_>>(),
        "done": lock.done.tick().map(of_done),
    }))
}

/// One of several holders.
#[cfg(feature = "sqlite")]
fn of_holder(holder: &Holder) -> Value {
    without_empty(json!({
        "lease": holder.lease.to_string(),
        "owner": &*holder.owner,
        "acquired_at": holder.acquired_at.timestamp_millis(),
        "expires_at": holder.expires_at.timestamp_millis(),
        "note": holder.note.as_deref(),
        "mode": holder.mode.as_str(),
        "permits": holder.permits,
        "fence": holder.fence.get(),
    }))
}

#[cfg(feature = "sqlite")]
fn of_place(place: &Place) -> Value {
    json!({
        "waiter": place.waiter.to_string(),
        "owner": &*place.owner,
        "mode": place.mode.as_str(),
        "permits": place.permits,
        "since": place.since.timestamp_millis(),
        "until": place.until.timestamp_millis(),
    })
}

#[cfg(feature = "sqlite")]
fn of_done(done: &Done) -> Value {
    json!({
        "kind": done.tick.kind().as_str(),
        "tick": done.tick.number(),
        "at": done.at.timestamp_millis(),
        "by": &*done.by,
        "lease": done.lease.to_string(),
        "until": done.until.timestamp_millis(),
    })
}

/// The document without the fields that are null or an empty list.
#[cfg(feature = "sqlite")]
fn without_empty(mut document: Value) -> Value {
    if let Some(fields) = document.as_object_mut() {
        fields.retain(|_, value| !value.is_null() && *value != json!([]));
    }
    document
}

/// The document of a limiter, for a store that writes it as a whole.
#[cfg(feature = "sqlite")]
pub(crate) fn of_limiter(limiter: &LimiterRecord) -> Value {
    json!({
        "limiter": LIMITER_SCHEMA,
        "key": limiter.key.as_str(),
        "granted_at": limiter.granted_at.timestamp_millis(),
        "used": limiter.used,
        "last": limiter.last.to_string(),
        "granted": limiter.granted,
        "over_at": limiter.over_at.timestamp_millis(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::FENCE_END;

    /// Programs whose numbers are all doubles, and Java, write them in these forms.
    #[test]
    fn a_fence_that_is_written_as_a_double_is_read_exactly() {
        for fence in (FENCE_END - 500)..FENCE_END {
            let digits = fence.to_string();
            let (first, rest) = digits.split_at(1);
            for text in [format!("{fence}.0"), format!("{first}.{rest}E15")] {
                let value: Value = serde_json::from_str(&text).unwrap();
                assert_eq!(number(&value), Some(fence), "{text}");
            }
        }
    }
}
