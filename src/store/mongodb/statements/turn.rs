//! The rules of the queue of the waiting processes, as expressions of MongoDB.
//!
//! Some of them use variables of the statement. `live` contains the live holders, `places` the places that count, and
//! `before` the places that must be granted the key before the request.

use mongodb::bson::{Bson, Document, doc};

use super::expressions::{UUID, any, from_now, is_held, lease_ids, literal, millis, modes, with};
use crate::{
    messages::{AcquireRequest, InTurn, OwnLeases, Turn},
    model::{Access, LeaseId, MAX_PLACE_TIME, MAX_PLACES, Mode},
    rules::turn::{MAX_BIND_TIME, long_enough},
};

/// The field `next` after a change that makes room. It is a copy of the places, because a change event contains only
/// the fields that changed. A statement that computed which process comes next would cost the server 10% of a free
/// cycle.
pub(super) const NEXT: &str = "$waiters";

/// Whether all places are over. Without places their latest time is null, which sorts before every date.
///
/// This costs the server as much as a look at whether there is a list. To look also for places that end later than a
/// place can would cost 2 to 3% of each grant of a free key. So a place that does not count for another reason than its
/// time refuses the request as well, until its time is over.
pub(super) fn all_places_are_over() -> Document {
    doc! { "$lte": [{ "$max": "$waiters.until" }, "$$NOW"] }
}

/// Whether no process waits. Only a missing list, or null, sorts so early.
fn nobody_waits() -> Document {
    doc! { "$lte": ["$waiters", Bson::Null] }
}

/// Whether the request comes first, as far as the first place tells: no process waits, or the first place is its own.
pub(super) fn comes_first(waiter: LeaseId) -> Document {
    doc! { "$or": [nobody_waits(), has_first_place(waiter)] }
}

/// Whether the first place is that of this process, and counts.
fn has_first_place(waiter: LeaseId) -> Document {
    let first = doc! { "$arrayElemAt": ["$waiters", 0] };
    let is_mine = with("this", first, doc! { "$and": [is_of(waiter), counts()] });
    doc! { "$and": [{ "$isArray": "$waiters" }, is_mine] }
}

/// Whether a place is that of this process.
fn is_of(waiter: LeaseId) -> Document {
    doc! { "$eq": ["$$this.waiter", waiter.to_string()] }
}

/// The places after a grant to a request that [comes first](comes_first): all but the first place.
pub(super) fn leave_first_place() -> Document {
    let left = doc! { "$slice": ["$waiters", 1, MAX_PLACES as i64] };
    doc! { "$cond": [
        { "$gt": [{ "$size": { "$ifNull": ["$waiters", []] } }, 1] },
        left,
        "$$REMOVE",
    ] }
}

/// Whether a place counts.
fn counts() -> Document {
    doc! { "$and": [
        { "$eq": [{ "$type": "$$this.waiter" }, "string"] },
        { "$regexMatch": { "input": "$$this.waiter", "regex": UUID } },
        { "$in": ["$$this.mode", modes()] },
        { "$in": [{ "$type": "$$this.permits" }, ["int", "long"]] },
        { "$eq": [{ "$type": "$$this.since" }, "date"] },
        { "$eq": [{ "$type": "$$this.until" }, "date"] },
        { "$gt": ["$$this.until", "$$NOW"] },
        { "$lte": ["$$this.until", from_now(MAX_PLACE_TIME)] },
    ] }
}

/// The places that count.
pub(super) fn places() -> Document {
    doc! { "$cond": [
        { "$isArray": "$waiters" },
        { "$filter": { "input": "$waiters", "cond": counts() } },
        [],
    ] }
}

/// The places that must be granted the key before the request.
pub(super) fn before(request: &AcquireRequest) -> Bson {
    let ahead = match request.turn.waiter() {
        None => Bson::from("$$places"),
        Some(waiter) => {
            let place = doc! { "$indexOfArray": ["$$places.waiter", waiter.to_string()] };
            let ahead = doc! { "$switch": {
                "branches": [
                    { "case": { "$eq": ["$$at", -1] }, "then": "$$places" },
                    { "case": { "$eq": ["$$at", 0] }, "then": [] },
                ],
                "default": { "$slice": ["$$places", "$$at"] },
            } };
            with("at", place, ahead).into()
        }
    };
    let owner = literal(&request.owner);
    let others = if request.is_reentrant() {
        let other = doc! { "$ne": ["$$this.owner", owner.clone()] };
        doc! { "$filter": { "input": ahead, "cond": other } }.into()
    } else {
        ahead
    };
    let conflicting = match request.access {
        Access::Exclusive => others,
        Access::Shared => {
            let other = doc! { "$ne": ["$$this.mode", Mode::Shared.as_str()] };
            doc! { "$filter": { "input": others, "cond": other } }.into()
        }
        Access::Permits(permits) => {
            let is_other = doc! { "$ne": ["$$this.mode", Mode::Permits.as_str()] };
            let taken = doc! { "$add": [
                { "$sum": "$$live.permits" },
                { "$sum": "$$others.permits" },
            ] };
            let have_no_room = doc! { "$or": [
                any("$$others", is_other),
                { "$gt": [taken, permits.of() - permits.n()] },
            ] };
            let conflicting = doc! { "$cond": [have_no_room, "$$others", []] };
            with("others", others, conflicting).into()
        }
    };
    let has_own = match &request.own_leases {
        OwnLeases::Conflict => return conflicting,
        OwnLeases::Beside => {
            let live = doc! { "$ifNull": ["$$live.owner", []] };
            doc! { "$in": [owner, live] }
        }
        OwnLeases::TakenOver(leases) => {
            let live = doc! { "$ifNull": ["$$live.lease", []] };
            let found = doc! { "$setIntersection": [live, lease_ids(leases)] };
            doc! { "$ne": [found, []] }
        }
    };
    doc! { "$cond": [has_own, [], conflicting] }.into()
}

