//! The rules in MongoDB's words: pure functions from a request to what is sent, and from a document
//! to a record.
//!
//! Each change is an update pipeline of one `$replaceWith`, behind a filter on `_id` alone: the
//! server then takes its shortest path to the document, which a condition in the filter would lose.
//! Conditions stand in the pipeline, and where they do not hold the pipeline gives back `$$ROOT`,
//! which the server recognises as no change and does not write; a release among many fails there.
//!
//! Text that comes from outside always stands in `$literal`: a key such as `$fence` is otherwise
//! read as a path.

mod grant;
mod hold;
mod permit;
#[cfg(test)]
mod tests;

use std::time::Duration;

use chrono::{DateTime, Utc};
use mongodb::bson::{self, Bson, Document, doc, oid::ObjectId};

pub(crate) use self::{
    grant::{acquire, take_over_alone},
    hold::{NOT_HELD, convert, release, release_alone, release_or_fail, renew, renew_together},
    permit::{limiter_filter, limiter_projection, over_since, permit},
};
use crate::{
    messages::ListRequest,
    model::{Key, LeaseId, SCHEMA},
};

/// A thousand years, in milliseconds. Dates end somewhere, and no sum or difference is to go there.
const LONGEST: i64 = 1_000 * 365 * 24 * 60 * 60 * 1_000;

const HOUR: i64 = 60 * 60 * 1_000;
/// The end of the year 9999, in milliseconds: later than that a fence is no date.
const LAST: i64 = 253_402_300_799_999;

/// Finds the document of a key on the server's shortest path.
pub(crate) fn filter(key: &Key) -> Document {
    doc! { "_id": key.as_str() }
}

/// What an answer is read from: the document and the server's time, which is not stored.
pub(crate) fn projection() -> Document {
    doc! { "schema": 1, "fence": 1, "holders": 1, "expires_at": 1, "now": "$$NOW" }
}

/// The same of an eviction, with those who were evicted.
pub(crate) fn eviction_projection() -> Document {
    let mut shown = projection();
    shown.insert("evicted", 1);
    shown
}

/// Ends every live lease and raises the fence. The names of the leases go from the holders.
pub(crate) fn evict(retention: Duration) -> Vec<Document> {
    let evicted = doc! {
        "_id": "$_id",
        "schema": SCHEMA,
        "fence": next_fence(),
        "holders": [],
        "expires_at": "$$NOW",
        "cleanup_at": cleanup_at("$$NOW", next_fence(), retention),
        "evicted": { "$filter": { "input": "$holders", "cond": is_live() } },
    };
    replace_if(is_ours(), evicted)
}

/// The documents of a page: those after a key, from the first that begins with the prefix. Keys are
/// compared by their bytes, so all that begin with it stand together.
pub(crate) fn page(request: &ListRequest) -> Document {
    let filter = &request.filter;
    let mut keys = doc! { "$gte": filter.wanted_prefix() };
    if let Some(after) = &request.after {
        // Both bounds: the later of them counts.
        keys.insert("$gt", after.as_str());
    }
    let mut wanted = doc! { "_id": keys, "schema": SCHEMA };
    if filter.wants_live() {
        wanted.insert("$expr", doc! { "$gt": ["$expires_at", "$$NOW"] });
    }
    if let Some(owner) = filter.wanted_owner() {
        wanted.insert("holders.owner", owner);
    }
    wanted
}

/// The document of this key, if it may be removed.
pub(crate) fn expired(key: &Key) -> Document {
    doc! { "_id": key.as_str(), "schema": SCHEMA, "$expr": removable(Duration::ZERO) }
}

/// Every document that may be removed.
pub(crate) fn expired_since(retention: Duration) -> Document {
    doc! { "schema": SCHEMA, "$expr": removable(retention) }
}

fn removable(retention: Duration) -> Document {
    let since = doc! { "$subtract": ["$$NOW", millis(retention).min(LONGEST)] };
    doc! { "$and": [
        is_ours(),
        { "$lte": ["$expires_at", since.clone()] },
        { "$lt": ["$fence", { "$toLong": since }] },
    ] }
}

/// Leaves a mark in the document of a lock: a write that nothing else depends on. Whatever replaces the
/// document drops the mark, or carries it along. One that was there already would change nothing.
pub(crate) fn touch(mark: ObjectId) -> Vec<Document> {
    let touched = doc! { "$mergeObjects": ["$$ROOT", { "touched": mark }] };
    replace_if(is_ours(), touched)
}

fn replace_if(condition: Document, replacement: Document) -> Vec<Document> {
    vec![doc! { "$replaceWith": { "$cond": [condition, replacement, "$$ROOT"] } }]
}

/// The document with these holders, and the latest of their expiries, or now if there are none.
fn with_holders(holders: Document, retention: Duration) -> Document {
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

/// From when on the TTL index removes a document with this expiry and fence, both of which have to be past
/// for the retention: without the document the next fence is taken from the clock.
///
/// It goes up in steps and never down, so that grants, renewals and releases of a key that is in use leave
/// its entry in the index where it is, but for one an hour.
fn cleanup_at(
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

/// Whether the document is a lock: a number under `schema` may be anybody's.
fn is_ours() -> Document {
    doc! { "$and": [
        { "$eq": ["$schema", SCHEMA] },
        { "$isArray": "$holders" },
        { "$eq": [{ "$type": "$expires_at" }, "date"] },
        { "$in": [{ "$type": "$fence" }, ["long", "int"]] },
    ] }
}

/// Whether a condition holds for one of the holders.
fn any(condition: Document) -> Document {
    doc! { "$anyElementTrue": { "$map": { "input": "$holders", "in": condition } } }
}

fn is_lease(lease: LeaseId) -> Document {
    doc! { "$eq": ["$$this.lease", lease.to_string()] }
}

/// Whether the lease is among the holders, live or not, of a document that is a lock.
fn holds(lease: LeaseId) -> Document {
    doc! { "$in": [lease.to_string(), "$holders.lease"] }
}

fn is_live() -> Document {
    doc! { "$gt": ["$$this.expires_at", "$$NOW"] }
}

/// Without a fence the sum is null, which `$max` leaves out.
fn next_fence() -> Document {
    doc! { "$max": [{ "$add": ["$fence", 1_i64] }, { "$toLong": "$$NOW" }] }
}

fn from_now(ttl: Duration) -> Document {
    doc! { "$add": ["$$NOW", millis(ttl)] }
}

fn literal(text: &str) -> Document {
    doc! { "$literal": text }
}

fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

/// A date as the API has it; `None` beyond the years that a calendar counts.
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
