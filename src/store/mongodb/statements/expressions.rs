//! Expressions that all statements are made of: conditions and values that MongoDB evaluates.

use std::{num::NonZeroU16, time::Duration};

use chrono::{DateTime, Utc};
use mongodb::bson::{self, Bson, Document, doc};

use crate::model::{FENCE_END, FENCES_PER_MILLI, Key, LeaseId, Mode, SCHEMA};

/// The longest duration in a statement, a thousand years. With it, sums and differences stay within the range of dates.
pub(super) const MAX_DURATION_MILLIS: i64 = 1_000 * 365 * 24 * 60 * 60 * 1_000;

/// Clean-up dates increase in steps of a power of ten milliseconds. This is the greatest exponent: 1,000 s.
const MAX_STEP_DIGITS: u32 = 6;
/// The latest date to which a duration is added: the end of the year 9999.
const MAX_DATE: bson::DateTime = bson::DateTime::from_millis(253_402_300_799_999);

/// The form of a lease id.
pub(super) const UUID: &str = "^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\\z";

pub(super) fn replace_if(condition: Document, replacement: Document) -> Vec<Document> {
    replace_or(condition, replacement, "$$ROOT".into())
}

pub(super) fn replace_or(
    condition: Document,
    replacement: Document,
    otherwise: Bson,
) -> Vec<Document> {
    vec![doc! { "$replaceWith": { "$cond": [condition, replacement, otherwise] } }]
}

/// Replaces the document by the value of the first of these cases that is true.
pub(super) fn replace_by_case<const N: usize>(
    cases: [(Document, Document); N],
    otherwise: impl Into<Bson>,
) -> Vec<Document> {
    let branches = cases.map(|(case, then)| doc! { "case": case, "then": then });
    vec![doc! { "$replaceWith": { "$switch": {
        "branches": branches.to_vec(),
        "default": otherwise,
    } } }]
}

/// Replaces the document by an expression about the list `all` of all [`holders`].
pub(super) fn replace_by_all(replacement: Document) -> Vec<Document> {
    vec![doc! { "$replaceWith": with("all", holders(), replacement) }]
}

/// An expression with a variable, whose value is computed once.
pub(super) fn with(name: &str, value: impl Into<Bson>, expression: impl Into<Bson>) -> Document {
    doc! { "$let": { "vars": { name: value }, "in": expression } }
}

/// Whether the document is a lock. A document of another program, one that a later version wrote, and one with an
/// invalid fence or expiry are not.
///
/// A number sorts after a missing value and before everything else but `MinKey`, so the comparisons also check the
/// type.
pub(super) fn is_lock() -> Document {
    is_lock_below(FENCE_END)
}

/// Whether the document is a lock that has a next fence, and so has the clock.
pub(super) fn has_next_fence() -> Document {
    let one = NonZeroU16::MIN;
    doc! { "$and": [is_below_last_fence(one), clock_has(one)] }
}

/// Whether the document is a lock with this many fences after its own.
pub(super) fn is_below_last_fence(fences: NonZeroU16) -> Document {
    is_lock_below(FENCE_END - i64::from(fences.get()))
}

fn is_lock_below(fence: i64) -> Document {
    doc! { "$and": [
        { "$eq": ["$schema", SCHEMA] },
        { "$lt": ["$fence", fence] },
        { "$gt": ["$fence", Bson::MinKey] },
        { "$in": [{ "$type": "$expires_at" }, ["date", "missing", "null", "undefined"]] },
    ] }
}

/// Whether there are this many fences from that of the clock on.
pub(super) fn clock_has(fences: NonZeroU16) -> Document {
    let last = (FENCE_END - i64::from(fences.get())) / FENCES_PER_MILLI;
    doc! { "$lte": ["$$NOW", bson::DateTime::from_millis(last)] }
}

/// Whether this upsert has created the document. It then has nothing but `_id`.
pub(super) fn is_new(key: &Key) -> Document {
    doc! { "$eq": ["$$ROOT", { "_id": literal(key.as_str()) }] }
}

