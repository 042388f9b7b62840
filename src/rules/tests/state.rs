//! Evictions, filters and removals.

use std::time::Duration;

use super::{TTL, acquire, ask, at, convert, evict, granted, holders, put, try_put};
use crate::{
    messages::{
        ConvertAnswer, ConvertRequest, Filter, ReleaseAnswer, ReleaseRequest, RenewAnswer,
        RenewRequest,
    },
    model::{Fence, LeaseId},
    rules::{Write, inspect, matches, release, remove_expired, renew},
};

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
    // A holder that had expired before was not evicted.
    let late = evict(Some(&record), at(10_000)).answer.unwrap();
    assert!(late.evicted.is_empty());
    assert_eq!(evict(None, at(1)).answer, None);
}

/// Two cases: a renewal that has waited in the server since before the eviction, with the time of then; and a clock
/// that stepped back.
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
        assert!(inspect(&evicted, now).is_free());
        assert!(
            granted(LeaseId::random(), Some(&evicted), 6_000)
                .evicted
                .is_empty()
        );
    }
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
    // The clock passes this fence with its next millisecond.
    ahead.fence = Fence::new(20_000 * 1_024 + 1_023);
    assert!(!remove_expired(Some(&ahead), Duration::ZERO, at(20_000)).answer);
    assert!(remove_expired(Some(&ahead), Duration::ZERO, at(20_001)).answer);
    assert!(!remove_expired(Some(&ahead), day, at(86_420_000)).answer);
    assert!(remove_expired(Some(&ahead), day, at(86_420_001)).answer);
    ahead.fence = Fence::new(i64::MAX);
    assert!(!remove_expired(Some(&ahead), Duration::ZERO, at(8_000_000_000_000)).answer);
}
