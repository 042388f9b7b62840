//! Acquires: which request is granted a key, and which one is refused.

use std::{num::NonZeroU16, time::Duration};

use super::{
    TTL, acquire, ask, at, convert, evict, granted, holders, put, try_acquire, try_convert,
    try_evict, try_put,
};
use crate::{
    messages::{
        AcquireAnswer, AcquireRequest, ConvertAnswer, ConvertRequest, ReleaseAnswer, ReleaseRequest,
    },
    model::{Error, FENCE_END, Fence, Key, LeaseId, LockRecord, MAX_HOLDERS, Mode},
    rules::{Write, is_full, next_fence, release},
};

#[test]
fn a_free_key_is_granted_with_the_clock_as_its_first_fence() {
    let decision = acquire(None, &ask(LeaseId::random()), at(5_000));
    let AcquireAnswer::Granted(grant) = decision.answer else {
        panic!("held");
    };
    assert_eq!(grant.fence, Fence::new(5_000 * 1_024));
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
    let next = |previous: Option<i64>, now| next_fence(previous.map(Fence::new), at(now));
    let clock = 7 * 1_024;
    assert_eq!(next(None, 7), Some(Fence::new(clock)));
    assert_eq!(next(Some(clock), 7), Some(Fence::new(clock + 1)));
    assert_eq!(next(Some(10 * clock), 7), Some(Fence::new(10 * clock + 1)));
    assert_eq!(next(Some(clock), 70), Some(Fence::new(10 * clock)));
    assert_eq!(next(None, -7), Some(Fence::new(0)));
}

#[test]
fn after_the_last_fence_there_is_none() {
    let last = Fence::new(FENCE_END - 1);
    assert_eq!(
        next_fence(Some(Fence::new(FENCE_END - 2)), at(7)),
        Some(last)
    );
    assert_eq!(next_fence(Some(last), at(7)), None);

    let lease = LeaseId::random();
    let mut record = granted(lease, None, 0);
    record.fence = last;
    let again = acquire(Some(&record), &ask(lease), at(1));
    assert!(
        matches!(again.answer, AcquireAnswer::Granted(_)),
        "{again:?}"
    );
    for now in [1, 20_000] {
        let another = try_acquire(Some(&record), &ask(LeaseId::random()), at(now));
        assert_eq!(another.write, Write::Keep);
        assert!(
            matches!(another.answer, Err(Error::NotALock { .. })),
            "{another:?}"
        );
        let eviction = try_evict(Some(&record), at(now));
        assert_eq!(eviction.write, Write::Keep);
        assert!(
            matches!(eviction.answer, Err(Error::NotALock { .. })),
            "{eviction:?}"
        );
    }
    let key = Key::new("k").unwrap();
    let upgrade = ConvertRequest::upgrade(key.clone(), lease);
    assert!(matches!(
        convert(Some(&record), &upgrade, at(1)).answer,
        ConvertAnswer::Converted(_)
    ));
    record.holders[0].mode = Mode::Shared;
    let refused = try_convert(Some(&record), &upgrade, at(1));
    assert_eq!(refused.write, Write::Keep);
    assert!(
        matches!(refused.answer, Err(Error::NotALock { .. })),
        "{refused:?}"
    );
    let released = release(Some(&record), &ReleaseRequest::new(key, lease), at(1));
    assert_eq!(released.answer, ReleaseAnswer::Released);
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
    // A holder that crashed frees its permits when it expires, and the other still counts.
    assert_eq!(try_put(&record, &ask(writer), 13_999), None);
    let written = try_put(&record, &ask(writer), 14_000).unwrap();
    assert_eq!(holders(&written), [writer]);
    assert_eq!(try_put(&written, &ask(one).shared(), 14_001), None);
    assert_eq!(
        try_put(&written, &ask(one).permits(1, 9).unwrap(), 14_001),
        None
    );
}

