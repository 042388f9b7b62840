//! `Decision`: the type of the result of a rule. And what several rules compute from a record: its next fence, its live
//! holders, its expiry.

use std::num::NonZeroU16;

use chrono::{DateTime, Utc};

use crate::{
    messages::Grant,
    model::{Error, FENCE_END, FENCES_PER_MILLI, Fence, Holder, Key, LeaseId, LockRecord},
};

/// The result of a rule: the change of the document, and the answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision<A, R = LockRecord> {
    /// The change of the document.
    pub write: Write<R>,
    /// The answer.
    pub answer: A,
}

impl<A, R> Decision<A, R> {
    pub(super) fn keep(answer: A) -> Self {
        let write = Write::Keep;
        Self { write, answer }
    }

    /// The answer is read from the document that is written.
    pub(super) fn put(record: R, answer: impl FnOnce(&R) -> A) -> Self {
        let answer = answer(&record);
        let write = Write::Put(record);
        Self { write, answer }
    }
}

/// The change of a document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Write<R = LockRecord> {
    /// Nothing is written.
    Keep,
    /// The document is replaced by this one.
    Put(R),
    /// The document is removed.
    Remove,
}

/// The fence of a new grant. It is greater than the previous fence, and at least the server's time in milliseconds ×
/// 1,024, so that it rises even after a clean-up of the document.
///
/// `None` if it would be too great: `previous` is the last fence that there is, or the clock is past the year 2248. No
/// key or clock comes that far by itself, but a document may contain that fence, and a clock may be wrong.
pub fn next_fence(previous: Option<Fence>, now: DateTime<Utc>) -> Option<Fence> {
    last_of_next(previous, NonZeroU16::MIN, now)
}

/// The last fence of a grant that takes this many fences in a row. The first of them is the [next fence](next_fence).
///
/// `None` if there are not so many fences left.
pub fn last_of_next(
    previous: Option<Fence>,
    fences: NonZeroU16,
    now: DateTime<Utc>,
) -> Option<Fence> {
    let following = previous.map_or(0, |fence| fence.get().saturating_add(1));
    let of_clock = now.timestamp_millis().saturating_mul(FENCES_PER_MILLI);
    let first = following.max(of_clock);
    let last = first.saturating_add(i64::from(fences.get()) - 1);
    (last < FENCE_END).then_some(Fence::new(last))
}

/// The error if there is no fence for a change that needs one.
pub(crate) fn no_next_fence(key: &Key) -> Error {
    Error::not_a_lock(
        key,
        "its next fence would be too great: its fence is the last one that there is, or the clock of the server is wrong",
    )
}

pub(super) fn holder(record: &LockRecord, lease: LeaseId) -> Option<&Holder> {
    record.holders.iter().find(|holder| holder.lease == lease)
}

pub(super) fn live(record: &LockRecord, lease: LeaseId, now: DateTime<Utc>) -> Option<&Holder> {
    holder(record, lease).filter(|holder| holder.is_live(now))
}

pub(super) fn latest_expiry(holders: &[Holder], now: DateTime<Utc>) -> DateTime<Utc> {
    holders
        .iter()
        .map(|holder| holder.expires_at)
        .max()
        .unwrap_or(now)
}

/// From when on the key is free if a release leaves these holders. If one of them is live, the key is free when the
/// latest of them expires. If all of them have expired, it is free from now on, unless it was free before.
pub(super) fn free_from(record: &LockRecord, left: &[Holder], now: DateTime<Utc>) -> DateTime<Utc> {
    let latest = latest_expiry(left, now);
    if latest >= now {
        latest
    } else {
        record.expires_at.min(now)
    }
}

pub(super) fn grant(holder: &Holder, now: DateTime<Utc>) -> Grant {
    Grant {
        fence: holder.fence,
        acquired_at: holder.acquired_at,
        expires_at: holder.expires_at,
        now,
        is_awaited: false,
    }
}
