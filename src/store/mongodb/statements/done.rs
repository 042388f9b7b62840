//! The rules of jobs that run once per tick, as update pipelines of MongoDB.

use std::time::Duration;

use mongodb::bson::{Bson, Document, doc};

use super::{
    expressions::{
        MAX_DURATION_MILLIS, is_lease, is_live_and_listed, is_live_and_sole, millis, with,
    },
    holders::{RoomEffect, holders_that, released, with_holders},
};
use crate::{
    messages::{DoneTick, ReleaseRequest},
    model::{LeaseId, Tick, TickKind},
};

/// Whether the document has no done tick.
fn is_missing() -> Document {
    doc! { "$in": [{ "$type": "$done" }, ["missing", "null", "undefined"]] }
}

/// Whether the done tick has a valid kind, number and end.
fn makes_sense() -> Document {
    let kinds = TickKind::ALL.map(|kind| Bson::from(kind.as_str())).to_vec();
    doc! { "$and": [
        { "$eq": [{ "$type": "$done" }, "object"] },
        { "$in": ["$done.kind", kinds] },
        { "$in": [{ "$type": "$done.tick" }, ["int", "long"]] },
        { "$eq": [{ "$type": "$done.until" }, "date"] },
    ] }
}

/// Whether the done tick no longer keeps the document.
pub(super) fn is_forgotten() -> Document {
    let is_over = doc! { "$and": [makes_sense(), { "$lte": ["$done.until", "$$NOW"] }] };
    doc! { "$or": [is_missing(), is_over] }
}

/// The statement of an acquire, which changes nothing if this tick is done already.
pub(super) fn if_to_be_done(statement: Vec<Document>, tick: Option<Tick>) -> Vec<Document> {
    let Some(tick) = tick else {
        return statement;
    };
    let is_before = doc! { "$and": [
        makes_sense(),
        { "$eq": ["$done.kind", tick.kind().as_str()] },
        { "$lt": ["$done.tick", tick.number()] },
    ] };
    let to_be_done = doc! { "$or": [is_missing(), is_before] };
    let only = |mut stage: Document| {
        let then = stage.remove("$replaceWith").unwrap_or(Bson::Null);
        doc! { "$replaceWith": { "$cond": [to_be_done.clone(), then, "$$ROOT"] } }
    };
    statement.into_iter().map(only).collect()
}

/// Removes a live lease, and writes which tick was done under it, unless a later one is done.
pub(super) fn release_done_or(
    request: &ReleaseRequest,
    done: DoneTick,
    retention: Duration,
    otherwise: Bson,
) -> Vec<Document> {
    let lease = request.lease;
    let others = holders_that(doc! { "$not": [is_lease(lease)] });
    let list = with_holders(others, RoomEffect::MakesRoom, retention);
    let list = with(
        "mine",
        doc! { "$arrayElemAt": [holders_that(is_lease(lease)), 0] },
        doc! { "$mergeObjects": [list, written(done, lease, "$$mine.owner")] },
    );
    let sole = doc! { "$mergeObjects": [released(), written(done, lease, "$owner")] };
    let is_later = doc! { "$and": [
        makes_sense(),
        { "$eq": ["$done.kind", done.tick.kind().as_str()] },
        { "$gt": ["$done.tick", done.tick.number()] },
    ] };
    vec![doc! { "$replaceWith": { "$switch": {
        "branches": [
            { "case": is_later, "then": otherwise.clone() },
            { "case": is_live_and_sole(lease), "then": sole },
            { "case": is_live_and_listed(lease), "then": list },
        ],
        "default": otherwise,
    } } }]
}

/// The fields that a done tick leaves in the document. The document is not cleaned up before the tick may be forgotten.
/// The clean-up date includes the expiries of other holders already, and never goes down.
fn written(done: DoneTick, lease: LeaseId, by: &str) -> Document {
    let kept_for = millis(done.kept_for).min(MAX_DURATION_MILLIS);
    // The time that an earlier caller was promised still holds.
    let before = doc! { "$cond": [makes_sense(), "$done.until", Bson::Null] };
    let until = doc! { "$max": [before, { "$add": ["$$NOW", kept_for] }] };
    doc! {
        "cleanup_at": { "$max": ["$cleanup_at", until.clone()] },
        "done": {
            "kind": done.tick.kind().as_str(),
            "tick": done.tick.number(),
            "at": "$$NOW",
            "by": by,
            "lease": lease.to_string(),
            "until": until,
        },
    }
}
