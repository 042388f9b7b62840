//! Reads documents as locks and limiters. They are not trusted: each field is checked.
//!
//! The documents are read in their raw form. To build a map of each document, and of each holder in it, would
//! cost more than all that is done with it (`cpu` in `docs/performance.md`).

use chrono::{DateTime, Utc};
use mongodb::bson::{RawBsonRef, RawDocument};

use super::dialect::{utc, whole};
use crate::model::{
    Error, Fence, Holder, Key, LIMITER_SCHEMA, LeaseId, LimiterRecord, LockRecord, Mode, PermitId,
    SCHEMA,
};

/// A lock or a limiter, and the server's time, from an answer.
#[derive(Debug)]
pub(crate) struct Decoded<R = LockRecord> {
    pub(crate) record: R,
    /// The server's time, which the projection adds to the document.
    ///
    /// `None` without the projection. The answer to a retryable write lacks it too, if the driver sent the
    /// write twice and the server had carried it out the first time: it then gives back the stored image of
    /// the document (seen on 7.0.11).
    pub(crate) now: Option<DateTime<Utc>>,
}

/// A lock from a document read with the dialect's projection.
///
/// # Errors
///
/// [`Error::UnsupportedSchema`] for the document of a later version, [`Error::NotALock`] for
/// anything else that is not a lock.
pub(crate) fn lock(document: &RawDocument, key: &Key) -> Result<Decoded, Error> {
    match get(document, "schema").and_then(integer) {
        Some(SCHEMA) => {}
        Some(found) => {
            return Err(Error::UnsupportedSchema {
                key: key.clone(),
                found,
            });
        }
        None => {
            return Err(Error::NotALock {
                key: key.clone(),
                problem: "it has no schema number".to_owned(),
            });
        }
    }
    read(document, key).map_err(|error| not_a_lock(key, error))
}

/// A lock as an eviction left it, with the evicted holders.
///
/// # Errors
///
/// As for [`lock`].
pub(crate) fn eviction(document: &RawDocument, key: &Key) -> Result<LockRecord, Error> {
    let Decoded { mut record, .. } = lock(document, key)?;
    record.evicted = holders(document, "evicted").map_err(|error| not_a_lock(key, error))?;
    Ok(record)
}

fn not_a_lock(key: &Key, Unreadable(field): Unreadable) -> Error {
    Error::NotALock {
        key: key.clone(),
        problem: format!("its field {field} is missing or of the wrong type"),
    }
}

/// The field that could not be read.
struct Unreadable(&'static str);

fn read(document: &RawDocument, key: &Key) -> Result<Decoded, Unreadable> {
    let holders = holders(document, "holders")?;
    let fence = Fence::new(number(document, "fence")?);
    let expires_at = date(document, "expires_at")?;
    let record = LockRecord::new(key.clone(), fence, holders, expires_at);
    let now = now(document)?;
    Ok(Decoded { record, now })
}

fn holders(document: &RawDocument, field: &'static str) -> Result<Vec<Holder>, Unreadable> {
    let holders = get(document, field).and_then(RawBsonRef::as_array);
    let holders = holders.ok_or(Unreadable(field))?.into_iter();
    holders
        .map(|entry| {
            let entry = entry.ok().and_then(RawBsonRef::as_document);
            holder(entry.ok_or(Unreadable(field))?)
        })
        .collect()
}

/// A limiter from a document read with the dialect's projection.
///
/// # Errors
///
/// As for [`lock`], with [`Error::NotALimiter`] for what is not a limiter.
pub(crate) fn limiter(document: &RawDocument, key: &Key) -> Result<Decoded<LimiterRecord>, Error> {
    let key = key.clone();
    match get(document, "limiter").and_then(integer) {
        Some(LIMITER_SCHEMA) => {}
        Some(found) => return Err(Error::UnsupportedSchema { key, found }),
        None => {
            let problem = "it has no schema number".to_owned();
            return Err(Error::NotALimiter { key, problem });
        }
    }
    read_limiter(document, &key).map_err(|Unreadable(field)| {
        let problem = format!("its field {field} is missing or of the wrong type");
        Error::NotALimiter { key, problem }
    })
}

fn read_limiter(document: &RawDocument, key: &Key) -> Result<Decoded<LimiterRecord>, Unreadable> {
    let last = PermitId::parse(text(document, "last")?).ok_or(Unreadable("last"))?;
    let record = LimiterRecord::new(
        key.clone(),
        date(document, "granted_at")?,
        number(document, "used")?,
        (last, number(document, "granted")?),
        date(document, "over_at")?,
    );
    let now = now(document)?;
    Ok(Decoded { record, now })
}

fn now(document: &RawDocument) -> Result<Option<DateTime<Utc>>, Unreadable> {
    match get(document, "now") {
        Some(_) => date(document, "now").map(Some),
        None => Ok(None),
    }
}

fn holder(entry: &RawDocument) -> Result<Holder, Unreadable> {
    let lease = LeaseId::parse(text(entry, "lease")?).ok_or(Unreadable("lease"))?;
    let mut holder = Holder::exclusive(
        lease,
        text(entry, "owner")?.into(),
        Fence::new(number(entry, "fence")?),
        date(entry, "acquired_at")?,
        date(entry, "expires_at")?,
    );
    holder.mode = Mode::parse(text(entry, "mode")?).ok_or(Unreadable("mode"))?;
    holder.permits = number(entry, "permits")?;
    holder.note = match get(entry, "note") {
        None | Some(RawBsonRef::Null) => None,
        Some(_) => Some(text(entry, "note")?.into()),
    };
    Ok(holder)
}

fn text<'a>(document: &'a RawDocument, field: &'static str) -> Result<&'a str, Unreadable> {
    let value = get(document, field).and_then(RawBsonRef::as_str);
    value.ok_or(Unreadable(field))
}

fn number(document: &RawDocument, field: &'static str) -> Result<i64, Unreadable> {
    let value = get(document, field).and_then(integer);
    value.ok_or(Unreadable(field))
}

fn date(document: &RawDocument, field: &'static str) -> Result<DateTime<Utc>, Unreadable> {
    let value = get(document, field).and_then(RawBsonRef::as_datetime);
    value.and_then(utc).ok_or(Unreadable(field))
}

/// A field of a document. A malformed one counts as missing.
fn get<'a>(document: &'a RawDocument, field: &str) -> Option<RawBsonRef<'a>> {
    document.get(field).ok().flatten()
}