/// Whether the key has no live holder. A missing expiry sorts before every date.
pub(super) fn is_free() -> Document {
    doc! { "$lte": ["$expires_at", "$$NOW"] }
}

/// Whether the key has a live holder.
pub(super) fn is_held() -> Document {
    doc! { "$gt": ["$expires_at", "$$NOW"] }
}

/// Whether this lease is the sole holder, live or not.
pub(super) fn is_sole(lease: LeaseId) -> Document {
    doc! { "$eq": ["$lease", lease.to_string()] }
}

/// Whether this lease is the sole holder, and live.
pub(super) fn is_live_and_sole(lease: LeaseId) -> Document {
    doc! { "$and": [is_sole(lease), is_held(), is_lock()] }
}

/// Whether this lease is one of several holders, and live.
pub(super) fn is_live_and_listed(lease: LeaseId) -> Document {
    let live = any("$holders", doc! { "$and": [is_lease(lease), is_live()] });
    doc! { "$and": [is_held(), is_lock(), is_listed(lease), live] }
}

/// The holders as a list, even if there is only one or none. Not a list if the document does not tell who holds the
/// key.
pub(super) fn holders() -> Document {
    let sole = doc! {
        "lease": "$lease",
        "owner": "$owner",
        "mode": Mode::Exclusive.as_str(),
        "permits": 1_i64,
        "fence": "$fence",
        "acquired_at": "$acquired_at",
        "expires_at": "$expires_at",
        "note": "$note",
    };
    doc! { "$switch": {
        "branches": [
            { "case": is_free(), "then": [] },
            { "case": { "$gt": ["$lease", Bson::Null] }, "then": [sole] },
        ],
        "default": "$holders",
    } }
}

/// The words for the modes.
pub(super) fn modes() -> Bson {
    let modes = [Mode::Exclusive, Mode::Shared, Mode::Permits];
    modes.map(|mode| Bson::from(mode.as_str())).to_vec().into()
}

/// Whether each of these holders has all the fields that decide who else may hold the key, no two of them have the same
/// lease, and the last of them expires at the expiry of the document, unless the key is free.
pub(super) fn make_sense(holders: &str) -> Document {
    let makes_sense = doc! { "$and": [
        { "$eq": [{ "$type": "$$this.lease" }, "string"] },
        { "$regexMatch": { "input": "$$this.lease", "regex": UUID } },
        { "$in": ["$$this.mode", modes()] },
        { "$in": [{ "$type": "$$this.permits" }, ["int", "long"]] },
        { "$lt": ["$$this.fence", FENCE_END] },
        { "$gt": ["$$this.fence", Bson::MinKey] },
        { "$eq": [{ "$type": "$$this.expires_at" }, "date"] },
    ] };
    doc! { "$and": [
        { "$isArray": holders },
        { "$allElementsTrue": { "$map": { "input": holders, "in": makes_sense } } },
        { "$eq": [
            { "$size": { "$setUnion": [format!("{holders}.lease")] } },
            { "$size": holders },
        ] },
        { "$or": [is_free(), { "$eq": [{ "$max": format!("{holders}.expires_at") }, "$expires_at"] }] },
    ] }
}

/// Whether the lease is one of several holders, live or not.
pub(super) fn is_listed(lease: LeaseId) -> Document {
    doc! { "$and": [
        { "$lte": ["$lease", Bson::Null] },
        make_sense("$holders"),
        { "$in": [lease.to_string(), "$holders.lease"] },
    ] }
}

/// Whether a condition holds for one of these holders.
pub(super) fn any(holders: &str, condition: Document) -> Document {
    doc! { "$anyElementTrue": { "$map": { "input": holders, "in": condition } } }
}

pub(super) fn is_lease(lease: LeaseId) -> Document {
    doc! { "$eq": ["$$this.lease", lease.to_string()] }
}

pub(super) fn is_live() -> Document {
    doc! { "$gt": ["$$this.expires_at", "$$NOW"] }
}

