//! What can be done with a key without holding it.

use std::time::Duration;

use chrono::{DateTime, Utc};

use super::decision::{Decision, Write, next_fence};
use crate::{
    messages::{Eviction, Filter},
    model::{LockRecord, LockState, after},
};

/// Ends every live lease and raises the fence, so that the evicted holders' writes can be told apart.
///
/// The names of the leases go from the holders, whatever time it is: a renewal that has waited in the
/// server since before the eviction, or one after the clock stepped back, finds nothing to renew. Who was
/// evicted stands beside them, for databases that answer with the document as the operation left it.
pub fn evict(record: Option<&LockRecord>, now: DateTime<Utc>) -> Decision<Option<Eviction>> {
    let Some(record) = record else {
        return Decision {
            write: Write::Keep,
            answer: None,
        };
    };
    let fence = next_fence(Some(record.fence), now);
    let mut evicted = LockRecord::new(record.key.clone(), fence, Vec::new(), now);
    evicted.evicted = record.live_holders(now).cloned().collect();
    Decision {
        answer: Some(answer_evict(&evicted)),
        write: Write::Put(evicted),
    }
}

/// Reads the answer to an eviction from the document as the operation left it.
pub fn answer_evict(record: &LockRecord) -> Eviction {
    Eviction {
        fence: record.fence,
        evicted: record.evicted.clone(),
    }
}

/// Removes the document if it has been of no use this long: since its last holder expired or left, and
/// since the clock passed its fence.
///
/// Without a document the next grant takes its fence from the clock, which must not be behind a fence that
/// was given out: that is ahead of the clock on a key with more than a thousand grants a second, for one.
pub fn remove_expired(
    record: Option<&LockRecord>,
    retention: Duration,
    now: DateTime<Utc>,
) -> Decision<bool> {
    let dead = record.is_some_and(|record| after(useless_from(record), retention) <= now);
    Decision {
        write: if dead { Write::Remove } else { Write::Keep },
        answer: dead,
    }
}

/// From when on a document without a live holder tells nothing that the clock does not.
fn useless_from(record: &LockRecord) -> DateTime<Utc> {
    let passed = record.fence.get().max(0).saturating_add(1);
    let passed = DateTime::from_timestamp_millis(passed).unwrap_or(DateTime::<Utc>::MAX_UTC);
    record.expires_at.max(passed)
}

/// The state of a key at this time, by its document.
pub fn inspect(record: &LockRecord, now: DateTime<Utc>) -> LockState {
    LockState {
        key: record.key.clone(),
        fence: record.fence,
        holders: record.live_holders(now).cloned().collect(),
        now,
    }
}

/// Whether a lock is one of those that are asked for.
///
/// A store may let its database choose by these conditions, and has to choose by this function in
/// the end: it decides at one time of one clock for the whole page.
pub fn matches(state: &LockState, filter: &Filter) -> bool {
    let owned = |owner| state.holders.iter().any(|holder| &*holder.owner == owner);
    state.key.as_str().starts_with(filter.wanted_prefix())
        && (!filter.wants_live() || !state.is_free())
        && filter.wanted_owner().is_none_or(owned)
}
