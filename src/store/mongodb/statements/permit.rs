//! The rule of a limiter, as an update pipeline of MongoDB.

use std::time::Duration;

use mongodb::bson::{self, Bson, Document, doc};

use super::expressions::{MAX_DURATION_MILLIS, literal, millis, with};
use crate::{
    messages::{GiveBackRequest, PermitRequest},
    model::{Key, LIMITER_SCHEMA, Quota, USED_END, WindowKind},
    rules::{CLOCK_STEP, YEAR},
};

const NANOS_PER_MILLI: i64 = 1_000_000;

/// Finds the document of a limiter, also on the server's shortest path. The id of a limiter is a document, and that of
/// a lock is a text, so a lock may have the same key.
pub(crate) fn limiter_filter(key: &Key, quota: &Quota) -> Document {
    doc! { "_id": id(quota, key.as_str()) }
}

/// The id of a limiter. A key has one limiter for each length and kind of window.
fn id(quota: &Quota, key: impl Into<Bson>) -> Document {
    doc! { "limiter": key, "window": quota.window_millis(), "kind": quota.kind() }
}

/// Matches every limiter that may be removed.
pub(crate) fn over_since(retention: Duration) -> Document {
    let since = doc! { "$subtract": ["$$NOW", millis(retention).min(MAX_DURATION_MILLIS)] };
    doc! {
        "limiter": LIMITER_SCHEMA,
        "over_at": { "$type": "date" },
        "$expr": { "$and": [{ "$lte": ["$over_at", since] }, is_ours()] },
    }
}

/// Grants the permits as many times as there is room for them. Needs an upsert.
///
/// The steps and their names are those of [`rules::permit`](crate::rules::permit). The fields of the document count
/// only if it is a limiter.
pub(crate) fn permit(request: &PermitRequest) -> Vec<Document> {
    let quota = &request.quota;
    let permits = i64::from(request.permits.max(1));
    let mut steps: Vec<(&str, Bson)> = vec![
        ("ours", is_ours().into()),
        ("newest", newest(quota).into()),
        ("clock", doc! { "$max": ["$$newest", "$$NOW"] }.into()),
        ("start", window_of(quota, "$$clock").into()),
    ];
    if keeps_more_debt(quota) {
        steps.push(("owed", left_of(quota.max_debt_nanos()).into()));
    }
    let used = match quota.window_kind() {
        WindowKind::Fixed => {
            doc! { "$cond": [{ "$gte": ["$$newest", "$$start"] }, stored(), 0_i64] }
        }
        WindowKind::Smooth { .. } => left_of(quota.credit_nanos()),
    };
    steps.push(("used", used.into()));
    let (granted, has_room) = match i64::from(request.times.max(1)) {
        1 => (Bson::from(permits), has_room(quota, permits)),
        times => {
            steps.push(("granted", as_often_as_there_is_room(quota, permits, times)));
            ("$$granted".into(), doc! { "$gt": ["$$granted", 0_i64] })
        }
    };
    let decided = doc! { "$cond": [
        { "$and": [
            { "$or": ["$$ours", is_new(request)] },
            has_room,
            { "$not": [is_newest(request)] },
        ] },
        changed(request, granted),
        "$$ROOT",
    ] };
    let pipeline = steps
        .into_iter()
        .rev()
        .fold(decided, |then, (name, value)| with(name, value, then));
    vec![doc! { "$replaceWith": pipeline }]
}

/// Makes permits available again, as [`rules::give_back`](crate::rules::give_back) does. Needs no upsert.
pub(crate) fn give_back(request: &GiveBackRequest) -> Vec<Document> {
    let (quota, permits) = (&request.quota, i64::from(request.permits));
    let granted_at = bson::DateTime::from_millis(request.granted_at.timestamp_millis());
    let (counts, returned) = match quota.window_kind() {
        WindowKind::Fixed => {
            let same = [
                window_of(quota, "$granted_at"),
                window_of(quota, granted_at),
            ];
            (doc! { "$eq": same.to_vec() }, Bson::from(permits))
        }
        WindowKind::Smooth { .. } => {
            let clock = doc! { "$max": ["$granted_at", "$$NOW"] };
            let passed = doc! { "$min": [YEAR, { "$subtract": [clock, granted_at] }] };
            let returned = doc! { "$subtract": [
                permits.saturating_mul(quota.interval_nanos()),
                { "$multiply": [passed, NANOS_PER_MILLI] },
            ] };
            (is_not_ahead(), doc! { "$max": [0_i64, returned] }.into())
        }
    };
    let is_newer = doc! { "$gte": ["$granted_at", granted_at] };
    let used = doc! { "$max": [0_i64, { "$subtract": [stored(), returned] }] };
    let given_back = doc! { "$mergeObjects": ["$$ROOT", { "used": used }] };
    vec![doc! { "$replaceWith": { "$cond": [
        { "$and": [is_ours(), is_newer, counts] },
        given_back,
        "$$ROOT",
    ] } }]
}

/// The used permits. Another program may have written them as a double.
fn stored() -> Document {
    doc! { "$toLong": "$used" }
}

/// Whether a request with another limit or burst may have left a debt that is greater than all that this one counts.
fn keeps_more_debt(quota: &Quota) -> bool {
    quota.window_kind() != WindowKind::Fixed && quota.max_debt_nanos() > quota.credit_nanos()
}

