//! The rules of renewals, conversions and releases, as update pipelines of MongoDB.
//!
//! The fields of a sole holder are fields of the document; several holders are in a list. `renew_together`,
//! `release_together` and `release_sole` look for a sole holder only, and so does `release_or_fail` if the request is
//! `likely_sole`. The other statements also look at the list.

use std::time::Duration;

use mongodb::bson::{Bson, Document, doc};

use super::{
    done::release_done_or,
    expressions::{
        MAX_DURATION_MILLIS, any, bounded, cleanup_at, from_now, has_next_fence, is_held, is_lease,
        is_listed, is_live, is_live_and_listed, is_live_and_sole, is_lock, is_sole, lock,
        make_sense, millis, next_fence, replace_by_all, replace_by_case, replace_if, replace_or,
        with,
    },
    holders::{RoomEffect, holders_that, released, with_holders},
};
use crate::{
    messages::{ConvertRequest, MinHold, ReleaseRequest, RenewRequest},
    model::{Conversion, Fence, Key, LeaseId, Mode},
};

/// Renews a live lease: it lives for its ttl from now on, unless its expiry is later already.
pub(crate) fn renew(request: &RenewRequest, retention: Duration) -> Vec<Document> {
    let lease = request.lease;
    let expires_at = doc! { "$max": ["$$this.expires_at", from_now(request.ttl)] };
    let renewed = changed("$holders", lease, doc! { "expires_at": expires_at });
    let list = with_holders(renewed, RoomEffect::MakesNoRoom, retention);
    let cases = [
        (
            is_live_and_sole(lease),
            renewed_sole(request.ttl, retention),
        ),
        (is_live_and_listed(lease), list),
    ];
    replace_by_case(cases, "$$ROOT")
}

/// Renews each of these leases with this ttl, if it is live and a sole holder.
pub(crate) fn renew_together(
    requests: &[&RenewRequest],
    ttl: Duration,
    retention: Duration,
) -> Document {
    let (keys, leases) = named(requests.iter().map(|request| (&request.key, request.lease)));
    let live = doc! { "$and": [is_held(), is_lock(), is_one_lease()] };
    doc! {
        "q": { "_id": { "$in": keys }, "lease": { "$in": leases } },
        "u": replace_if(live, renewed_sole(ttl, retention)),
        "multi": true,
    }
}

fn renewed_sole(ttl: Duration, retention: Duration) -> Document {
    let renewed = doc! {
        "expires_at": { "$max": ["$expires_at", from_now(ttl)] },
        "cleanup_at": cleanup_at("$$NOW", ttl, retention),
    };
    doc! { "$mergeObjects": ["$$ROOT", renewed] }
}

/// Makes a live lease with the fence that the request names shared, or exclusive if no other holder is live. Only an
/// upgrade gives a new fence.
pub(crate) fn convert(request: &ConvertRequest, retention: Duration) -> Vec<Document> {
    let lease = request.lease;
    let is_mine = |mode: Mode| {
        let mut mine = vec![is_lease(lease), is_live()];
        mine.push(doc! { "$eq": ["$$this.mode", mode.as_str()] });
        // A missing fence and NaN count as 0, and any other number as the integer that it is when a document is read.
        let found = doc! { "$ifNull": ["$$this.fence", 0_i64] };
        let whole = doc! { "$max": [{ "$trunc": found.clone() }, i64::MIN] };
        let fence = doc! { "$cond": [{ "$eq": [found, f64::NAN] }, 0_i64, whole] };
        let has_fence = |named: Fence| doc! { "$eq": [fence, named.get()] };
        mine.extend(request.fence.map(has_fence));
        any("$$all", doc! { "$and": mine })
    };
    let mut possible = vec![make_sense("$$all")];
    let converted = match request.conversion {
        Conversion::Upgrade => {
            possible.push(has_next_fence());
            let other = doc! { "$and": [{ "$not": [is_lease(lease)] }, is_live()] };
            possible.push(is_mine(Mode::Shared));
            possible.push(doc! { "$not": [any("$$all", other)] });
            let mine = doc! { "$filter": { "input": "$$all", "cond": is_lease(lease) } };
            let cleanup_at = cleanup_at(bounded("$$mine.expires_at"), Duration::ZERO, retention);
            let held = doc! {
                "lease": "$$mine.lease",
                "owner": "$$mine.owner",
                "acquired_at": "$$mine.acquired_at",
                "expires_at": "$$mine.expires_at",
                "note": "$$mine.note",
            };
            let upgraded = lock(next_fence(), cleanup_at, held);
            with("mine", doc! { "$arrayElemAt": [mine, 0] }, upgraded)
        }
        Conversion::Downgrade => {
            possible.push(is_lock());
            possible.push(is_mine(Mode::Exclusive));
            let shared = doc! { "mode": Mode::Shared.as_str() };
            with_holders(
                changed("$$all", lease, shared),
                RoomEffect::MakesRoom,
                retention,
            )
        }
    };
    replace_by_all(doc! { "$cond": [{ "$and": possible }, converted, "$$ROOT"] })
}