/// A document of this key, with this fence and clean-up date. The waiting processes keep their places, and the field
/// `done`, which a later version may have written, stays.
///
/// The fields that come and go are last: behind a new field the server logs all fields, and otherwise only those that
/// change.
pub(super) fn lock(
    fence: impl Into<Bson>,
    cleanup_at: impl Into<Bson>,
    state: Document,
) -> Document {
    let mut lock = doc! {
        "_id": "$_id",
        "schema": SCHEMA,
        "fence": fence,
        "cleanup_at": cleanup_at,
        "waiters": "$waiters",
        "done": "$done",
    };
    lock.extend(state);
    lock
}

/// The date from which the TTL index removes a document. By then the retention has passed since two moments: the end of
/// the last lease, which is `later` after `date`; and the time of the next fence, because without the document the next
/// fence is taken from the clock.
///
/// The date increases in steps of 1,000 s, or less for a short retention, and never goes down. So most grants, renewals
/// and releases of a key that is in use do not change its entry in the index.
pub(super) fn cleanup_at(date: impl Into<Bson>, later: Duration, retention: Duration) -> Document {
    let retention = millis(retention).min(MAX_DURATION_MILLIS);
    let digits = (retention / 24).max(1).ilog10().min(MAX_STEP_DIGITS);
    let step = 10_i64.pow(digits);
    // `$trunc` rounds towards zero, so one step is added. Two milliseconds are added because the next fence may be one
    // of the millisecond after that of the present fence, and the clock passes it one millisecond later.
    let kept = millis(later).min(MAX_DURATION_MILLIS) + retention + step + 2;
    let fence = doc! { "$divide": ["$fence", FENCES_PER_MILLI] };
    let newest = doc! { "$max": [fence, { "$toLong": date.into() }] };
    doc! { "$max": ["$cleanup_at", { "$add": [
        bson::DateTime::from_millis(kept),
        { "$trunc": [newest, -i64::from(digits)] },
    ] }] }
}

/// A date of a document, bounded so that a duration can be added to it.
pub(super) fn bounded(date: impl Into<Bson>) -> Document {
    doc! { "$min": [date.into(), MAX_DATE] }
}

/// The fence of the next grant. A new document has no fence: the sum is then null, which `$max` ignores.
pub(super) fn next_fence() -> Document {
    doc! { "$max": [{ "$add": ["$fence", 1_i64] }, of_clock("$$NOW")] }
}

/// The first fence of a millisecond of the clock.
pub(super) fn of_clock(date: impl Into<Bson>) -> Document {
    doc! { "$multiply": [{ "$toLong": date.into() }, FENCES_PER_MILLI] }
}

/// The last fence of the next grant, if that takes this many fences in a row.
pub(super) fn last_of_next(fences: NonZeroU16) -> Document {
    match i64::from(fences.get()) - 1 {
        0 => next_fence(),
        more => doc! { "$add": [next_fence(), more] },
    }
}

pub(super) fn from_now(ttl: Duration) -> Document {
    doc! { "$add": ["$$NOW", millis(ttl)] }
}

pub(super) fn literal(text: &str) -> Document {
    doc! { "$literal": text }
}

/// The ids of leases, as a document has them.
pub(super) fn lease_ids(leases: &[LeaseId]) -> Vec<String> {
    leases.iter().map(ToString::to_string).collect()
}

pub(crate) fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

/// The date as one of chrono; `None` if it is out of chrono's range.
pub(crate) fn utc(date: bson::DateTime) -> Option<DateTime<Utc>> {
    DateTime::from_timestamp_millis(date.timestamp_millis())
}

/// A whole number, of any type in which a person or another program may have stored it.
pub(crate) fn integer(value: &Bson) -> Option<i64> {
    match *value {
        Bson::Int32(number) => Some(number.into()),
        Bson::Int64(number) => Some(number),
        Bson::Double(number) => whole(number),
        _ => None,
    }
}

/// A double that is a whole number of 64 bits.
fn whole(number: f64) -> Option<i64> {
    (number.fract() == 0.0 && number.abs() < i64::MAX as f64).then_some(number as i64)
}