/// What is left now of the debt of a smooth limiter, of which `most` counts.
fn left_of(most: i64) -> Document {
    // At most a year, because the difference of dates that are too far apart does not fit a long.
    let since = doc! { "$max": ["$$newest", { "$subtract": ["$$clock", YEAR] }] };
    let elapsed = doc! { "$subtract": ["$$clock", since] };
    let used = doc! { "$cond": ["$$newest", stored(), 0_i64] };
    let debt = doc! { "$subtract": [
        { "$min": [used, most] },
        { "$multiply": [elapsed, NANOS_PER_MILLI] },
    ] };
    doc! { "$max": [0_i64, debt] }
}

/// Whether there is room for this many permits.
fn has_room(quota: &Quota, permits: i64) -> Document {
    let most = match quota.window_kind() {
        WindowKind::Fixed => i64::from(quota.limit()).saturating_sub(permits),
        WindowKind::Smooth { .. } => {
            let cost = permits.saturating_mul(quota.interval_nanos());
            quota.credit_nanos().saturating_sub(cost)
        }
    };
    doc! { "$lte": ["$$used", most] }
}

/// How many permits there is room for, in groups of `permits`, up to `times` groups.
fn as_often_as_there_is_room(quota: &Quota, permits: i64, times: i64) -> Bson {
    let room = match quota.window_kind() {
        WindowKind::Fixed => doc! { "$max": [
            0_i64,
            { "$subtract": [i64::from(quota.limit()), "$$used"] },
        ] }
        .into(),
        WindowKind::Smooth { .. } => whole(
            doc! { "$subtract": [quota.credit_nanos(), "$$used"] },
            quota.interval_nanos(),
        ),
    };
    let times = doc! { "$min": [whole(room, permits), times] };
    match permits {
        1 => times.into(),
        _ => doc! { "$multiply": [permits, times] }.into(),
    }
}

/// Whether the document is one of a limiter. A foreign document may have a number in `limiter`.
///
/// Only numbers sort between two numbers, so the comparisons also check the type.
fn is_ours() -> Document {
    doc! { "$and": [
        { "$eq": ["$limiter", LIMITER_SCHEMA] },
        { "$eq": [{ "$type": "$granted_at" }, "date"] },
        { "$gt": ["$used", -1_i64] },
        { "$lt": ["$used", USED_END] },
        { "$gt": ["$granted", -1_i64] },
        { "$lt": ["$granted", USED_END] },
    ] }
}

/// Whether this upsert has created the document. It then has nothing but `_id`.
fn is_new(request: &PermitRequest) -> Document {
    doc! { "$eq": ["$$ROOT", { "_id": id(&request.quota, literal(request.key.as_str())) }] }
}

/// When the last grant in the document was made, if it counts; otherwise null. The grant in a foreign document does not
/// count. Nor does one that is too far in the future, which a wrong clock has made.
fn newest(quota: &Quota) -> Document {
    let mut counts = vec![is_not_ahead()];
    if quota.window_kind() == WindowKind::Fixed {
        counts.push(doc! { "$eq": [window_of(quota, "$granted_at"), window_of(quota, "$$NOW")] });
    }
    doc! { "$cond": [
        { "$and": ["$$ours", { "$or": counts }] },
        "$granted_at",
        Bson::Null,
    ] }
}

/// Whether no wrong clock has made the newest grant.
fn is_not_ahead() -> Document {
    doc! { "$lte": ["$granted_at", { "$add": ["$$NOW", millis(CLOCK_STEP)] }] }
}

/// The start of the window that contains a date.
fn window_of(quota: &Quota, at: impl Into<Bson>) -> Document {
    let at = at.into();
    doc! { "$subtract": [at.clone(), { "$mod": [{ "$toLong": at }, quota.window_millis()] }] }
}

/// Whether the newest grant that counts was made by this request, in this window.
fn is_newest(request: &PermitRequest) -> Document {
    doc! { "$and": [
        { "$eq": ["$last", request.id.to_string()] },
        { "$gte": ["$$newest", "$$start"] },
    ] }
}

/// The document after a grant of this many permits.
fn changed(request: &PermitRequest, granted: Bson) -> Document {
    let quota = &request.quota;
    let cost = match quota.window_kind() {
        WindowKind::Fixed => granted.clone(),
        WindowKind::Smooth { .. } => {
            doc! { "$multiply": [granted.clone(), quota.interval_nanos()] }.into()
        }
    };
    let used = if keeps_more_debt(quota) {
        "$$owed"
    } else {
        "$$used"
    };
    doc! {
        "_id": "$_id",
        "limiter": LIMITER_SCHEMA,
        "granted_at": "$$clock",
        "used": { "$add": [used, cost] },
        "last": request.id.to_string(),
        "granted": granted,
        "over_at": { "$add": ["$$start", quota.memory_millis()] },
    }
}

/// A division of whole numbers, rounded down. `$divide` computes with doubles, so the remainder is subtracted first. A
/// double can then hold the quotient exactly.
fn whole(number: impl Into<Bson>, by: i64) -> Bson {
    let number = number.into();
    if by == 1 {
        return number;
    }
    let rest = doc! { "$mod": [number.clone(), by] };
    let quotient = doc! { "$divide": [{ "$subtract": [number, rest] }, by] };
    doc! { "$toLong": { "$round": quotient } }.into()
}
