//! `Decision`: the outcome of a rule; and what several rules compute from a record.

use chrono::{DateTime, Utc};

use crate::{
    messages::Grant,
    model::{Error, FENCE_END, Fence, Holder, Key, LeaseId, LockRecord},
};

/// The outcome of a rule: the change of the document, and the answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision<A, R = LockRecord> {
    /// The change of the document.
    pub write: Write<R>,
    /// The answer.
    pub answer: A,
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

/// The fence of a new grant: greater than the one before, and never less than the server's time in
/// milliseconds, so that it goes on rising even after the document was cleaned up.
///
/// `None` after the last one. No key comes to it by itself, but a document may have it all the same.
pub fn next_fence(previous: Option<Fence>, now: DateTime<Utc>) -> Option<Fence> {
    let following = previous.map_or(0, |fence| fence.get().saturating_add(1));
    let next = following.max(now.timestamp_millis());
    (next < FENCE_END).then_some(Fence::new(next))
}

/// Whether there is no fence after this one, whatever time it is.
pub(crate) fn is_last(fence: Fence) -> bool {
    fence.get() >= FENCE_END - 1
}

/// The answer to who needs a fence for this key after the last one.
pub(crate) fn no_next_fence(key: &Key) -> Error {
    Error::NotALock {
        key: key.clone(),
        problem: "its fence is the last one that there is".to_owned(),
    }
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

/// From when on a key is free after a release that left these holders: until the latest of them expires, if one is live. If
/// all of them have expired the key is free from now on, unless it was free before.
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
    }
}
