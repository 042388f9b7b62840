//! The rules of a lock, as functions of its document, a request and the server's time.
//!
//! Nothing here reads a clock or does I/O. The memory store runs these functions as they are; the
//! other stores translate them for their database, and read their answers with
//! [`answer_acquire`] and [`answer_renew`], so that no store words an answer of its own.

use std::time::Duration;

use chrono::{DateTime, Utc};

use crate::{
    AcquireAnswer, AcquireRequest, Eviction, Fence, Filter, Grant, Held, Holder, LockRecord,
    LockState, ReleaseAnswer, ReleaseRequest, RenewAnswer, RenewRequest,
    record::{LeaseId, after},
};

/// What an operation does to the document, and what it answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision<A> {
    /// What becomes of the document.
    pub write: Write,
    /// The answer.
    pub answer: A,
}

/// What becomes of a document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Write {
    /// Nothing is written.
    Keep,
    /// This is the document now.
    Put(LockRecord),
    /// The document goes.
    Remove,
}

/// The fence of a new grant: greater than the one before, and never less than the server's time in
/// milliseconds, so that it goes on rising even after the document was cleaned up.
pub fn next_fence(previous: Option<Fence>, now: DateTime<Utc>) -> Fence {
    let following = previous.map_or(0, |fence| fence.get().saturating_add(1));
    Fence::new(following.max(now.timestamp_millis()))
}

/// Grants an exclusive lease if nobody is live.
///
/// A live lease with the same id is granted again as it stands, which makes a repeated request
/// harmless. A refusal writes nothing: it never touches the winner's expiry.
pub fn acquire(
    record: Option<&LockRecord>,
    request: &AcquireRequest,
    now: DateTime<Utc>,
) -> Decision<AcquireAnswer> {
    if let Some(record) = record
        && record.live_holders(now).next().is_some()
    {
        return Decision {
            write: Write::Keep,
            answer: answer_acquire(record, request.lease, now),
        };
    }
    let fence = next_fence(record.map(|record| record.fence), now);
    let expires_at = after(now, request.ttl);
    let holder = Holder::exclusive(request.lease, request.owner.clone(), fence, now, expires_at);
    let granted = LockRecord::new(request.key.clone(), fence, vec![holder], expires_at);
    Decision {
        answer: answer_acquire(&granted, request.lease, now),
        write: Write::Put(granted),
    }
}

/// Reads the answer to an acquire from the document as the operation left it.
pub fn answer_acquire(record: &LockRecord, lease: LeaseId, now: DateTime<Utc>) -> AcquireAnswer {
    match live(record, lease, now) {
        Some(holder) => AcquireAnswer::Granted(grant(holder, now)),
        None => AcquireAnswer::Held(Held::new(
            record.key.clone(),
            record.live_holders(now).cloned().collect(),
            now,
        )),
    }
}

/// Gives a live lease its ttl anew, counted from now.
pub fn renew(
    record: Option<&LockRecord>,
    request: &RenewRequest,
    now: DateTime<Utc>,
) -> Decision<RenewAnswer> {
    let Some(record) = record.filter(|record| live(record, request.lease, now).is_some()) else {
        return Decision {
            write: Write::Keep,
            answer: answer_renew(record, request.lease, now),
        };
    };
    let mut renewed = record.clone();
    for holder in &mut renewed.holders {
        if holder.lease == request.lease {
            holder.expires_at = after(now, request.ttl);
        }
    }
    renewed.expires_at = latest_expiry(&renewed.holders, now);
    Decision {
        answer: answer_renew(Some(&renewed), request.lease, now),
        write: Write::Put(renewed),
    }
}

