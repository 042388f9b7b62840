//! The rules of renewals, conversions and releases as update pipelines of MongoDB.

use std::time::Duration;

use mongodb::bson::{Bson, Document, doc};

use super::expressions::{
    LONGEST, any, cleanup_at, from_now, holds, is_lease, is_live, is_ours, millis, next_fence,
    replace_if, with_holders,
};
use crate::{
    messages::{ConvertRequest, MinHold, ReleaseRequest, RenewRequest},
    model::{Conversion, LeaseId, Mode},
};

/// Gives a live lease its ttl anew, unless it lives for longer than that.
pub(crate) fn renew(request: &RenewRequest, retention: Duration) -> Vec<Document> {
    let lease = request.lease;
    let live = doc! { "$and": [
        is_ours(),
        any(doc! { "$and": [is_lease(lease), is_live()] }),
    ] };
    let expires_at = doc! { "$max": ["$$this.expires_at", from_now(request.ttl)] };
    let renewed = doc! { "expires_at": expires_at };
    let holders = changed("$holders", lease, renewed);
    replace_if(live, with_holders(holders, retention))
}

/// Gives each of these leases, if it is live and the only one in the document of its key, this ttl anew.
///
/// Only the document of a lock has the id of a lease among its holders, so nothing else has to be checked.
pub(crate) fn renew_together(
    requests: &[&RenewRequest],
    ttl: Duration,
    retention: Duration,
) -> Document {
    let keys: Vec<_> = requests
        .iter()
        .map(|request| request.key.as_str())
        .collect();
    let leases: Vec<_> = requests
        .iter()
        .map(|request| request.lease.to_string())
        .collect();
    let holder = doc! { "$mergeObjects": [{ "$first": "$holders" }, { "expires_at": "$$until" }] };
    let renewed = doc! { "$let": {
        "vars": { "until": { "$max": ["$expires_at", from_now(ttl)] } },
        "in": { "$mergeObjects": ["$$ROOT", {
            "holders": [holder],
            "expires_at": "$$until",
            "cleanup_at": cleanup_at("$$until", "$fence", retention),
        }] },
    } };
    let live = doc! { "$gt": ["$expires_at", "$$NOW"] };
    doc! {
        "q": {
            "_id": { "$in": keys },
            "holders.lease": { "$in": leases },
            "holders.1": { "$exists": false },
        },
        "u": replace_if(live, renewed),
        "multi": true,
    }
}

/// Makes a live lease shared, or exclusive if no other holder is live. Only an upgrade has a new fence.
pub(crate) fn convert(request: &ConvertRequest, retention: Duration) -> Vec<Document> {
    let lease = request.lease;
    let is_mine = |mode: Mode| {
        let mode = doc! { "$eq": ["$$this.mode", mode.as_str()] };
        any(doc! { "$and": [is_lease(lease), is_live(), mode] })
    };
    let (possible, fence) = match request.conversion {
        Conversion::Upgrade => {
            let other = doc! { "$and": [{ "$not": [is_lease(lease)] }, is_live()] };
            let alone = doc! { "$not": [any(other)] };
            let possible = doc! { "$and": [is_ours(), is_mine(Mode::Shared), alone] };
            (possible, Some(next_fence()))
        }
        Conversion::Downgrade => (doc! { "$and": [is_ours(), is_mine(Mode::Exclusive)] }, None),
    };
    let mut mine = doc! { "mode": request.conversion.mode().as_str() };
    let mut lock = Document::new();
    if let Some(fence) = fence {
        mine.insert("fence", fence.clone());
        lock.insert("fence", fence.clone());
        lock.insert("cleanup_at", cleanup_at("$expires_at", fence, retention));
    }
    lock.insert("holders", changed("$holders", lease, mine));
    replace_if(possible, doc! { "$mergeObjects": ["$$ROOT", lock] })
}

/// The server's error code for a text that is no number, with which [`release_or_fail`] fails if the lease is
/// not among the holders.
pub(crate) const NOT_HELD: i32 = 241;

/// Drops the lease if it is the only one in the document. The date of the document's clean-up stays as it is.
///
/// Only the document of a lock has the id of a lease among its holders, so nothing else has to be checked.
pub(crate) fn release_alone(request: &ReleaseRequest) -> Vec<Document> {
    release_alone_or(request, "$$ROOT".into())
}

/// Drops the lease from the holders. If it is live and its minimum hold is not over, it stays until then,
/// under another lease id, which no request has.
pub(crate) fn release(request: &ReleaseRequest, retention: Duration) -> Vec<Document> {
    release_or(request, retention, "$$ROOT".into())
}

/// The same for a command with many changes, whose answer shows of each change only whether it failed: this
/// one fails if it drops no lease.
pub(crate) fn release_or_fail(request: &ReleaseRequest, retention: Duration) -> Vec<Document> {
    // Not a constant: the server would evaluate that, and fail, before it looks at the document.
    let no_number = doc! { "$concat": ["not held: ", { "$type": "$holders" }] };
    let fails = Bson::from(doc! { "$toInt": no_number });
    if request.alone && request.min_hold.is_none() {
        release_alone_or(request, fails)
    } else {
        release_or(request, retention, fails)
    }
}

fn release_alone_or(request: &ReleaseRequest, otherwise: Bson) -> Vec<Document> {
    let alone = doc! { "$eq": ["$holders.lease", [request.lease.to_string()]] };
    let released = doc! { "$mergeObjects": ["$$ROOT", { "holders": [], "expires_at": "$$NOW" }] };
    vec![doc! { "$replaceWith": { "$cond": [alone, released, otherwise] } }]
}

fn release_or(request: &ReleaseRequest, retention: Duration, otherwise: Bson) -> Vec<Document> {
    let lease = request.lease;
    let holds = doc! { "$and": [is_ours(), holds(lease)] };
    let other = doc! { "$not": [is_lease(lease)] };
    let holders = match request.min_hold {
        None => holders_that(other),
        Some(MinHold { time, placeholder }) => {
            let until = doc! { "$add": ["$$this.acquired_at", millis(time).min(LONGEST)] };
            let stays = doc! { "$and": [is_live(), { "$gt": [until.clone(), "$$NOW"] }] };
            let left = holders_that(doc! { "$or": [other, stays] });
            let held_on = doc! { "lease": placeholder.to_string(), "expires_at": until };
            changed(left, lease, held_on)
        }
    };
    let released = with_holders(holders, retention);
    vec![doc! { "$replaceWith": { "$cond": [holds, released, otherwise] } }]
}

fn holders_that(condition: Document) -> Document {
    doc! { "$filter": { "input": "$holders", "cond": condition } }
}

/// These holders, with a change to that of this lease.
fn changed(holders: impl Into<Bson>, lease: LeaseId, change: Document) -> Document {
    let holder = doc! { "$mergeObjects": ["$$this", change] };
    doc! { "$map": {
        "input": holders.into(),
        "in": { "$cond": [is_lease(lease), holder, "$$this"] },
    } }
}
