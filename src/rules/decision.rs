//! `Decision`: the outcome of a rule; and what several rules compute from a record.

use chrono::{DateTime, Utc};

use crate::{
    messages::Grant,
    model::{Fence, Holder, LeaseId, LockRecord},
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

/// The fence of a new grant: greater than the previous fence, and never less than the server's time in milliseconds. So
/// fences go on rising even after the document was cleaned up.
pub fn next_fence(previous: Option<Fence>, now: DateTime<Utc>) -> Fence {
    let following = previous.map_or(0, |fence| fence.get().saturating_add(1));
    Fence::new(following.max(now.timestamp_millis()))
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

pub(super) fn grant(holder: &Holder, now: DateTime<Utc>) -> Grant {
    Grant {
        fence: holder.fence,
        acquired_at: holder.acquired_at,
        expires_at: holder.expires_at,
        now,
    }
}