/// Reads the answer to a renewal from the document as the operation left it.
///
/// The document tells, not the number of changed documents: a renewal within the millisecond of
/// the grant changes nothing and is a renewal all the same.
pub fn answer_renew(
    record: Option<&LockRecord>,
    lease: LeaseId,
    now: DateTime<Utc>,
) -> RenewAnswer {
    let holder = record.and_then(|record| holder(record, lease));
    match (record, holder) {
        (_, Some(holder)) if holder.is_live(now) => RenewAnswer::Renewed(grant(holder, now)),
        // An eviction leaves its holders, and raises the fence.
        (Some(record), Some(holder)) if record.fence > holder.fence => RenewAnswer::TakenOver,
        // Without a document the lease expired so long ago that it was cleaned up.
        (_, Some(_)) | (None, None) => RenewAnswer::Expired,
        (Some(_), None) => RenewAnswer::TakenOver,
    }
}

/// Drops one lease from the holders and keeps everything else, the fence above all.
pub fn release(
    record: Option<&LockRecord>,
    request: &ReleaseRequest,
    now: DateTime<Utc>,
) -> Decision<ReleaseAnswer> {
    let Some(record) = record.filter(|record| holder(record, request.lease).is_some()) else {
        return Decision {
            write: Write::Keep,
            answer: ReleaseAnswer::NotHeld,
        };
    };
    let mut released = record.clone();
    released
        .holders
        .retain(|holder| holder.lease != request.lease);
    released.expires_at = latest_expiry(&released.holders, now);
    Decision {
        write: Write::Put(released),
        answer: ReleaseAnswer::Released,
    }
}

/// Ends every live lease now and raises the fence, so that the evicted holders' writes can be told
/// apart.
///
/// The evicted stay in the document as holders that have expired: the document as the operation
/// left it tells who they were, which is all that some databases give back.
pub fn evict(record: Option<&LockRecord>, now: DateTime<Utc>) -> Decision<Option<Eviction>> {
    let Some(record) = record else {
        return Decision {
            write: Write::Keep,
            answer: None,
        };
    };
    let mut holders: Vec<_> = record.live_holders(now).cloned().collect();
    for holder in &mut holders {
        holder.expires_at = now;
    }
    let fence = next_fence(Some(record.fence), now);
    let evicted = LockRecord::new(record.key.clone(), fence, holders, now);
    Decision {
        answer: Some(answer_evict(&evicted)),
        write: Write::Put(evicted),
    }
}

/// Reads the answer to an eviction from the document as the operation left it.
pub fn answer_evict(record: &LockRecord) -> Eviction {
    Eviction {
        fence: record.fence,
        evicted: record.holders.clone(),
    }
}

/// Removes the document if its last holder expired or left this long ago.
///
/// A fence that is ahead of the clock keeps its document until the clock has passed it, because
/// the next grant would otherwise start from the clock, behind the fence.
pub fn remove_expired(
    record: Option<&LockRecord>,
    retention: Duration,
    now: DateTime<Utc>,
) -> Decision<bool> {
    let dead = record.is_some_and(|record| {
        after(record.expires_at, retention) <= now && record.fence.get() < now.timestamp_millis()
    });
    Decision {
        write: if dead { Write::Remove } else { Write::Keep },
        answer: dead,
    }
}

/// What a document says about its key at this time.
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

fn holder(record: &LockRecord, lease: LeaseId) -> Option<&Holder> {
    record.holders.iter().find(|holder| holder.lease == lease)
}

fn live(record: &LockRecord, lease: LeaseId, now: DateTime<Utc>) -> Option<&Holder> {
    holder(record, lease).filter(|holder| holder.is_live(now))
}

fn latest_expiry(holders: &[Holder], now: DateTime<Utc>) -> DateTime<Utc> {
    holders
        .iter()
        .map(|holder| holder.expires_at)
        .max()
        .unwrap_or(now)
}

