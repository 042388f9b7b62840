//! The rules in MongoDB's words: pure functions from a request to what is sent, and from a document
//! to a record.
//!
//! Each change is an update pipeline of one `$replaceWith`, behind a filter on `_id` alone: the
//! server then takes its shortest path to the document, which a condition in the filter would lose.
//! Conditions stand in the pipeline, and where they do not hold the pipeline gives back `$$ROOT`,
//! which the server recognises as no change and does not write.
//!
//! Text that comes from outside always stands in `$literal`: a key such as `$fence` is otherwise
//! read as a path.

use std::time::Duration;

use chrono::{DateTime, Utc};
use mongodb::bson::{self, Bson, Document, doc};

use crate::{
    AcquireRequest, Key, LeaseId, ListRequest, ReleaseRequest, RenewRequest, record::SCHEMA,
};

/// Finds the document of a key on the server's shortest path.
pub(crate) fn filter(key: &Key) -> Document {
    doc! { "_id": key.as_str() }
}

/// What an answer is read from: the document and the server's time, which is not stored.
pub(crate) fn projection() -> Document {
    doc! { "schema": 1, "fence": 1, "holders": 1, "expires_at": 1, "now": "$$NOW" }
}

/// Grants the lease if nobody is live. Needs an upsert.
///
/// An exclusive grant need not look at the holders: the key is free exactly if the latest expiry is
/// past. A missing expiry sorts before every date, so an upsert's new document is free too; that it
/// is new, and not somebody else's document, shows by its having nothing but `_id`.
pub(crate) fn acquire(request: &AcquireRequest) -> Vec<Document> {
    let key = literal(request.key.as_str());
    let fence = next_fence();
    let expires_at = from_now(request.ttl);
    let free = doc! { "$and": [
        { "$lte": ["$expires_at", "$$NOW"] },
        { "$or": [is_ours(), { "$eq": ["$$ROOT", { "_id": key }] }] },
    ] };
    let granted = doc! {
        "_id": "$_id",
        "schema": SCHEMA,
        "fence": fence.clone(),
        "holders": [{
            "lease": request.lease.to_string(),
            "owner": literal(&request.owner),
            "mode": "exclusive",
            "permits": 1_i64,
            "fence": fence,
            "acquired_at": "$$NOW",
            "expires_at": expires_at.clone(),
        }],
        "expires_at": expires_at,
    };
    replace_if(free, granted)
}

/// Gives a live lease its ttl anew.
pub(crate) fn renew(request: &RenewRequest) -> Vec<Document> {
    let lease = request.lease;
    let live = doc! { "$and": [
        is_ours(),
        { "$anyElementTrue": { "$map": {
            "input": "$holders",
            "in": { "$and": [is_lease(lease), { "$gt": ["$$this.expires_at", "$$NOW"] }] },
        } } },
    ] };
    let renewed = doc! { "$mergeObjects": ["$$this", { "expires_at": from_now(request.ttl) }] };
    let holders = doc! { "$map": {
        "input": "$holders",
        "in": { "$cond": [is_lease(lease), renewed, "$$this"] },
    } };
    replace_if(live, with_holders(holders))
}

/// Drops the lease from the holders.
pub(crate) fn release(request: &ReleaseRequest) -> Vec<Document> {
    let holds = doc! { "$and": [
        is_ours(),
        { "$in": [request.lease.to_string(), "$holders.lease"] },
    ] };
    let others = doc! { "$filter": {
        "input": "$holders",
        "cond": { "$not": [is_lease(request.lease)] },
    } };
    replace_if(holds, with_holders(others))
}

