//! Expressions that all statements are made of: conditions and values as MongoDB evaluates them.

use std::time::Duration;

use chrono::{DateTime, Utc};
use mongodb::bson::{self, Bson, Document, doc};

use crate::model::{LeaseId, SCHEMA};

/// A thousand years, in milliseconds: the bound of durations, so that sums and differences stay within the
/// range of dates.
pub(super) const LONGEST: i64 = 1_000 * 365 * 24 * 60 * 60 * 1_000;

const HOUR: i64 = 60 * 60 * 1_000;
/// The end of the year 9999, in milliseconds. A later fence counts as this, so that the date of the clean-up
/// stays within the range of dates.
const LAST: i64 = 253_402_300_799_999;

pub(super) fn replace_if(condition: Document, replacement: Document) -> Vec<Document> {
    vec![doc! { "$replaceWith": { "$cond": [condition, replacement, "$$ROOT"] } }]
}

/// The document with these holders, and the latest of their expiries, or now if there are none.
pub(super) fn with_holders(holders: Document, retention: Duration) -> Document {
    let expires_at = doc! { "$ifNull": [{ "$max": "$$holders.expires_at" }, "$$NOW"] };
    doc! { "$let": {
        "vars": { "holders": holders },
        "in": { "$mergeObjects": ["$$ROOT", {
            "holders": "$$holders",
            "expires_at": expires_at.clone(),
            "cleanup_at": cleanup_at(expires_at, "$fence", retention),
        }] },
    } }
}

/// The date from which the TTL index removes a document: its expiry and its fence both have to be past for
/// the retention. The fence has to, because without the document the next one is taken from the clock.
///
/// The date goes up in steps of at most an hour, and never down. So most grants, renewals and releases of a
/// key that is in use leave its entry in the index where it is.
pub(super) fn cleanup_at(
    expires_at: impl Into<Bson>,
    fence: impl Into<Bson>,
    retention: Duration,
) -> Document {
    let retention = millis(retention).min(LONGEST);
    let step = (retention / 24).clamp(1, HOUR);
    let latest = doc! { "$max": [{ "$toLong": expires_at.into() }, fence.into()] };
    // The clock has passed a fence in the millisecond after it.
    let past = doc! { "$add": [{ "$min": [latest, LAST] }, retention + 1] };
    let steps = doc! { "$ceil": { "$divide": [past, step] } };
    let at = doc! { "$toDate": { "$multiply": [steps, step] } };
    doc! { "$max": ["$cleanup_at", at] }
}

/// Whether the document is a lock: a foreign document may have a number under `schema`.
pub(super) fn is_ours() -> Document {
    doc! { "$and": [
        { "$eq": ["$schema", SCHEMA] },
        { "$isArray": "$holders" },
        { "$eq": [{ "$type": "$expires_at" }, "date"] },
        { "$in": [{ "$type": "$fence" }, ["long", "int"]] },
    ] }
}

/// Whether a condition holds for one of the holders.
pub(super) fn any(condition: Document) -> Document {
    doc! { "$anyElementTrue": { "$map": { "input": "$holders", "in": condition } } }
}

pub(super) fn is_lease(lease: LeaseId) -> Document {
    doc! { "$eq": ["$$this.lease", lease.to_string()] }
}

/// Whether the lease is among the holders, live or not, of a document that is a lock.
pub(super) fn holds(lease: LeaseId) -> Document {
    doc! { "$in": [lease.to_string(), "$holders.lease"] }
}

pub(super) fn is_live() -> Document {
    doc! { "$gt": ["$$this.expires_at", "$$NOW"] }
}

/// In a new document there is no fence. The sum is null then, which `$max` leaves out.
pub(super) fn next_fence() -> Document {
    doc! { "$max": [{ "$add": ["$fence", 1_i64] }, { "$toLong": "$$NOW" }] }
}

pub(super) fn from_now(ttl: Duration) -> Document {
    doc! { "$add": ["$$NOW", millis(ttl)] }
}

pub(super) fn literal(text: &str) -> Document {
    doc! { "$literal": text }
}

pub(super) fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

/// The date as one of chrono; `None` if it is out of chrono's range.
pub(crate) fn utc(date: bson::DateTime) -> Option<DateTime<Utc>> {
    DateTime::from_timestamp_millis(date.timestamp_millis())
}

/// A whole number, in whichever type a person or another program stored it.
pub(crate) fn integer(value: &Bson) -> Option<i64> {
    match *value {
        Bson::Int32(number) => Some(number.into()),
        Bson::Int64(number) => Some(number),
        Bson::Double(number) => whole(number),
        _ => None,
    }
}

/// A double that is a whole number, as far as doubles are exact.
pub(crate) fn whole(number: f64) -> Option<i64> {
    (number.fract() == 0.0 && number.abs() < 9e15).then_some(number as i64)
}