/// The server's error code for a text that is not a number. [`release_or_fail`] fails with it if the lease is not among
/// the holders.
pub(crate) const NOT_HELD: i32 = 241;

/// Removes the lease if it is the sole holder. The clean-up date stays as it is.
pub(crate) fn release_sole(request: &ReleaseRequest) -> Vec<Document> {
    release_sole_or(request, "$$ROOT".into())
}

/// Removes the lease from the holders. If it is live and its minimum hold is not over, the holder stays until then,
/// under another lease id, which no request has. If the release has a done tick, a lease that has expired stays.
pub(crate) fn release(request: &ReleaseRequest, retention: Duration) -> Vec<Document> {
    release_or(request, retention, "$$ROOT".into())
}

/// As [`release`], but the statement fails if it removes no lease. It is for a command with many changes, whose answer
/// says of each change only whether it failed.
pub(crate) fn release_or_fail(request: &ReleaseRequest, retention: Duration) -> Vec<Document> {
    // The text is made from the document. A constant would be evaluated, and fail, before the server looks at the
    // document.
    let no_number = doc! { "$concat": ["not held: ", { "$type": "$lease" }] };
    let fails = Bson::from(doc! { "$toInt": no_number });
    if request.is_of_a_sole_lease() {
        release_sole_or(request, fails)
    } else {
        release_or(request, retention, fails)
    }
}

/// Removes each of these leases, if it is a sole holder. The field `released` of its document then contains the lease.
pub(crate) fn release_together(requests: &[&ReleaseRequest]) -> Document {
    let (keys, leases) = named(requests.iter().map(|request| (&request.key, request.lease)));
    let mut dropped = released();
    dropped.insert("released", "$lease");
    doc! {
        "q": { "_id": { "$in": keys }, "lease": { "$in": leases } },
        "u": replace_if(doc! { "$and": [is_lock(), is_one_lease()] }, dropped),
        "multi": true,
    }
}

/// Whether the lease that a filter has found is not an element of a list.
fn is_one_lease() -> Document {
    doc! { "$not": [{ "$isArray": "$lease" }] }
}

/// The keys and leases, as a filter names them.
fn named<'a>(leases: impl Iterator<Item = (&'a Key, LeaseId)>) -> (Vec<&'a str>, Vec<String>) {
    leases
        .map(|(key, lease)| (key.as_str(), lease.to_string()))
        .unzip()
}

fn release_sole_or(request: &ReleaseRequest, otherwise: Bson) -> Vec<Document> {
    let mine = doc! { "$and": [is_sole(request.lease), is_lock()] };
    replace_or(mine, released(), otherwise)
}

fn release_or(request: &ReleaseRequest, retention: Duration, otherwise: Bson) -> Vec<Document> {
    if let Some(done) = request.done_tick() {
        return release_done_or(request, done, retention, otherwise);
    }
    let lease = request.lease;
    let other = doc! { "$not": [is_lease(lease)] };
    let (sole, list) = match request.minimum_hold() {
        None => (released(), holders_that(other)),
        Some(MinHold { time, placeholder }) => {
            let time = millis(time).min(MAX_DURATION_MILLIS);
            let until = |acquired_at: &str| {
                // A time of a grant that is not a date counts as long past.
                let is_date = doc! { "$eq": [{ "$type": acquired_at }, "date"] };
                doc! { "$cond": [is_date, { "$add": [bounded(acquired_at), time] }, Bson::Null] }
            };
            let stays = |until: Document| doc! { "$gt": [until, "$$NOW"] };
            let sole_until = until("$acquired_at");
            let under = doc! { "$mergeObjects": ["$$ROOT", {
                "lease": placeholder.to_string(),
                "expires_at": sole_until.clone(),
                "cleanup_at": cleanup_at(sole_until.clone(), Duration::ZERO, retention),
            }] };
            let sole = doc! { "$cond": [
                { "$and": [is_held(), stays(sole_until)] },
                under,
                released(),
            ] };
            let until = until("$$this.acquired_at");
            let stays = doc! { "$and": [is_held(), is_live(), stays(until.clone())] };
            let left = holders_that(doc! { "$or": [other, stays] });
            let held_on = doc! { "lease": placeholder.to_string(), "expires_at": until };
            (sole, changed(left, lease, held_on))
        }
    };
    let list = with_holders(list, RoomEffect::MakesRoom, retention);
    let is_sole = doc! { "$and": [is_sole(lease), is_lock()] };
    let in_list = doc! { "$and": [is_lock(), is_listed(lease)] };
    replace_by_case([(is_sole, sole), (in_list, list)], otherwise)
}

/// These holders, with a change to the holder with this lease.
fn changed(holders: impl Into<Bson>, lease: LeaseId, change: Document) -> Document {
    doc! { "$map": {
        "input": holders.into(),
        "in": { "$cond": [is_lease(lease), { "$mergeObjects": ["$$this", change] }, "$$this"] },
    } }
}
