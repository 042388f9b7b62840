//! Reads documents as locks and limiters. The code does not trust them: it checks each field.
//!
//! The documents are read in their raw form. Building a map of each document, and of each holder in it, would cost more
//! than everything that is done with it.

use chrono::{DateTime, Utc};
use mongodb::bson::{RawBsonRef, RawDocument};

use super::{
    error::{interrupted, makes_no_sense},
    statements::utc,
};
use crate::{
    model::{Error, Key, LimiterRecord, LockRecord},
    rules,
    store::stored::{self, Field, Fields, Found, time_of},
};

/// A lock or a limiter from an answer, and the server's time.
#[derive(Debug)]
pub(crate) struct Decoded<R = LockRecord> {
    pub(crate) record: R,
    /// The server's time.
    ///
    /// `None` without the projection. It is also `None` if the driver sent a retryable write twice and the server had
    /// carried it out the first time. The answer is then the stored image of the document, without the projection (seen
    /// on 7.0.11).
    pub(crate) now: Option<DateTime<Utc>>,
}

/// Reads a lock from a document. [`Found::at`] decides whether the document is damaged, which depends on the time.
///
/// # Errors
///
/// [`Error::UnsupportedSchema`] for the document of another version, [`Error::NotALock`] for
/// anything else that is not a lock.
pub(crate) fn found(document: &RawDocument, key: &Key) -> Result<Found, Error> {
    stored::lock(&Raw(Some(document)), key).map_err(|error| match document.iter().nth(1) {
        Some(_) => error,
        // An acquire has created the document, and the clock had no fence for it.
        None => rules::no_next_fence(key),
    })
}

/// Reads a lock from an answer with `statements::projection`.
///
/// # Errors
///
/// As for [`found`], and [`Error::NotALock`] for a damaged document of a key with a live holder.
pub(crate) fn lock(answer: &RawDocument, key: &Key) -> Result<Decoded, Error> {
    let found = found(shown(answer), key)?;
    let now = now(answer).map_err(|problem| Error::not_a_lock(key, problem))?;
    let record = match now {
        Some(now) => found.at(now),
        None => found.at_any_time(),
    };
    record.map(|record| Decoded { record, now })
}

/// Reads a lock as an eviction left it, with the evicted holders.
///
/// # Errors
///
/// As for [`lock`], and [`Error::NotALock`] for a document that was not evicted because it has no next fence.
pub(crate) fn eviction(answer: &RawDocument, key: &Key) -> Result<LockRecord, Error> {
    let Decoded { mut record, now } = lock(answer, key)?;
    // An eviction may have left the last fence. Only its time tells it from one that was refused.
    let was_refused =
        |now| rules::next_fence(Some(record.fence), now).is_none() && now != record.expires_at;
    if now.is_some_and(was_refused) {
        return Err(rules::no_next_fence(key));
    }
    record.evicted = stored::evicted(&Raw(Some(shown(answer))), key)?;
    Ok(record)
}

/// Requires the server's time. Only an answer from the driver's retry can lack it.
pub(crate) fn timed<R>(Decoded { record, now }: Decoded<R>) -> Result<(R, DateTime<Utc>), Error> {
    now.map(|now| (record, now))
        .ok_or_else(|| interrupted("the server did not tell its time"))
}

/// The `_id` of the document in an answer with `statements::projection`, if it is a text.
pub(crate) fn id(answer: &RawDocument) -> Option<&str> {
    shown(answer).get_str("_id").ok()
}

/// The document in an answer with `statements::projection`; the answer itself if it is a stored image.
pub(crate) fn shown(answer: &RawDocument) -> &RawDocument {
    match get(answer, "document") {
        Some(RawBsonRef::Document(document)) if !is_stored_image(answer) => document,
        _ => answer,
    }
}

/// Whether the answer is the stored image of a document. The projection leaves out `_id`, which every document has.
fn is_stored_image(answer: &RawDocument) -> bool {
    get(answer, "_id").is_some()
}

/// A document in its raw form; `None` for an element of a list that is not a document.
struct Raw<'a>(Option<&'a RawDocument>);

