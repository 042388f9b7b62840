//! The rules of operations on a key by a client that does not hold it: eviction, clean-up, inspection and lists.

use std::time::Duration;

use chrono::{DateTime, Utc};

use super::decision::{Decision, Write, next_fence, no_next_fence};
use crate::{
    messages::{Eviction, Filter, LookAnswer},
    model::{Error, FENCES_PER_MILLI, LastDone, LeaseId, LockRecord, LockState, after},
};

/// Ends each live lease, and raises the fence, so that resources can refuse the writes of the evicted holders. `None`
/// if the key has no document.
///
/// The leases are removed from the holders, whatever time it is. So a renewal finds nothing to renew, even if it has
/// waited in the server since before the eviction, or if the clock has stepped back. The document lists the evicted
/// holders separately, for databases that answer with the document as the operation left it.
///
/// # Errors
///
/// The answer is [`Error::NotALock`] if there is no [next fence](next_fence).
pub fn evict(
    record: Option<&LockRecord>,
    now: DateTime<Utc>,
) -> Decision<Result<Option<Eviction>, Error>> {
    let Some(record) = record else {
        return Decision::keep(Ok(None));
    };
    let Some(fence) = next_fence(Some(record.fence), now) else {
        return Decision::keep(Err(no_next_fence(&record.key)));
    };
    let mut evicted = LockRecord::new(record.key.clone(), fence, Vec::new(), now);
    evicted.evicted = record.live_holders(now).cloned().collect();
    evicted.waiters = record.waiters.clone();
    evicted.done = record.done.clone();
    Decision::put(evicted, |evicted| Ok(Some(answer_evict(evicted))))
}

/// What a look at a lease tells, by the state of its key: whether the lease is among the holders, and whether a process
/// waits.
pub fn look(state: &LockState, lease: LeaseId) -> LookAnswer {
    let is_held = state.holders.iter().any(|holder| holder.lease == lease);
    LookAnswer::new(is_held, !state.waiters.is_empty())
}

/// What was found for a look. `None` for a document that is no lock, or of another version.
pub(crate) fn found<T>(found: Result<Option<T>, Error>) -> Result<Option<T>, Error> {
    match found {
        Err(Error::NotALock { .. } | Error::UnsupportedSchema { .. }) => Ok(None),
        found => found,
    }
}

/// Reads the answer to an eviction from the document, as the operation left it.
pub fn answer_evict(record: &LockRecord) -> Eviction {
    Eviction {
        fence: record.fence,
        evicted: record.evicted.clone(),
    }
}

/// Removes the document if the retention has passed since two moments: the one when its last holder expired or was
/// released, and the one when the clock passed its fence. A done tick keeps the document for as long as its caller
/// said.
///
/// Without a document, the next grant takes its fence from the clock. So the clock must have passed each fence that was
/// granted before. A fence can be ahead of the clock, for example if the clock has stepped back.
pub fn remove_expired(
    record: Option<&LockRecord>,
    retention: Duration,
    now: DateTime<Utc>,
) -> Decision<bool> {
    let is_old = record.is_some_and(|record| {
        let is_forgotten = match &record.done {
            LastDone::Nothing => true,
            LastDone::Tick(done) => done.until <= now,
            LastDone::Unreadable => false,
        };
        is_forgotten && after(removable_from(record), retention) <= now
    });
    Decision {
        write: if is_old { Write::Remove } else { Write::Keep },
        answer: is_old,
    }
}

/// From when on the document can be removed: its holders have expired and the clock has passed its fence.
fn removable_from(record: &LockRecord) -> DateTime<Utc> {
    let passed = record.fence.get().max(0) / FENCES_PER_MILLI + 1;
    let passed = DateTime::from_timestamp_millis(passed).unwrap_or(DateTime::<Utc>::MAX_UTC);
    record.expires_at.max(passed)
}

/// The state of a key at this time.
pub fn inspect(record: &LockRecord, now: DateTime<Utc>) -> LockState {
    LockState {
        key: record.key.clone(),
        fence: record.fence,
        holders: record.live_holders(now).cloned().collect(),
        waiters: record.live_places(now).cloned().collect(),
        done: record.done.tick().cloned(),
        now,
    }
}

/// Whether a lock matches a filter.
///
/// A store may select documents by a query of its database, but it must apply this function to the result. Only then
/// all locks of a page are judged at the same time of the same clock.
pub fn matches(state: &LockState, filter: &Filter) -> bool {
    let owned = |owner| state.holders.iter().any(|holder| &*holder.owner == owner);
    state.key.as_str().starts_with(filter.wanted_prefix())
        && (!filter.wants_live() || !state.is_free())
        && filter.wanted_owner().is_none_or(owned)
}
