//! Who is granted a key.

use mongodb::bson::{Bson, Document, doc};

use super::{from_now, is_live, is_ours, literal, next_fence, replace_if};
use crate::{AcquireRequest, Mode, record::SCHEMA};

/// Grants the lease if no live holder conflicts with it. Needs an upsert.
pub(crate) fn acquire(request: &AcquireRequest) -> Vec<Document> {
    match request.mode {
        Mode::Exclusive if !request.reentrant => alone(request),
        _ => beside(request),
    }
}

/// Grants the lease if nobody is live.
///
/// An exclusive grant need not look at the holders: the key is free exactly if the latest expiry is
/// past. A missing expiry sorts before every date, so an upsert's new document is free too.
fn alone(request: &AcquireRequest) -> Vec<Document> {
    let fence = next_fence();
    let expires_at = from_now(request.ttl);
    let free = doc! { "$and": [
        { "$lte": ["$expires_at", "$$NOW"] },
        { "$or": [is_ours(), is_new(request)] },
    ] };
    let granted = doc! {
        "_id": "$_id",
        "schema": SCHEMA,
        "fence": fence.clone(),
        "holders": [holder(request, fence.into(), &expires_at)],
        "expires_at": expires_at,
    };
    replace_if(free, granted)
}

/// Grants the lease beside the live holders that it can stand beside.
///
/// Only here can there be too many of them: an exclusive grant is the only one.
///
/// Like [`alone`] it takes a key whose latest expiry is past for free, whatever its holders say.
fn beside(request: &AcquireRequest) -> Vec<Document> {
    // Somebody else's `holders` may be anything, and a filter of what is no list is an error.
    let held = doc! { "$and": [is_ours(), { "$gt": ["$expires_at", "$$NOW"] }] };
    let live = doc! { "$filter": {
        "input": { "$cond": [held, "$holders", []] },
        "cond": is_live(),
    } };
    let mine = doc! { "$in": [request.lease.to_string(), "$$live.lease"] };
    let most = i64::try_from(request.max_holders).unwrap_or(i64::MAX);
    let place = doc! { "$lt": [{ "$size": "$$live" }, most] };
    let room = doc! { "$and": [is_ours(), { "$not": [mine] }, place, has_room(request)] };
    // The upsert has made its document, so that one is granted whatever is asked for.
    let free = doc! { "$or": [is_new(request), room] };
    let expires_at = from_now(request.ttl);
    let granted = doc! { "$let": {
        "vars": { "fence": fence(request) },
        "in": {
            "_id": "$_id",
            "schema": SCHEMA,
            "fence": { "$max": ["$fence", "$$fence"] },
            "holders": { "$concatArrays": [
                "$$live",
                [holder(request, "$$fence".into(), &expires_at)],
            ] },
            "expires_at": { "$max": [{ "$max": "$$live.expires_at" }, expires_at] },
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
    let others = match request.reentrant {
        true => Bson::from(doc! { "$filter": {
            "input": "$$live",
            "cond": { "$not": [is_own(request)] },
        } }),
        false => "$$live".into(),
    };
    // Of a mode that is not known, or without one, a holder leaves no room.
    let of_the_same_mode = doc! { "$allElementsTrue": { "$map": {
        "input": others.clone(),
        "in": { "$eq": ["$$this.mode", request.mode.as_str()] },
    } } };
    match request.mode {
        Mode::Exclusive => doc! { "$eq": [others, []] },
        Mode::Shared => of_the_same_mode,
        Mode::Permits => {
            let left = request.capacity.saturating_sub(request.permits);
            // A sum that a long cannot hold becomes a double, which is greater than any long.
            let taken = doc! { "$sum": { "$map": { "input": others, "in": "$$this.permits" } } };
            doc! { "$and": [of_the_same_mode, { "$lte": [taken, left] }] }
        }
    }
}

/// The fence of the grant: that under which its owner is here already, or the next.
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
        "mode": request.mode.as_str(),
        "permits": request.permits,
        "fence": fence,
        "acquired_at": "$$NOW",
        "expires_at": expires_at,
    };
    if let Some(note) = &request.note {
        holder.insert("note", literal(note));
    }
    holder
}
