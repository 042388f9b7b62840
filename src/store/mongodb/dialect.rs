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

mod grant;
mod hold;
mod permit;

use std::time::Duration;

use chrono::{DateTime, Utc};
use mongodb::bson::{self, Bson, Document, doc};

pub(crate) use self::{
    grant::acquire,
    hold::{convert, release, renew},
    permit::{limiter_filter, limiter_projection, over_since, permit},
};
use crate::{Key, LeaseId, ListRequest, record::SCHEMA};

/// A thousand years, in milliseconds. Dates end somewhere, and no sum or difference is to go there.
const LONGEST: i64 = 1_000 * 365 * 24 * 60 * 60 * 1_000;

/// Finds the document of a key on the server's shortest path.
pub(crate) fn filter(key: &Key) -> Document {
    doc! { "_id": key.as_str() }
}

/// What an answer is read from: the document and the server's time, which is not stored.
pub(crate) fn projection() -> Document {
    doc! { "schema": 1, "fence": 1, "holders": 1, "expires_at": 1, "now": "$$NOW" }
}

/// Ends every live lease and raises the fence.
pub(crate) fn evict() -> Vec<Document> {
    let live = doc! { "$filter": { "input": "$holders", "cond": is_live() } };
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

/// Whether a condition holds for one of the holders.
fn any(condition: Document) -> Document {
    doc! { "$anyElementTrue": { "$map": { "input": "$holders", "in": condition } } }
}

fn is_lease(lease: LeaseId) -> Document {
    doc! { "$eq": ["$$this.lease", lease.to_string()] }
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
        Bson::Double(number) if number.fract() == 0.0 && number.abs() < 9e15 => Some(number as i64),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        AcquireRequest, ConvertRequest, PermitId, PermitRequest, Quota, ReleaseRequest,
        RenewRequest,
    };

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

    const TTL: Duration = Duration::from_secs(1);

    fn ask(name: &str) -> AcquireRequest {
        AcquireRequest::exclusive(key(name), LeaseId::random(), name.into(), TTL)
    }

    /// Every way to ask for a key.
    fn asked(request: &AcquireRequest) -> Vec<AcquireRequest> {
        let modes = [
            request.clone(),
            request.clone().shared(),
            request.clone().permits(2, 3),
        ];
        let again = modes.clone().map(AcquireRequest::reentrant);
        modes.into_iter().chain(again).collect()
    }

    /// Every change that the dialect knows.
    fn changes() -> Vec<Vec<Document>> {
        let (key, lease) = (key("k"), LeaseId::random());
        let asked = asked(&ask("k"));
        let release = ReleaseRequest::new(key.clone(), lease);
        let mut changes: Vec<_> = asked.iter().map(acquire).collect();
        changes.extend([
            renew(&RenewRequest::new(key.clone(), lease, TTL)),
            convert(&ConvertRequest::upgrade(key.clone(), lease)),
            convert(&ConvertRequest::downgrade(key, lease)),
            self::release(&release),
            self::release(&release.min_hold(TTL, LeaseId::random())),
            evict(),
        ]);
        changes.extend(permits("k").iter().map(permit));
        changes
    }

    /// Every way to ask for permits.
    fn permits(name: &str) -> [PermitRequest; 2] {
        let fixed = Quota::fixed(10, TTL).unwrap();
        [fixed, fixed.smooth(3).unwrap()]
            .map(|quota| PermitRequest::new(key(name), PermitId::random(), quota, 2))
    }

    #[test]
    fn text_from_outside_stands_in_literals() {
        let collect = |request: &AcquireRequest| {
            let mut found = Vec::new();
            for stage in acquire(request) {
                texts(&stage.into(), "", &mut found);
            }
            found
        };
        let hostile = "$$ROOT";
        for request in asked(&ask(hostile).note(hostile)) {
            // Every other text of the pipeline is the same for any key, owner and note.
            let tame = AcquireRequest {
                key: key("k"),
                owner: "o".into(),
                note: Some("n".into()),
                ..request.clone()
            };
            let (hostile, tame) = (collect(&request), collect(&tame));
            assert_eq!(hostile.len(), tame.len());
            let differing: Vec<_> = hostile
                .iter()
                .zip(&tame)
                .filter(|(one, other)| one != other)
                .collect();
            assert!(differing.iter().all(|((field, _), _)| field == "$literal"));
            for tame in ["k", "o", "n"] {
                let stands = |(_, (_, text)): &(_, &(String, String))| text == tame;
                assert!(differing.iter().any(stands), "{request:?}");
            }
        }
    }

    #[test]
    fn the_key_of_a_limiter_stands_in_a_literal() {
        for request in permits("$$ROOT") {
            let mut found = Vec::new();
            texts(&Bson::from(permit(&request)), "", &mut found);
            let hostile = found.iter().filter(|(_, text)| text == "$$ROOT");
            // The pipeline has one of its own: the document as it is.
            let literal = hostile.filter(|(field, _)| field == "$literal").count();
            let mut tame = Vec::new();
            texts(&Bson::from(permit(&permits("k")[0])), "", &mut tame);
            let tame = tame
                .iter()
                .filter(|(field, text)| field == "$literal" && text == "k");
            assert_eq!(literal, tame.count());
        }
    }

    #[test]
    fn an_exclusive_grant_looks_at_no_holder_and_has_a_note_only_if_there_is_one() {
        let sent = |request: &AcquireRequest| format!("{:?}", acquire(request));
        for costly in ["$filter", "$map", "$let", "note"] {
            assert!(!sent(&ask("k")).contains(costly), "{costly}");
            let control = ask("k").permits(1, 2).reentrant().note("");
            assert!(sent(&control).contains(costly), "{costly}");
        }
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
        let mut finds = vec![expired(&key("k")), expired_since(TTL), projection()];
        finds.extend([over_since(TTL), limiter_projection()]);
        for stage in changes().into_iter().flatten().chain(finds) {
            assert_eq!(dates(&stage.clone().into()), 0, "{stage}");
        }
    }

    #[test]
    fn a_change_is_one_replacement() {
        for pipeline in changes() {
            assert_eq!(pipeline.len(), 1);
            assert_eq!(pipeline[0].keys().collect::<Vec<_>>(), ["$replaceWith"]);
        }
        assert_eq!(filter(&key("k")).keys().collect::<Vec<_>>(), ["_id"]);
    }

    #[test]
    fn an_endless_time_stays_within_the_dates() {
        let filter = expired_since(Duration::MAX).to_string();
        assert!(filter.contains("31536000000000"), "{filter}");
        let (lease, under) = (LeaseId::random(), LeaseId::random());
        let held_on = ReleaseRequest::new(key("k"), lease).min_hold(Duration::MAX, under);
        let held_on = format!("{:?}", release(&held_on));
        assert!(held_on.contains("31536000000000"), "{held_on}");
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