/// Whether the places before the request do not keep the key from it: there are none, or the key has been free for so
/// long that they no longer keep it.
pub(super) fn is_its_turn() -> Document {
    // Without a time, the key has been free for long. If the time is far ahead, the clock stepped back.
    let is_date = |field: &str| doc! { "$eq": [{ "$type": field }, "date"] };
    let free_since = doc! { "$switch": {
        "branches": [
            { "case": is_date("$expires_at"), "then": "$expires_at" },
            { "case": is_date("$released_at"), "then": "$released_at" },
        ],
        "default": Bson::Null,
    } };
    let free_for = doc! { "$subtract": ["$$NOW", free_since] };
    let over = doc! { "$or": [
        { "$lte": ["$$free_for", Bson::Null] },
        { "$lt": ["$$free_for", -millis(MAX_BIND_TIME)] },
        { "$gte": ["$$free_for", millis(MAX_BIND_TIME)] },
    ] };
    doc! { "$or": [
        { "$eq": ["$$before", []] },
        { "$and": [
            { "$not": [is_held()] },
            with("free_for", free_for, over),
        ] },
    ] }
}

/// The places after a grant: without the place of the request, and without those that it has passed.
pub(super) fn leave_place(request: &AcquireRequest) -> Document {
    let mut gone = vec![doc! { "$in": ["$$this.waiter", "$$before.waiter"] }];
    gone.extend(request.turn.waiter().map(is_of));
    let left = doc! { "$filter": {
        "input": "$$places",
        "cond": { "$not": [{ "$or": gone }] },
    } };
    unless_empty(left)
}

/// The places that count, without that of this process.
pub(super) fn leave(waiter: LeaseId) -> Document {
    let other = doc! { "$ne": ["$$this.waiter", waiter.to_string()] };
    unless_empty(doc! { "$filter": { "input": places(), "cond": other } })
}

/// A list of places for the document, which never contains an empty list.
fn unless_empty(places: Document) -> Document {
    let left = doc! { "$cond": [{ "$eq": ["$$left", []] }, "$$REMOVE", "$$left"] };
    with("left", places, left)
}

/// The document after a refusal. The process of the request has a new place at the end, or its place counts for longer.
/// `None` if the process does not wait.
pub(super) fn take_place(request: &AcquireRequest) -> Option<Document> {
    let Turn::InTurn(InTurn {
        waiter, counts_for, ..
    }) = request.turn
    else {
        return None;
    };
    let counts_for = counts_for.min(MAX_PLACE_TIME);
    let (mode, permits) = (request.access.mode().as_str(), request.access.permits());
    let is_mine = is_of(waiter);
    let owner = literal(&request.owner);
    let change = doc! {
        "owner": owner.clone(),
        "mode": mode,
        "permits": permits,
        // The process was told that the place counts until then.
        "until": { "$max": ["$$this.until", from_now(counts_for)] },
    };
    let mine = doc! {
        "waiter": waiter.to_string(),
        "owner": owner.clone(),
        "mode": mode,
        "permits": permits,
        "since": "$$NOW",
        "until": from_now(counts_for),
    };
    let is_kept = doc! { "$and": [
        is_mine.clone(),
        { "$eq": ["$$this.mode", mode] },
        { "$eq": ["$$this.permits", permits] },
        { "$eq": ["$$this.owner", owner] },
        { "$gte": ["$$this.until", from_now(long_enough(counts_for))] },
    ] };
    let longer = doc! { "$map": {
        "input": "$$places",
        "in": { "$cond": [is_mine.clone(), { "$mergeObjects": ["$$this", change] }, "$$this"] },
    } };
    let with = |places: Document| doc! { "$mergeObjects": ["$$ROOT", { "waiters": places }] };
    Some(doc! { "$switch": {
        "branches": [
            { "case": any("$$places", is_kept), "then": "$$ROOT" },
            { "case": any("$$places", is_mine), "then": with(longer) },
            {
                "case": { "$lt": [{ "$size": "$$places" }, MAX_PLACES as i64] },
                "then": with(doc! { "$concatArrays": ["$$places", [mine]] }),
            },
        ],
        "default": "$$ROOT",
    } })
}
