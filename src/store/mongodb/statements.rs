//! The rules as statements of MongoDB: pure functions from a request to what is sent.
//!
//! Each change is an update pipeline with one `$replaceWith`. The filter contains only `_id`, so that the server takes
//! its shortest path to a document; with a condition in the filter it would not. Two of the statements for many
//! documents, `renew_together` and `release_together`, also filter on `lease`. All other conditions are in the pipeline.
//! If they are false, the pipeline returns `$$ROOT`, which the server recognises as no change and does not write. Only
//! `release_or_fail` fails instead.
//!
//! In a pipeline, text from outside is always in a `$literal`: a key such as `$fence` would otherwise be read as a
//! path.

mod done;
mod expressions;
mod grant;
mod holders;
mod lease;
mod permit;
#[cfg(test)]
mod tests;
mod turn;

use std::time::Duration;

use mongodb::bson::{Document, doc};

use self::expressions::{
    MAX_DURATION_MILLIS, cleanup_at, has_next_fence, holders, is_live, is_lock, lock, make_sense,
    next_fence, of_clock, replace_by_all, replace_if, with,
};

pub(crate) use self::{
    expressions::{integer, millis, utc},
    grant::{Form, acquire, acquire_together, are_alike, is_plain},
    lease::{
        NOT_HELD, convert, release, release_or_fail, release_sole, release_together, renew,
        renew_together,
    },
    permit::{give_back, limiter_filter, over_since, permit},
};
use crate::{
    messages::ListRequest,
    model::{Key, LeaseId, SCHEMA},
};

/// Matches the documents of these keys.
pub(crate) fn of_keys(keys: Vec<&str>) -> Document {
    doc! { "_id": { "$in": keys } }
}

/// Finds the document of a key on the server's shortest path.
pub(crate) fn filter(key: &Key) -> Document {
    doc! { "_id": key.as_str() }
}

/// The document, and the server's time, which is not stored. The whole document costs the server less than a list of
/// its fields.
pub(crate) fn projection() -> Document {
    doc! { "_id": 0, "document": "$$ROOT", "now": "$$NOW" }
}

/// Removes the place of a process.
pub(crate) fn leave(waiter: LeaseId) -> Vec<Document> {
    let waits = doc! { "$in": [waiter.to_string(), { "$ifNull": ["$waiters.waiter", []] }] };
    let waits = doc! { "$and": [{ "$isArray": "$waiters" }, waits, is_known()] };
    let left = doc! { "$setField": {
        "field": "waiters",
        "input": "$$ROOT",
        "value": turn::leave(waiter),
    } };
    replace_if(waits, left)
}

/// Ends every live lease and raises the fence. The live holders are moved to `evicted`.
pub(crate) fn evict(retention: Duration) -> Vec<Document> {
    let ended = lock(
        next_fence(),
        cleanup_at("$$NOW", Duration::ZERO, retention),
        doc! {
            "released_at": "$$NOW",
            "next": turn::NEXT,
            "evicted": { "$filter": { "input": "$$all", "cond": is_live() } },
        },
    );
    let known = doc! { "$and": [has_next_fence(), make_sense("$$all")] };
    replace_by_all(doc! { "$cond": [known, ended, "$$ROOT"] })
}

/// The documents of a page: those after a key, beginning with the first key that has the prefix. Keys are compared by
/// their bytes, so all keys with the prefix are next to each other.
pub(crate) fn page(request: &ListRequest) -> Document {
    let filter = &request.filter;
    let mut wanted = keys_of_page(request);
    wanted.insert("schema", SCHEMA);
    if filter.wants_live() {
        wanted.insert("$expr", doc! { "$gt": ["$expires_at", "$$NOW"] });
    }
    if let Some(owner) = filter.wanted_owner() {
        let held = ["owner", "holders.owner"].map(|field| doc! { field: owner });
        wanted.insert("$or", held.as_slice());
    }
    wanted
}

/// The range of keys of a page.
pub(crate) fn keys_of_page(request: &ListRequest) -> Document {
    let mut keys = doc! { "$gte": request.filter.wanted_prefix() };
    if let Some(after) = &request.after {
        // Both bounds are sent; the greater one counts.
        keys.insert("$gt", after.as_str());
    }
    doc! { "_id": keys }
}

/// Matches the document of this key if it may be removed.
pub(crate) fn expired(key: &Key) -> Document {
    doc! { "_id": key.as_str(), "schema": SCHEMA, "$expr": removable(Duration::ZERO) }
}

/// Matches every lock that may be removed with this retention.
pub(crate) fn expired_since(retention: Duration) -> Document {
    doc! { "schema": SCHEMA, "$expr": removable(retention) }
}

fn removable(retention: Duration) -> Document {
    let since = doc! { "$subtract": ["$$NOW", millis(retention).min(MAX_DURATION_MILLIS)] };
    doc! { "$and": [
        is_lock(),
        { "$lte": [{ "$ifNull": ["$expires_at", "$released_at"] }, since.clone()] },
        { "$lt": ["$fence", of_clock(since)] },
        done::is_forgotten(),
    ] }
}

/// Writes a mark to the document of a lock. Nothing depends on the mark, and other changes keep or drop it. Each mark
/// is a new one, because writing the same mark again would change nothing.
#[cfg(any(test, feature = "fencing"))]
pub(crate) fn touch(mark: mongodb::bson::oid::ObjectId) -> Vec<Document> {
    let touched = doc! { "$mergeObjects": ["$$ROOT", { "touched": mark }] };
    replace_if(is_known(), touched)
}

/// Whether the document is a lock with valid holders.
fn is_known() -> Document {
    with(
        "all",
        holders(),
        doc! { "$and": [is_lock(), make_sense("$$all")] },
    )
}

/// The expressions that many statements contain, by the names that `docs/protocol/mongodb.md` gives them. An expression
/// may contain those before it.
#[cfg(test)]
pub(crate) fn parts(
    key: &Key,
    ttl: Duration,
    retention: Duration,
) -> Vec<(&'static str, Document)> {
    vec![
        ("isLock", is_lock()),
        (
            "isBelowLastFence",
            expressions::is_below_last_fence(std::num::NonZeroU16::MIN),
        ),
        ("hasNextFence", expressions::has_next_fence()),
        ("isNew", expressions::is_new(key)),
        ("nextFence", next_fence()),
        ("cleanupAt", cleanup_at("$$NOW", ttl, retention)),
        ("places", turn::places()),
        ("released", holders::released()),
        ("holders", holders()),
        ("allMakeSense", make_sense("$$all")),
        ("holdersMakeSense", make_sense("$holders")),
        ("fields", projection()),
    ]
}