/// Ends every live lease and raises the fence.
pub(crate) fn evict() -> Vec<Document> {
    let live = doc! { "$filter": {
        "input": "$holders",
        "cond": { "$gt": ["$$this.expires_at", "$$NOW"] },
    } };
    let ended = doc! { "$map": {
        "input": live,
        "in": { "$mergeObjects": ["$$this", { "expires_at": "$$NOW" }] },
    } };
    let evicted = doc! {
        "_id": "$_id",
        "schema": SCHEMA,
        "fence": next_fence(),
        "holders": ended,
        "expires_at": "$$NOW",
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
    // Dates end somewhere; nothing is as old as that.
    const LONGEST: i64 = 1_000 * 365 * 24 * 60 * 60 * 1_000;
    let since = doc! { "$subtract": ["$$NOW", millis(retention).min(LONGEST)] };
    doc! { "$and": [
        is_ours(),
        { "$lte": ["$expires_at", since] },
        { "$lt": ["$fence", { "$toLong": "$$NOW" }] },
    ] }
}

fn replace_if(condition: Document, replacement: Document) -> Vec<Document> {
    vec![doc! { "$replaceWith": { "$cond": [condition, replacement, "$$ROOT"] } }]
}

/// The document with these holders, and the latest of their expiries, or now if there are none.
fn with_holders(holders: Document) -> Document {
    doc! { "$let": {
        "vars": { "holders": holders },
        "in": { "$mergeObjects": ["$$ROOT", {
            "holders": "$$holders",
            "expires_at": { "$ifNull": [{ "$max": "$$holders.expires_at" }, "$$NOW"] },
        }] },
    } }
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

fn is_lease(lease: LeaseId) -> Document {
    doc! { "$eq": ["$$this.lease", lease.to_string()] }
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
        Bson::Double(number) if number.fract() == 0.0 && number.abs() < 9e15 => Some(number as i64),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(text: &str) -> Key {
        Key::new(text).unwrap()
    }

    /// Every text in a document, with the field it stands in.
    fn texts(value: &Bson, field: &str, found: &mut Vec<(String, String)>) {
        match value {
            Bson::String(text) => found.push((field.to_owned(), text.clone())),
            Bson::Array(values) => values.iter().for_each(|value| texts(value, field, found)),
            Bson::Document(document) => document
                .iter()
                .for_each(|(field, value)| texts(value, field, found)),
            _ => {}
        }
    }

    #[test]
    fn text_from_outside_stands_in_literals() {
        let hostile = "$$ROOT";
        let request = AcquireRequest::exclusive(
            key(hostile),
            LeaseId::random(),
            hostile.into(),
            Duration::from_secs(1),
        );
        // Every other text of the pipeline is the same for any key and owner.
        let tame = AcquireRequest {
            key: key("k"),
            owner: "o".into(),
            ..request.clone()
        };
        let collect = |request: &AcquireRequest| {
            let mut found = Vec::new();
            for stage in acquire(request) {
                texts(&stage.into(), "", &mut found);
            }
            found
        };
        let (hostile, tame) = (collect(&request), collect(&tame));
        assert_eq!(hostile.len(), tame.len());
        let differing: Vec<_> = hostile
            .iter()
            .zip(&tame)
            .filter(|(one, other)| one != other)
            .map(|((field, _), _)| field.as_str())
            .collect();
        assert_eq!(differing, ["$literal", "$literal"]);
    }

    #[test]
    fn no_time_of_this_process_is_sent() {
        fn dates(value: &Bson) -> usize {
            match value {
                Bson::DateTime(_) | Bson::Timestamp(_) => 1,
                Bson::Array(values) => values.iter().map(dates).sum(),
                Bson::Document(document) => document.values().map(dates).sum(),
                _ => 0,
            }
        }
        let (lease, ttl) = (LeaseId::random(), Duration::from_secs(1));
        let statements = [
            acquire(&AcquireRequest::exclusive(
                key("k"),
                lease,
                "me".into(),
                ttl,
            )),
            renew(&RenewRequest::new(key("k"), lease, ttl)),
            release(&ReleaseRequest::new(key("k"), lease)),
            evict(),
            vec![expired(&key("k")), expired_since(ttl), projection()],
        ];
        for stage in statements.into_iter().flatten() {
            assert_eq!(dates(&stage.clone().into()), 0, "{stage}");
        }
    }

    #[test]
    fn a_change_is_one_replacement() {
        let (lease, ttl) = (LeaseId::random(), Duration::from_secs(1));
        let changes = [
            acquire(&AcquireRequest::exclusive(
                key("k"),
                lease,
                "me".into(),
                ttl,
            )),
            renew(&RenewRequest::new(key("k"), lease, ttl)),
            release(&ReleaseRequest::new(key("k"), lease)),
            evict(),
        ];
        for pipeline in changes {
            assert_eq!(pipeline.len(), 1);
            assert_eq!(pipeline[0].keys().collect::<Vec<_>>(), ["$replaceWith"]);
        }
        assert_eq!(filter(&key("k")).keys().collect::<Vec<_>>(), ["_id"]);
    }

    #[test]
    fn an_endless_retention_stays_within_the_dates() {
        let filter = expired_since(Duration::MAX).to_string();
        assert!(filter.contains("31536000000000"), "{filter}");
    }

    #[test]
    fn whole_numbers_of_any_type_are_integers() {
        assert_eq!(integer(&Bson::Int32(7)), Some(7));
        assert_eq!(integer(&Bson::Int64(7)), Some(7));
        assert_eq!(integer(&Bson::Double(7.0)), Some(7));
        assert_eq!(integer(&Bson::Double(7.5)), None);
        assert_eq!(integer(&Bson::Double(f64::NAN)), None);
        assert_eq!(integer(&"7".into()), None);
    }
}