#[test]
fn permits_are_granted_up_to_the_capacity_of_whoever_asks() {
    let first = put(acquire(None, &ask(LeaseId::random()).permits(2, 4).unwrap(), at(0)).write);
    let ask_for = |permits, capacity| {
        let request = ask(LeaseId::random()).permits(permits, capacity).unwrap();
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
    // The key is free when the last of its leases is released.
    let left = put(release(
        Some(&entered),
        &ReleaseRequest::new(entered.key.clone(), outer),
        at(6_000),
    )
    .write);
    assert_eq!(try_put(&left, &other(outer), 14_999), None);
    assert!(try_put(&left, &other(outer), 15_000).unwrap().fence > record.fence);
    // An owner whose lease has expired does not enter again: it gets a new grant.
    let later = try_put(&record, &ask(inner).reentrant(), 10_000).unwrap();
    assert!(later.fence > record.fence);
}

#[test]
fn an_owner_takes_over_its_own_leases() {
    let (dead, now) = (LeaseId::random(), LeaseId::random());
    let record = granted(dead, None, 0);
    let other = ask(now).take_over([LeaseId::random()]);
    assert_eq!(try_put(&record, &other, 1), None, "it names another lease");
    let taken = try_put(&record, &ask(now).take_over([dead]), 5_000).unwrap();
    assert_eq!(holders(&taken), [now]);
    assert!(taken.fence > record.fence && taken.holders[0].fence == taken.fence);
    assert_eq!(taken.expires_at, at(15_000));
    // It is the same as a plain grant once the old lease is over.
    let plain = try_put(&record, &ask(now), 10_000).unwrap();
    let later = try_put(&record, &ask(now).take_over([dead]), 10_000).unwrap();
    assert_eq!(plain, later);
}

/// As many readers as a key can have, which hold it for as long as a lease can.
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
    // An owner that enters again also counts as one more holder.
    let again = ask(LeaseId::random()).reentrant();
    assert_eq!(acquire(Some(&record), &again, at(1)).write, Write::Keep);
    // A conflicting request is told about the holders, a holder is granted again, and a holder that has expired no
    // longer counts.
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

/// When the clock is right again, everything is as before.
#[test]
fn a_clock_beyond_the_last_fence_changes_no_key() {
    let end = FENCE_END / 1_024;
    let last = put(acquire(None, &ask(LeaseId::random()), at(end - 1)).write);
    assert_eq!(last.fence.get(), FENCE_END - 1_024);
    let lease = LeaseId::random();
    let mut record = granted(lease, None, 5_000);
    let refused = |found: Option<&LockRecord>, now| {
        let acquired = try_acquire(found, &ask(LeaseId::random()), at(now));
        let evicted = try_evict(found, at(now));
        assert_eq!((acquired.write, evicted.write), (Write::Keep, Write::Keep));
        let is_error = matches!(acquired.answer, Err(Error::NotALock { .. }));
        assert!(is_error && (found.is_none() || evicted.answer.is_err()));
    };
    for now in [end, 8_000_000_000_000_000] {
        refused(None, now);
        refused(Some(&record), now);
    }
    let next = granted(LeaseId::random(), Some(&record), 20_000);
    assert_eq!(next.fence.get(), 20_000 * 1_024);
    let several = ask(LeaseId::random()).fences(NonZeroU16::new(1_025).unwrap());
    assert!(try_acquire(None, &several, at(end - 1)).answer.is_err());
    record.holders[0].mode = Mode::Shared;
    record.holders[0].expires_at = at(2 * end);
    let upgrade = ConvertRequest::upgrade(record.key.clone(), lease);
    let upgraded = try_convert(Some(&record), &upgrade, at(end));
    assert!(upgraded.write == Write::Keep && upgraded.answer.is_err());
}

#[test]
fn a_grant_that_takes_several_fences_has_the_last_of_them() {
    let several = |lease| ask(lease).fences(NonZeroU16::new(100).unwrap());
    let first = put(acquire(None, &several(LeaseId::random()), at(5_000)).write);
    // The first of the fences is the time of the server, as for any grant without a document.
    assert_eq!(first.fence.get(), 5_000 * 1_024 + 99);
    assert_eq!(first.holders[0].fence, first.fence);
    let free = at(5_000 + 10_000);
    let next = put(acquire(Some(&first), &several(LeaseId::random()), free).write);
    assert_eq!(next.fence.get(), 15_000 * 1_024 + 99);
    let soon = put(evict(Some(&first), at(5_001)).write);
    let next = put(acquire(Some(&soon), &several(LeaseId::random()), at(5_001)).write);
    assert_eq!(next.fence.get(), soon.fence.get() + 100);
}

#[test]
fn a_grant_needs_as_many_fences_as_it_takes() {
    let mut record = granted(LeaseId::random(), None, 0);
    record.fence = Fence::new(FENCE_END - 100);
    let fences = |n| {
        let request = ask(LeaseId::random()).fences(NonZeroU16::new(n).unwrap());
        try_acquire(Some(&record), &request, at(20_000))
    };
    let last = fences(99).answer.unwrap();
    assert!(matches!(last, AcquireAnswer::Granted(grant) if grant.fence.get() == FENCE_END - 1));
    let too_many = fences(100);
    assert!(matches!(too_many.answer, Err(Error::NotALock { .. })));
    assert_eq!(too_many.write, Write::Keep);
}
