//! Renewals, conversions and releases.

use std::time::Duration;

use super::{TTL, acquire, ask, at, convert, granted, holders, put, try_put};
use crate::{
    messages::{
        ConvertAnswer, ConvertRequest, ReleaseAnswer, ReleaseRequest, RenewAnswer, RenewRequest,
    },
    model::{Key, LeaseId, Mode},
    rules::{Write, inspect, release, renew},
};

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

/// The store carries out the older of two renewals last, and the client relies on the newer one by then.
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
    // The expiry of the other holder is no bound.
    let request = RenewRequest::new(record.key.clone(), other, Duration::from_secs(5));
    let renewed = put(renew(Some(&newer), &request, at(9_000)).write);
    assert_eq!(renewed.holders[1].expires_at, at(14_000));
    assert_eq!(renewed.expires_at, at(19_000));
}

/// If a shared lease expires after another one was granted beside it, it has expired and was not taken over.
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
    assert_eq!(
        upgraded.holders.len(),
        1,
        "the other one has expired, and goes"
    );
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
    // A lease that has expired is not revived.
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