impl<'a> Raw<'a> {
    fn read<T>(&self, field: &str, read: impl Fn(RawBsonRef<'a>) -> Option<T>) -> Field<T> {
        match self.0.and_then(|document| get(document, field)) {
            None | Some(RawBsonRef::Null | RawBsonRef::Undefined) => Field::Missing,
            Some(value) => read(value).map_or(Field::Wrong, Field::Is),
        }
    }
}

impl Fields for Raw<'_> {
    fn text(&self, field: &str) -> Field<&str> {
        match self.read(field, Some) {
            // `MinKey` sorts before null, so the server treats it as a missing text.
            Field::Is(RawBsonRef::MinKey) => Field::Missing,
            _ => self.read(field, RawBsonRef::as_str),
        }
    }

    fn number(&self, field: &str) -> Field<i64> {
        self.read(field, |value| match value {
            RawBsonRef::Double(number) => Some(number as i64),
            RawBsonRef::Decimal128(number) => {
                let number = number.to_string();
                // A decimal number with a fraction is written without an exponent, unless it is nearly 0. The fraction
                // is cut off before a double could round it up.
                let whole = number.split('.').next().filter(|_| !number.contains('E'));
                Some(whole.unwrap_or(&number).parse::<f64>().ok()? as i64)
            }
            value => whole(value),
        })
    }

    fn float(&self, field: &str) -> Field<f64> {
        self.read(field, float)
    }

    fn whole(&self, field: &str) -> Field<i64> {
        self.read(field, whole)
    }

    fn time(&self, field: &str) -> Field<DateTime<Utc>> {
        self.read(field, |value| {
            Some(time_of(value.as_datetime()?.timestamp_millis()))
        })
    }

    fn document(&self, field: &str) -> Field<Self> {
        self.read(field, |value| Some(Raw(Some(value.as_document()?))))
    }

    fn list(&self, field: &str) -> Field<Vec<Self>> {
        self.read(field, |value| {
            let elements = value.as_array()?.into_iter();
            let documents = elements.map(|element| element.ok()?.as_document());
            Some(documents.map(Raw).collect())
        })
    }
}

/// Reads a limiter from an answer with `statements::projection`.
///
/// # Errors
///
/// As for [`lock`], with [`Error::NotALimiter`] for a document that is not a limiter.
pub(crate) fn limiter(answer: &RawDocument, key: &Key) -> Result<Decoded<LimiterRecord>, Error> {
    let record = stored::limiter(&Raw(Some(shown(answer))), key)?;
    let now = now(answer).map_err(|problem| Error::NotALimiter {
        key: key.clone(),
        problem,
    })?;
    Ok(Decoded { record, now })
}

/// Reads a limiter from its document.
///
/// # Errors
///
/// As for [`limiter`].
pub(crate) fn limiter_document(document: &RawDocument, key: &Key) -> Result<LimiterRecord, Error> {
    stored::limiter(&Raw(Some(document)), key)
}

/// The server's time in an answer, or why it cannot be read.
fn now(answer: &RawDocument) -> Result<Option<DateTime<Utc>>, String> {
    match get(answer, "now") {
        Some(now) if !is_stored_image(answer) => {
            let now = now.as_datetime().and_then(utc);
            now.map(Some).ok_or_else(|| makes_no_sense("now"))
        }
        _ => Ok(None),
    }
}

/// A field of a document. A malformed field counts as missing.
pub(crate) fn get<'a>(document: &'a RawDocument, field: &str) -> Option<RawBsonRef<'a>> {
    document.get(field).ok().flatten()
}

fn whole(value: RawBsonRef<'_>) -> Option<i64> {
    match value {
        RawBsonRef::Int32(number) => Some(number.into()),
        RawBsonRef::Int64(number) => Some(number),
        _ => None,
    }
}

/// A number of any type. A long decimal number may lose digits here.
fn float(value: RawBsonRef<'_>) -> Option<f64> {
    match value {
        RawBsonRef::Double(number) => Some(number),
        RawBsonRef::Decimal128(number) => number.to_string().parse().ok(),
        value => whole(value).map(|number| number as f64),
    }
}

#[cfg(test)]
mod tests;
