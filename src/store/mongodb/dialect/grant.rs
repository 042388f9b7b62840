//! The rule of an acquire as an update pipeline of MongoDB.

use std::time::Duration;

use mongodb::bson::{Bson, Document, doc};

use super::expressions::{
    any, cleanup_at, from_now, holds, is_lease, is_live, is_ours, literal, next_fence, replace_if,
};
use crate::{
    messages::AcquireRequest,
    model::{Access, SCHEMA},
};

/// Grants the lease if no live holder conflicts with it. Needs an upsert, unless the request is for the place
/// of another lease.
pub(crate) fn acquire(request: &AcquireRequest, retention: Duration) -> Vec<Document> {
    match request.access {
        Access::Exclusive if !request.reentrant => alone(request, retention),
        _ => beside(request, retention),
    }
}

/// Grants the lease in the place of another, if that is the only one in the document. `None` for a request
/// that is not for the place of another, or not for the whole key, or reentrant.
///
/// Only the document of a lock has the id of a lease among its holders, so nothing else has to be checked.
pub(crate) fn take_over_alone(
    request: &AcquireRequest,
    retention: Duration,
) -> Option<Vec<Document>> {
    let from = request.in_place_of?;
    let whole = request.access == Access::Exclusive && !request.reentrant;
    let only = doc! { "$eq": ["$holders.lease", [from.to_string()]] };
    whole.then(|| replace_if(only, sole(request, retention)))
}

/// Grants the lease if no holder is live.
///
/// An exclusive grant need not look at the holders: the key is free exactly if the latest expiry is past. A
/// missing expiry sorts before every date, so the new document of an upsert is free too.
fn alone(request: &AcquireRequest, retention: Duration) -> Vec<Document> {
    let free = match request.in_place_of {
        None => doc! { "$and": [
            { "$lte": ["$expires_at", "$$NOW"] },
            { "$or": [is_ours(), is_new(request)] },
        ] },
        Some(lease) => {
            let other = doc! { "$and": [{ "$not": [is_lease(lease)] }, is_live()] };
            doc! { "$and": [is_ours(), holds(lease), { "$not": [any(other)] }] }
        }
    };
    replace_if(free, sole(request, retention))
}

/// The document of a lock with this holder alone.
fn sole(request: &AcquireRequest, retention: Duration) -> Document {
    let (fence, expires_at) = (next_fence(), from_now(request.ttl));
    doc! {
        "_id": "$_id",
        "schema": SCHEMA,
        "fence": fence.clone(),
        "holders": [holder(request, fence.clone().into(), &expires_at)],
        "expires_at": expires_at.clone(),
        "cleanup_at": cleanup_at(expires_at, fence, retention),
    }
}

/// Grants the lease if the live holders leave room for it.
///
/// Only here is the number of holders bounded: after a grant of [`alone`] there is one holder.
///
/// Like [`alone`] it takes a key as free if the latest expiry is past, whatever the expiries of its holders
/// are.
fn beside(request: &AcquireRequest, retention: Duration) -> Vec<Document> {
    // In a foreign document `holders` may be anything, and `$filter` fails for anything but a list.
    let held = doc! { "$and": [is_ours(), { "$gt": ["$expires_at", "$$NOW"] }] };
    let counts = match request.in_place_of {
        None => is_live(),
        Some(lease) => doc! { "$and": [is_live(), { "$not": [is_lease(lease)] }] },
    };
    let live = doc! { "$filter": {
        "input": { "$cond": [held, "$holders", []] },
        "cond": counts,
    } };
    let mine = doc! { "$in": [request.lease.to_string(), "$$live.lease"] };
    let most = i64::try_from(request.max_holders).unwrap_or(i64::MAX);
    let place = doc! { "$lt": [{ "$size": "$$live" }, most] };
    let room = doc! { "$and": [{ "$not": [mine] }, place, has_room(request)] };
    let free = match request.in_place_of {
        // A document that the upsert has just made has no holders, so any request is granted.
        None => doc! { "$or": [is_new(request), { "$and": [is_ours(), room] }] },
        Some(lease) => doc! { "$and": [is_ours(), holds(lease), room] },
    };
    let expires_at = from_now(request.ttl);
    let latest = doc! { "$max": [{ "$max": "$$live.expires_at" }, expires_at.clone()] };
    let newest = doc! { "$max": ["$fence", "$$fence"] };
    let granted = doc! { "$let": {
        "vars": { "fence": fence(request) },
        "in": {
            "_id": "$_id",
            "schema": SCHEMA,
            "fence": newest.clone(),
            "holders": { "$concatArrays": [
                "$$live",
                [holder(request, "$$fence".into(), &expires_at)],
            ] },
            "expires_at": latest.clone(),
            "cleanup_at": cleanup_at(latest, newest, retention),
        },
    } };
    vec![doc! { "$replaceWith": { "$let": {
        "vars": { "live": live },
        "in": { "$cond": [free, granted, "$$ROOT"] },
    } } }]
}

/// Whether the document was made by this upsert: then it has nothing but `_id`.
fn is_new(request: &AcquireRequest) -> Document {
    doc! { "$eq": ["$$ROOT", { "_id": literal(request.key.as_str()) }] }
}

/// Whether the live holders leave room for the request.
fn has_room(request: &AcquireRequest) -> Document {
    let others = if request.reentrant {
        Bson::from(doc! { "$filter": {
            "input": "$$live",
            "cond": { "$not": [is_own(request)] },
        } })
    } else {
        "$$live".into()
    };
    // A holder of an unknown mode, or without one, leaves no room.
    let of_the_same_mode = doc! { "$allElementsTrue": { "$map": {
        "input": others.clone(),
        "in": { "$eq": ["$$this.mode", request.access.mode().as_str()] },
    } } };
    match request.access {
        Access::Exclusive => doc! { "$eq": [others, []] },
        Access::Shared => of_the_same_mode,
        Access::Permits { n, of } => {
            let left = of.saturating_sub(n);
            // A sum that does not fit a long becomes a double, which is greater than any long.
            let taken = doc! { "$sum": { "$map": { "input": others, "in": "$$this.permits" } } };
            doc! { "$and": [of_the_same_mode, { "$lte": [taken, left] }] }
        }
    }
}

/// The fence of the grant: the next one, or for a reentrant request the one that its owner has already.
fn fence(request: &AcquireRequest) -> Document {
    if !request.reentrant {
        return next_fence();
    }
    let own = doc! { "$map": {
        "input": "$$live",
        "in": { "$cond": [is_own(request), "$$this.fence", Bson::Null] },
    } };
    doc! { "$ifNull": [{ "$max": own }, next_fence()] }
}

fn is_own(request: &AcquireRequest) -> Document {
    doc! { "$eq": ["$$this.owner", literal(&request.owner)] }
}

fn holder(request: &AcquireRequest, fence: Bson, expires_at: &Document) -> Document {
    let mut holder = doc! {
        "lease": request.lease.to_string(),
        "owner": literal(&request.owner),
        "mode": request.access.mode().as_str(),
        "permits": request.access.permits(),
        "fence": fence,
        "acquired_at": "$$NOW",
        "expires_at": expires_at,
    };
    if let Some(note) = &request.note {
        holder.insert("note", literal(note));
    }
    holder
}