fn grant(holder: &Holder, now: DateTime<Utc>) -> Grant {
    Grant {
        fence: holder.fence,
        acquired_at: holder.acquired_at,
        expires_at: holder.expires_at,
        now,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Key, Mode};

    const TTL: Duration = Duration::from_secs(10);

    fn at(millis: i64) -> DateTime<Utc> {
        DateTime::from_timestamp_millis(millis).unwrap()
    }

    fn ask(lease: LeaseId) -> AcquireRequest {
        AcquireRequest::exclusive(Key::new("k").unwrap(), lease, "me".into(), TTL)
    }

    fn put(write: Write) -> LockRecord {
        match write {
            Write::Put(record) => record,
            other => panic!("expected a written document, got {other:?}"),
        }
    }

    fn granted(lease: LeaseId, record: Option<&LockRecord>, now: i64) -> LockRecord {
        put(acquire(record, &ask(lease), at(now)).write)
    }

    #[test]
    fn a_free_key_is_granted_with_the_clock_as_its_first_fence() {
        let decision = acquire(None, &ask(LeaseId::random()), at(5_000));
        let AcquireAnswer::Granted(grant) = decision.answer else {
            panic!("held");
        };
        assert_eq!(grant.fence, Fence::new(5_000));
        assert_eq!(grant.expires_in(), TTL);
        assert_eq!(put(decision.write).expires_at, at(15_000));
    }

    #[test]
    fn a_live_holder_is_answered_and_nothing_is_written() {
        let record = granted(LeaseId::random(), None, 0);
        let decision = acquire(Some(&record), &ask(LeaseId::random()), at(9_999));
        assert_eq!(decision.write, Write::Keep);
        let AcquireAnswer::Held(held) = decision.answer else {
            panic!("granted twice");
        };
        assert_eq!(held.owner(), "me");
        assert_eq!(held.expires_in(), Duration::from_millis(1));
    }

    #[test]
    fn the_key_is_free_at_the_very_millisecond_of_the_expiry() {
        let record = granted(LeaseId::random(), None, 0);
        let decision = acquire(Some(&record), &ask(LeaseId::random()), at(10_000));
        assert!(matches!(decision.answer, AcquireAnswer::Granted(_)));
        assert_eq!(put(decision.write).holders.len(), 1);
    }

    #[test]
    fn the_same_lease_id_is_granted_once() {
        let lease = LeaseId::random();
        let record = granted(lease, None, 0);
        let again = acquire(Some(&record), &ask(lease), at(4_000));
        assert_eq!(again.write, Write::Keep);
        let AcquireAnswer::Granted(grant) = again.answer else {
            panic!("held by itself");
        };
        assert_eq!(grant.fence, record.fence);
        assert_eq!(grant.expires_in(), Duration::from_secs(6));
    }

    #[test]
    fn the_fence_rises_even_when_the_clock_stands_still_or_goes_back() {
        assert_eq!(next_fence(None, at(7)), Fence::new(7));
        assert_eq!(next_fence(Some(Fence::new(7)), at(7)), Fence::new(8));
        assert_eq!(next_fence(Some(Fence::new(70)), at(7)), Fence::new(71));
        assert_eq!(next_fence(Some(Fence::new(7)), at(70)), Fence::new(70));
    }

    #[test]
    fn a_release_drops_its_own_holder_only() {
        let (mine, other) = (LeaseId::random(), LeaseId::random());
        let mut record = granted(mine, None, 0);
        let mut reader = record.holders[0].clone();
        reader.lease = other;
        reader.mode = Mode::Shared;
        reader.expires_at = at(20_000);
        record.holders.push(reader);
        record.expires_at = at(20_000);
        let request = ReleaseRequest::new(record.key.clone(), mine);

        let first = release(Some(&record), &request, at(1));
        assert_eq!(first.answer, ReleaseAnswer::Released);
        let left = put(first.write);
        assert_eq!(left.holders.len(), 1);
        assert_eq!(left.holders[0].lease, other);
        assert_eq!(left.expires_at, at(20_000));

        let second = release(Some(&left), &request, at(2));
        assert_eq!(second.answer, ReleaseAnswer::NotHeld);
        assert_eq!(second.write, Write::Keep);
    }

    #[test]
    fn the_last_release_leaves_a_tombstone_that_keeps_the_fence() {
        let lease = LeaseId::random();
        let record = granted(lease, None, 0);
        let request = ReleaseRequest::new(record.key.clone(), lease);
        let tombstone = put(release(Some(&record), &request, at(3)).write);
        assert_eq!(tombstone.fence, record.fence);
        assert_eq!(tombstone.expires_at, at(3));
        assert!(inspect(&tombstone, at(3)).is_free());
    }

    #[test]
    fn a_renewal_counts_from_now_and_only_while_live() {
        let lease = LeaseId::random();
        let record = granted(lease, None, 0);
        let request = RenewRequest::new(record.key.clone(), lease, TTL);
        let renewed = put(renew(Some(&record), &request, at(9_000)).write);
        assert_eq!(renewed.expires_at, at(19_000));
        assert_eq!(renewed.holders[0].expires_at, at(19_000));
        assert_eq!(renewed.fence, record.fence);

        let late = renew(Some(&record), &request, at(10_000));
        assert_eq!(late.write, Write::Keep);
        assert_eq!(late.answer, RenewAnswer::Expired);
        let next = granted(LeaseId::random(), Some(&record), 10_000);
        let stale = renew(Some(&next), &request, at(10_001));
        assert_eq!(stale.answer, RenewAnswer::TakenOver);
        let gone = renew(None, &request, at(10_001));
        assert_eq!(gone.answer, RenewAnswer::Expired);
    }

    #[test]
    fn an_eviction_frees_the_key_and_raises_the_fence() {
        let lease = LeaseId::random();
        let record = granted(lease, None, 0);
        let decision = evict(Some(&record), at(1));
        let eviction = decision.answer.unwrap();
        assert_eq!(eviction.evicted.len(), 1);
        assert_eq!(eviction.evicted[0].lease, lease);
        assert!(eviction.fence > record.fence);
        let free = put(decision.write);
        assert!(inspect(&free, at(1)).is_free());
        let renewal = RenewRequest::new(record.key.clone(), lease, TTL);
        let renewal = renew(Some(&free), &renewal, at(1));
        assert_eq!(renewal.answer, RenewAnswer::TakenOver);
        let next = granted(LeaseId::random(), Some(&free), 1);
        assert!(next.fence > eviction.fence);
        assert_eq!(next.holders.len(), 1);
        // Who had expired before was not evicted.
        let late = evict(Some(&record), at(10_000)).answer.unwrap();
        assert!(late.evicted.is_empty());
        assert_eq!(evict(None, at(1)).answer, None);
    }

    #[test]
    fn a_filter_looks_at_live_holders_only() {
        let record = granted(LeaseId::random(), None, 0);
        let (held, free) = (inspect(&record, at(1)), inspect(&record, at(10_000)));
        let any = Filter::new();
        assert!(matches(&held, &any) && matches(&free, &any));
        let live = Filter::new().live();
        assert!(matches(&held, &live) && !matches(&free, &live));
        let mine = Filter::new().owner("me");
        assert!(matches(&held, &mine) && !matches(&free, &mine));
        assert!(!matches(&held, &Filter::new().owner("m")));
        assert!(matches(&held, &Filter::new().prefix("k")));
        assert!(!matches(&held, &Filter::new().prefix("kk")));
    }

    #[test]
    fn clean_up_waits_for_the_retention_and_for_the_fence() {
        let day = Duration::from_secs(86_400);
        let record = granted(LeaseId::random(), None, 0);
        assert!(!remove_expired(Some(&record), Duration::ZERO, at(9_999)).answer);
        assert!(remove_expired(Some(&record), Duration::ZERO, at(10_000)).answer);
        assert!(!remove_expired(Some(&record), day, at(86_409_999)).answer);
        assert!(remove_expired(Some(&record), day, at(86_410_000)).answer);
        assert!(!remove_expired(None, day, at(86_410_000)).answer);

        let mut ahead = record;
        ahead.fence = Fence::new(20_000);
        assert!(!remove_expired(Some(&ahead), Duration::ZERO, at(20_000)).answer);
        assert!(remove_expired(Some(&ahead), Duration::ZERO, at(20_001)).answer);
    }
}