/// A whole number, in whichever type a person or another program stored it.
fn integer(value: RawBsonRef<'_>) -> Option<i64> {
    match value {
        RawBsonRef::Int32(number) => Some(number.into()),
        RawBsonRef::Int64(number) => Some(number),
        RawBsonRef::Double(number) => whole(number),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use mongodb::bson::{Bson, DateTime as Date, Document, RawDocumentBuf, doc};

    use super::*;

    fn key() -> Key {
        Key::new("k").unwrap()
    }

    fn lock(lease: LeaseId) -> Document {
        let date = Date::from_millis(5);
        doc! {
            "_id": "k", "schema": 1, "fence": 7_i64, "expires_at": date, "now": date,
            "holders": [{
                "lease": lease.to_string(), "owner": "me", "mode": "permits", "permits": 3,
                "fence": 7_i64, "acquired_at": date, "expires_at": date, "note": "nightly",
            }],
        }
    }

    fn decoded(document: &Document, key: &Key) -> Result<Decoded, Error> {
        super::lock(&RawDocumentBuf::try_from(document).unwrap(), key)
    }

    #[test]
    fn a_lock_is_read_with_every_field() {
        let lease = LeaseId::random();
        let Decoded { record, now } = decoded(&lock(lease), &key()).unwrap();
        assert_eq!(now.unwrap().timestamp_millis(), 5);
        assert_eq!(record.fence, Fence::new(7));
        let holder = &record.holders[0];
        assert_eq!((holder.lease, &*holder.owner), (lease, "me"));
        assert_eq!((holder.mode, holder.permits), (Mode::Permits, 3));
        assert_eq!(holder.note.as_deref(), Some("nightly"));
    }

    #[test]
    fn only_the_answer_to_an_eviction_looks_at_who_was_evicted() {
        let mut evicted = lock(LeaseId::random());
        let holders = evicted.remove("holders").unwrap();
        evicted.extend(doc! { "holders": [], "evicted": holders });
        let raw = |document: &Document| RawDocumentBuf::try_from(document).unwrap();
        let record = eviction(&raw(&evicted), &key()).unwrap();
        assert!(record.holders.is_empty());
        assert_eq!(record.evicted[0].note.as_deref(), Some("nightly"));
        for damage in [Bson::from("nobody"), Bson::from(vec![7])] {
            evicted.insert("evicted", damage);
            let error = eviction(&raw(&evicted), &key()).unwrap_err();
            assert!(
                matches!(&error, Error::NotALock { problem, .. } if problem.contains("evicted"))
            );
            assert!(decoded(&evicted, &key()).is_ok());
        }
    }

    #[test]
    fn a_later_schema_is_named() {
        let mut later = lock(LeaseId::random());
        later.insert("schema", 2);
        assert!(matches!(
            decoded(&later, &key()),
            Err(Error::UnsupportedSchema { found: 2, .. })
        ));
    }

    #[test]
    fn what_is_not_a_lock_is_named_by_its_field() {
        for field in ["schema", "fence", "expires_at", "now", "holders"] {
            let mut broken = lock(LeaseId::random());
            broken.insert(field, "nonsense");
            match decoded(&broken, &key()) {
                Err(Error::NotALock { problem, .. }) => {
                    assert!(problem.contains(field), "{problem}");
                }
                other => panic!("{field}: {other:?}"),
            }
        }
        for field in ["lease", "owner", "mode", "permits", "fence", "acquired_at"] {
            let mut broken = lock(LeaseId::random());
            let holders = broken.get_array_mut("holders").unwrap();
            holders[0].as_document_mut().unwrap().insert(field, true);
            match decoded(&broken, &key()) {
                Err(Error::NotALock { problem, .. }) => {
                    assert!(problem.contains(field), "{problem}");
                }
                other => panic!("{field}: {other:?}"),
            }
        }
    }
}
