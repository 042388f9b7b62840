//! The rules, at times of choice.

use std::time::Duration;

use chrono::{DateTime, Utc};

use super::*;
use crate::{
    messages::{
        AcquireAnswer, AcquireRequest, ConvertAnswer, ConvertRequest, Filter, ReleaseAnswer,
        ReleaseRequest, RenewAnswer, RenewRequest,
    },
    model::{Fence, Key, LeaseId, LockRecord, MAX_HOLDERS, Mode},
};

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

/// The older of two renewals is carried out last, and the client counts on the newer one by then.
#[test]
fn a_renewal_never_shortens_a_lease() {
    let (lease, other) = (LeaseId::random(), LeaseId::random());
    let record = put(acquire(None, &ask(lease).shared(), at(0)).write);
    let record = try_put(&record, &ask(other).shared(), 2_000).unwrap();
    let request = RenewRequest::new(record.key.clone(), lease, TTL);
    let newer = put(renew(Some(&record), &request, at(9_000)).write);
    for (ttl, now) in [(TTL, 5_000), (Duration::from_secs(1), 9_500)] {
        let older = RenewRequest::new(record.key.clone(), lease, ttl);
        let crossed = renew(Some(&newer), &older, at(now));
        let RenewAnswer::Renewed(grant) = crossed.answer else {
            panic!("{crossed:?}");
        };
        assert_eq!(grant.expires_at, at(19_000));
        assert_eq!(put(crossed.write), newer);
    }
    // The other holder's own expiry is no bound.
    let request = RenewRequest::new(record.key.clone(), other, Duration::from_secs(5));
    let renewed = put(renew(Some(&newer), &request, at(9_000)).write);
    assert_eq!(renewed.holders[1].expires_at, at(14_000));
    assert_eq!(renewed.expires_at, at(19_000));
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

/// A renewal waits in the server since before the eviction, with the time of then; or the clock steps back.
#[test]
fn an_evicted_lease_is_over_whatever_the_clock_says() {
    let (lease, other) = (LeaseId::random(), LeaseId::random());
    let record = put(acquire(None, &ask(lease).shared(), at(5_000)).write);
    let record = try_put(&record, &ask(other).shared(), 5_001).unwrap();
    let evicted = put(evict(Some(&record), at(6_000)).write);
    assert_eq!(holders(&evicted), []);
    assert_eq!(evicted.evicted, record.holders);
    let key = record.key.clone();
    for now in [0, 5_999, 6_000, 30_000] {
        let now = at(now);
        let renewal = RenewRequest::new(key.clone(), lease, TTL);
        let renewed = renew(Some(&evicted), &renewal, now);
        let expected = (RenewAnswer::TakenOver, Write::Keep);
        assert_eq!((renewed.answer, renewed.write), expected, "{now}");
        let converted = convert(
            Some(&evicted),
            &ConvertRequest::upgrade(key.clone(), lease),
            now,
        );
        let expected = (ConvertAnswer::TakenOver, Write::Keep);
        assert_eq!((converted.answer, converted.write), expected, "{now}");
        let request = ReleaseRequest::new(key.clone(), lease).min_hold(TTL, other);
        let released = release(Some(&evicted), &request, now);
        let expected = (ReleaseAnswer::NotHeld, Write::Keep);
        assert_eq!((released.answer, released.write), expected, "{now}");
        let handover = ask(LeaseId::random()).in_place_of(lease);
        assert_eq!(acquire(Some(&evicted), &handover, now).write, Write::Keep);
        assert!(inspect(&evicted, now).is_free());
        assert!(
            granted(LeaseId::random(), Some(&evicted), 6_000)
                .evicted
                .is_empty()
        );
    }
}

/// Of several, one that expires after another was granted the key beside it was not taken over.
#[test]
fn a_reader_that_expires_beside_a_later_one_has_expired() {
    let (lease, other) = (LeaseId::random(), LeaseId::random());
    let record = put(acquire(None, &ask(lease).shared(), at(0)).write);
    let record = try_put(&record, &ask(other).shared(), 5_000).unwrap();
    let renewal = RenewRequest::new(record.key.clone(), lease, TTL);
    let late = renew(Some(&record), &renewal, at(10_000));
    assert_eq!(late.answer, RenewAnswer::Expired);
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

fn holders(record: &LockRecord) -> Vec<LeaseId> {
    record.holders.iter().map(|holder| holder.lease).collect()
}

fn try_put(record: &LockRecord, request: &AcquireRequest, now: i64) -> Option<LockRecord> {
    match acquire(Some(record), request, at(now)).write {
        Write::Put(record) => Some(record),
        _ => None,
    }
}

#[test]
fn readers_stand_beside_each_other_and_keep_a_writer_out() {
    let (one, two, writer) = (LeaseId::random(), LeaseId::random(), LeaseId::random());
    let record = put(acquire(None, &ask(one).shared(), at(0)).write);
    let record = try_put(&record, &ask(two).shared(), 4_000).unwrap();
    assert_eq!(holders(&record), [one, two]);
    assert_eq!(
        record.holders[0].expires_at,
        at(10_000),
        "each has its own expiry"
    );
    assert_eq!(record.expires_at, at(14_000));
    assert!(record.holders[1].fence > record.holders[0].fence);
    assert_eq!(record.fence, record.holders[1].fence);
    // One that crashed frees its place by itself, and the other still counts.
    assert_eq!(try_put(&record, &ask(writer), 13_999), None);
    let written = try_put(&record, &ask(writer), 14_000).unwrap();
    assert_eq!(holders(&written), [writer]);
    assert_eq!(try_put(&written, &ask(one).shared(), 14_001), None);
    assert_eq!(try_put(&written, &ask(one).permits(1, 9), 14_001), None);
}

#[test]
fn permits_are_granted_up_to_the_capacity_of_whoever_asks() {
    let first = put(acquire(None, &ask(LeaseId::random()).permits(2, 4), at(0)).write);
    let ask_for = |permits, capacity| {
        let request = ask(LeaseId::random()).permits(permits, capacity);
        try_put(&first, &request, 5_000)
    };
    assert!(ask_for(2, 4).is_some());
    assert_eq!(ask_for(3, 4), None);
    assert!(ask_for(3, 5).is_some());
    assert_eq!(ask_for(1, 2), None);
    assert_eq!(ask_for(i64::MAX, i64::MAX), None);
    assert_eq!(
        try_put(&first, &ask(LeaseId::random()).shared(), 5_000),
        None
    );
    assert_eq!(try_put(&first, &ask(LeaseId::random()), 5_000), None);
}

#[test]
fn an_owner_enters_again_under_its_fence() {
    let other =
        |lease| AcquireRequest::exclusive(Key::new("k").unwrap(), lease, "they".into(), TTL);
    let (outer, inner) = (LeaseId::random(), LeaseId::random());
    let record = granted(outer, None, 0);
    assert_eq!(
        try_put(&record, &ask(inner), 1),
        None,
        "only when it asks for that"
    );
    assert_eq!(try_put(&record, &other(inner).reentrant(), 1), None);
    let entered = try_put(&record, &ask(inner).reentrant(), 5_000).unwrap();
    assert_eq!(holders(&entered), [outer, inner]);
    assert_eq!(entered.holders[1].fence, record.fence);
    assert_eq!(entered.fence, record.fence);
    // The key is free when the last of its entries is.
    let left = put(release(
        Some(&entered),
        &ReleaseRequest::new(entered.key.clone(), outer),
        at(6_000),
    )
    .write);
    assert_eq!(try_put(&left, &other(outer), 14_999), None);
    assert!(try_put(&left, &other(outer), 15_000).unwrap().fence > record.fence);
    // What has expired is not entered again: that is a new grant.
    let later = try_put(&record, &ask(inner).reentrant(), 10_000).unwrap();
    assert!(later.fence > record.fence);
}

#[test]
fn an_upgrade_is_for_the_only_holder_and_has_a_new_fence() {
    let (one, two) = (LeaseId::random(), LeaseId::random());
    let key = Key::new("k").unwrap();
    let record = put(acquire(None, &ask(one).shared(), at(0)).write);
    let both = try_put(&record, &ask(two).shared(), 4_000).unwrap();
    let upgrade = ConvertRequest::upgrade(key.clone(), one);
    let refused = convert(Some(&both), &upgrade, at(5_000));
    assert_eq!(refused.write, Write::Keep);
    let ConvertAnswer::Held(held) = refused.answer else {
        panic!("{refused:?}");
    };
    assert_eq!(held.holders()[0].lease, two);
    assert_eq!(held.holders().len(), 1);

    let upgrade = ConvertRequest::upgrade(key.clone(), two);
    let upgraded = put(convert(Some(&both), &upgrade, at(10_000)).write);
    let mine = upgraded
        .holders
        .iter()
        .find(|holder| holder.lease == two)
        .unwrap();
    assert_eq!(mine.mode, Mode::Exclusive);
    assert!(mine.fence > both.fence && mine.fence == upgraded.fence);
    let again = convert(Some(&upgraded), &upgrade, at(10_001));
    assert_eq!(again.write, Write::Keep);
    assert!(matches!(again.answer, ConvertAnswer::Converted(grant) if grant.fence == mine.fence));

    let downgrade = ConvertRequest::downgrade(key, two);
    let shared = put(convert(Some(&upgraded), &downgrade, at(10_002)).write);
    assert_eq!(shared.fence, upgraded.fence);
    assert!(try_put(&shared, &ask(one).shared(), 10_003).is_some());
    let late = convert(Some(&shared), &upgrade, at(14_000)).answer;
    assert_eq!(late, ConvertAnswer::Expired);
    let gone = convert(Some(&record), &upgrade, at(1)).answer;
    assert_eq!(gone, ConvertAnswer::TakenOver);
}

#[test]
fn a_minimum_hold_keeps_the_key_under_a_name_that_nobody_has() {
    let (job, nobody) = (LeaseId::random(), LeaseId::random());
    let record = granted(job, None, 0);
    let early =
        ReleaseRequest::new(record.key.clone(), job).min_hold(Duration::from_secs(60), nobody);
    let released = release(Some(&record), &early, at(1_000));
    assert_eq!(released.answer, ReleaseAnswer::Released);
    let released = put(released.write);
    assert_eq!(holders(&released), [nobody]);
    assert_eq!(released.expires_at, at(60_000));
    assert_eq!(try_put(&released, &ask(job), 59_999), None);
    let again = release(Some(&released), &early, at(2_000));
    assert_eq!(again.answer, ReleaseAnswer::NotHeld);
    // One that has expired is not revived.
    let late = put(release(Some(&record), &early, at(10_000)).write);
    assert!(late.holders.is_empty());
    let over =
        ReleaseRequest::new(record.key.clone(), job).min_hold(Duration::from_secs(1), nobody);
    assert!(
        put(release(Some(&record), &over, at(1_000)).write)
            .holders
            .is_empty()
    );
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
    assert!(!remove_expired(Some(&ahead), day, at(86_420_000)).answer);
    assert!(remove_expired(Some(&ahead), day, at(86_420_001)).answer);
    ahead.fence = Fence::new(i64::MAX);
    assert!(!remove_expired(Some(&ahead), Duration::ZERO, at(8_000_000_000_000)).answer);
}

/// Readers that hold the key for as long as any, as many as it may have.
fn crowd() -> LockRecord {
    let mut record = granted(LeaseId::random(), None, 0);
    let mut reader = record.holders.remove(0);
    reader.mode = Mode::Shared;
    for _ in 0..MAX_HOLDERS {
        reader.lease = LeaseId::random();
        record.holders.push(reader.clone());
    }
    record
}

#[test]
fn a_key_has_no_more_live_holders_than_it_may_have() {
    let mut record = crowd();
    let reader = ask(LeaseId::random()).shared();
    for one_more in [reader.clone(), reader.clone().reentrant()] {
        let decision = acquire(Some(&record), &one_more, at(1));
        assert_eq!(decision.write, Write::Keep);
        let AcquireAnswer::Held(held) = decision.answer else {
            panic!("one too many");
        };
        assert!(is_full(&held, &one_more));
    }
    // An owner that enters again takes a place as well.
    let again = ask(LeaseId::random()).reentrant();
    assert_eq!(acquire(Some(&record), &again, at(1)).write, Write::Keep);
    // Who conflicts is told of the holders, who holds is granted again, and who has gone counts no more.
    let writer = ask(LeaseId::random()).note("writer");
    let writer = AcquireRequest {
        owner: "they".into(),
        ..writer
    };
    let AcquireAnswer::Held(held) = acquire(Some(&record), &writer, at(1)).answer else {
        panic!("a writer beside readers");
    };
    assert!(!is_full(&held, &writer));
    let holder = AcquireRequest {
        lease: record.holders[7].lease,
        ..reader.clone()
    };
    let repeated = acquire(Some(&record), &holder, at(1));
    assert!(matches!(repeated.answer, AcquireAnswer::Granted(_)));
    record.holders[7].expires_at = at(1);
    let left = put(acquire(Some(&record), &reader, at(1)).write);
    assert_eq!(left.holders.len(), MAX_HOLDERS);
}
