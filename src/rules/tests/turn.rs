//! The queue of the waiting processes: which process takes a place, which one comes first, and for how long.

mod free_key;
mod not_in_turn;

use std::time::Duration;

use super::{TTL, acquire, ask, at, convert, evict, granted, holders, put};
use crate::{
    messages::{
        AcquireAnswer, AcquireRequest, ConvertAnswer, ConvertRequest, ReleaseAnswer,
        ReleaseRequest, RenewRequest, Turn,
    },
    model::{Held, LeaseId, LockRecord, MAX_PLACE_TIME, MAX_PLACES, Mode, after},
    rules::{
        Write, inspect, leave, release, renew,
        turn::{MAX_BIND_TIME, long_enough},
    },
};

/// How long the places of these tests count.
const STAYS: Duration = Duration::from_secs(30);

/// A request of a process that waits, for an exclusive lease.
fn wait(waiter: LeaseId) -> AcquireRequest {
    let request = AcquireRequest {
        owner: format!("process {waiter}").into(),
        ..ask(LeaseId::random())
    };
    request.turn(Turn::in_turn(waiter, STAYS))
}

fn processes<const N: usize>() -> [LeaseId; N] {
    [(); N].map(|()| LeaseId::random())
}

fn waiters(record: &LockRecord) -> Vec<LeaseId> {
    record.waiters.iter().map(|place| place.waiter).collect()
}

/// The answer to a refusal, and what it writes, if anything.
fn refused(record: &LockRecord, request: &AcquireRequest, now: i64) -> (Held, Option<LockRecord>) {
    let decision = acquire(Some(record), request, at(now));
    let AcquireAnswer::Held(held) = decision.answer else {
        panic!("granted: {decision:?}");
    };
    match decision.write {
        Write::Keep => (held, None),
        Write::Put(record) => (held, Some(record)),
        Write::Remove => panic!("a refusal removed the document"),
    }
}

fn queued(mut record: LockRecord, requests: &[AcquireRequest], now: i64) -> LockRecord {
    for request in requests {
        record = refused(&record, request, now).1.expect("a place");
    }
    record
}

fn passes(record: &LockRecord, request: &AcquireRequest, now: i64) -> LockRecord {
    let decision = acquire(Some(record), request, at(now));
    assert!(
        matches!(decision.answer, AcquireAnswer::Granted(_)),
        "{decision:?}"
    );
    put(decision.write)
}

fn freed(record: &LockRecord, now: i64) -> LockRecord {
    holders(record).iter().fold(record.clone(), |left, lease| {
        let request = ReleaseRequest::new(left.key.clone(), *lease);
        put(release(Some(&left), &request, at(now)).write)
    })
}

/// A key that a lease holds, for which these requests wait.
fn held_with(requests: &[AcquireRequest]) -> LockRecord {
    queued(granted(LeaseId::random(), None, 0), requests, 1)
}

/// A key that is free since 1 s, for which these requests wait.
fn free_with(requests: &[AcquireRequest]) -> LockRecord {
    freed(&held_with(requests), 1_000)
}

/// A key with one reader, for which these requests wait.
fn read_with(requests: &[AcquireRequest]) -> LockRecord {
    let reader = ask(LeaseId::random()).shared();
    queued(put(acquire(None, &reader, at(0)).write), requests, 1)
}

#[test]
fn processes_are_granted_the_key_in_the_order_in_which_they_came() {
    let [one, two, three] = processes();
    let mut record = held_with(&[one, two, three].map(wait));
    assert_eq!(waiters(&record), [one, two, three]);
    for (first, later) in [(one, vec![two, three]), (two, vec![three]), (three, vec![])] {
        record = freed(&record, 100);
        for waiter in &later {
            let (held, written) = refused(&record, &wait(*waiter), 101);
            assert_eq!(written, None);
            assert!(held.holders().is_empty() && held.binds_for() > Duration::ZERO);
            assert_eq!(Some(*waiter), later.get(held.ahead() - 1).copied());
        }
        record = passes(&record, &wait(first), 102);
        assert_eq!(waiters(&record), later, "its own place goes with the grant");
    }
}

#[test]
fn a_refusal_tells_how_many_are_ahead() {
    let [one, two, three] = processes();
    let record = held_with(&[wait(one), wait(two)]);
    for (request, ahead) in [
        (wait(one), 0),
        (wait(two), 1),
        (wait(three), 2),
        (ask(LeaseId::random()), 2),
    ] {
        let (held, _) = refused(&record, &request, 2);
        assert_eq!(held.ahead(), ahead);
        assert_eq!(held.binds_for(), Duration::ZERO, "the key has a holder");
        assert_eq!(held.holders().len(), 1);
    }
}

#[test]
fn readers_queue_behind_a_writer_and_not_behind_readers() {
    let [reader, writer, late] = processes();
    let record = held_with(&[wait(reader).shared(), wait(writer), wait(late).shared()]);
    let record = freed(&record, 1_000);
    let record = passes(&record, &wait(reader).shared(), 1_001);
    // A reader holds the key, and another one could hold it too if no writer waited.
    refused(&record, &wait(late).shared(), 1_002);
    refused(&record, &ask(LeaseId::random()).shared(), 1_002);
    let record = passes(&freed(&record, 1_003), &wait(writer), 1_004);
    assert_eq!(waiters(&record), [late]);

    let [one, two, three] = processes();
    let readers = [one, two, three].map(|waiter| wait(waiter).shared());
    let record = freed(&held_with(&readers), 1_000);
    let record = passes(&record, &readers[2], 1_001);
    let record = passes(&record, &readers[1], 1_002);
    assert_eq!(waiters(&record), [one]);
    refused(&record, &wait(two), 1_003);
}

/// The tasks of a process that wait for a shared lease all wait in one place.
#[test]
fn readers_one_after_the_other_take_one_turn() {
    let [one, two, three, four, five] = processes();
    let read = |waiter| wait(waiter).shared();
    let some = |waiter| wait(waiter).permits(1, 9).unwrap();
    let turns = |queue: &[AcquireRequest], request: &AcquireRequest| {
        let (held, _) = refused(&held_with(queue), request, 1);
        (held.ahead(), held.turns_ahead())
    };
    let readers = [read(one), read(two)];
    assert_eq!(turns(&readers, &read(five)), (2, 0));
    assert_eq!(turns(&readers, &wait(five)), (2, 1));
    let mixed = [read(one), read(two), wait(three), read(four)];
    assert_eq!(turns(&mixed, &read(five)), (4, 2));
    assert_eq!(turns(&mixed, &wait(five)), (4, 3));
    assert_eq!(turns(&mixed, &read(two)), (1, 0));
    let others = [wait(one), wait(two), some(three), some(four)];
    assert_eq!(turns(&others, &some(five)), (4, 4));
}

#[test]
fn a_large_request_for_permits_is_not_passed_by_small_ones() {
    let [large, small] = processes();
    let held = put(acquire(None, &ask(LeaseId::random()).permits(2, 4).unwrap(), at(0)).write);
    let record = queued(held, &[wait(large).permits(3, 4).unwrap()], 1);
    // Two permits are left. They are kept for the large request.
    for request in [wait(small), ask(LeaseId::random())] {
        refused(&record, &request.permits(1, 4).unwrap(), 2);
    }
    passes(&record, &wait(small).permits(1, 6).unwrap(), 2);
    let record = passes(
        &freed(&record, 1_000),
        &wait(large).permits(3, 4).unwrap(),
        1_001,
    );
    // One permit is left beside the large request.
    passes(&record, &wait(small).permits(1, 4).unwrap(), 1_002);
    // A number of permits that cannot be counted is too many.
    let record = free_with(&[wait(large).permits(i64::MAX, i64::MAX).unwrap()]);
    refused(&record, &wait(small).permits(1, i64::MAX).unwrap(), 1_001);
}

#[test]
fn permits_queue_behind_writers_and_readers() {
    let [first, second] = processes();
    for ahead in [wait(first), wait(first).shared()] {
        let record = free_with(&[ahead]);
        refused(&record, &wait(second).permits(1, 4).unwrap(), 1_001);
    }
    let record = free_with(&[wait(first).permits(1, 4).unwrap()]);
    refused(&record, &wait(second).shared(), 1_001);
    refused(&record, &wait(second), 1_001);
    passes(&record, &wait(second).permits(3, 4).unwrap(), 1_001);
}

#[test]
fn a_process_takes_one_place_and_refreshes_it_when_that_is_worth_a_write() {
    let [waiter] = processes();
    let record = held_with(&[wait(waiter)]);
    let taken = record.waiters[0].clone();
    assert_eq!((taken.since, taken.until), (at(1), at(30_001)));
    let long = AcquireRequest {
        ttl: 10 * TTL,
        ..ask(LeaseId::random())
    };
    let record = LockRecord {
        waiters: record.waiters,
        ..put(acquire(None, &long, at(0)).write)
    };
    for now in [1, 100, 251] {
        assert_eq!(refused(&record, &wait(waiter), now).1, None, "{now}");
    }
    let (_, refreshed) = refused(&record, &wait(waiter), 252);
    let refreshed = refreshed.unwrap();
    let [place] = &refreshed.waiters[..] else {
        panic!("{refreshed:?}");
    };
    assert_eq!((place.since, place.until), (at(1), at(30_252)));
    // Nothing else of the document changes.
    let same = LockRecord {
        waiters: record.waiters.clone(),
        ..refreshed
    };
    assert_eq!(same, record);
    // Another task of the process asks for something else.
    let (_, changed) = refused(&record, &wait(waiter).shared(), 2);
    let place = &changed.unwrap().waiters[0];
    assert_eq!(
        (place.mode, place.since, place.until),
        (Mode::Shared, at(1), at(30_002))
    );
    let (_, changed) = refused(&record, &wait(waiter).permits(3, 4).unwrap(), 2);
    let place = &changed.unwrap().waiters[0];
    assert_eq!((place.mode, place.permits), (Mode::Permits, 3));
}

#[test]
fn a_short_place_is_refreshed_before_it_is_over() {
    for (counts_for, enough) in [(3_000, 2_750), (750, 500), (300, 200), (2, 1), (1, 0)] {
        let left = long_enough(Duration::from_millis(counts_for));
        assert_eq!(left.as_millis(), enough, "{counts_for}");
    }
}

#[test]
fn a_key_has_no_more_places_than_it_may_have() {
    let requests: Vec<_> = (0..MAX_PLACES).map(|_| wait(LeaseId::random())).collect();
    let record = held_with(&requests);
    let late = wait(LeaseId::random());
    let (held, written) = refused(&record, &late, 2);
    assert_eq!((held.ahead(), written), (MAX_PLACES, None));
    // A process that has a place keeps it.
    let (held, written) = refused(&record, &requests[99].clone().shared(), 2);
    assert_eq!(held.ahead(), MAX_PLACES - 1);
    assert_eq!(written.unwrap().waiters.len(), MAX_PLACES);
    // A place that no longer counts makes room.
    let mut record = record;
    record.waiters[50].until = at(2);
    let left = refused(&record, &late, 2).1.unwrap();
    assert_eq!(left.waiters.len(), MAX_PLACES);
    assert_eq!(
        left.waiters.last().map(|it| Some(it.waiter)),
        Some(late.turn.waiter())
    );
}

#[test]
fn a_place_counts_no_longer_than_it_may() {
    let [one, two] = processes();
    let record = free_with(&[wait(one)]);
    let greedy = wait(one).turn(Turn::in_turn(one, 2 * MAX_PLACE_TIME));
    let taken = held_with(&[greedy]);
    assert_eq!(taken.waiters[0].until, after(at(1), MAX_PLACE_TIME));
    // A place that ends later than a place can was written before the clock stepped back.
    for (until, counts) in [
        (at(1_001), false),
        (at(1_002), true),
        (after(at(1_001), MAX_PLACE_TIME), true),
        (after(at(1_002), MAX_PLACE_TIME), false),
    ] {
        let mut record = record.clone();
        record.waiters[0].until = until;
        let shown = inspect(&record, at(1_001)).waiters;
        assert_eq!(!shown.is_empty(), counts, "{until}");
        if counts {
            refused(&record, &wait(two), 1_001);
        } else {
            let record = passes(&record, &wait(two), 1_001);
            assert_eq!(waiters(&record), [], "{until}");
        }
    }
}

#[test]
fn a_grant_drops_the_places_that_it_has_passed_and_keeps_the_others() {
    let [reader, writer, late] = processes();
    let record = free_with(&[wait(reader).shared(), wait(writer), wait(late).shared()]);
    // The writer did not come. The reader before it holds the key with the one that did, and is not passed.
    let over = 1_000 + i64::try_from(MAX_BIND_TIME.as_millis()).unwrap();
    let record = passes(&record, &wait(late).shared(), over);
    assert_eq!(waiters(&record), [reader]);
    // The places that no longer count are removed by the next grant, and no others.
    let [one, two, three] = processes();
    let mut record = free_with(&[one, two, three].map(wait));
    record.waiters[1].until = at(900);
    let record = passes(&record, &wait(one), 1_001);
    assert_eq!(waiters(&record), [three]);
}

#[test]
fn a_request_that_does_not_wait_writes_nothing_and_does_not_overtake() {
    let [waiter] = processes();
    let record = free_with(&[wait(waiter)]);
    for request in [ask(LeaseId::random()), ask(LeaseId::random()).shared()] {
        assert_eq!(request.turn, Turn::Behind);
        assert_eq!(refused(&record, &request, 1_001).1, None);
    }
    let held = held_with(&[]);
    for turn in [Turn::Behind, Turn::Barging] {
        let (_, written) = refused(&held, &ask(LeaseId::random()).turn(turn), 1);
        assert_eq!(written, None);
    }
}

#[test]
fn evictions_releases_and_renewals_keep_the_places() {
    let [one, two] = processes();
    let record = held_with(&[wait(one), wait(two)]);
    let (key, lease) = (record.key.clone(), holders(&record)[0]);
    let renewal = RenewRequest::new(key.clone(), lease, TTL);
    let renewed = put(renew(Some(&record), &renewal, at(2)).write);
    let plain = ReleaseRequest::new(key, lease);
    let released = put(release(Some(&record), &plain, at(2)).write);
    let held_on = plain.min_hold(TTL, LeaseId::random());
    let held_on = put(release(Some(&record), &held_on, at(2)).write);
    let evicted = put(evict(Some(&record), at(2)).write);
    for left in [&renewed, &released, &held_on, &evicted] {
        assert_eq!(left.waiters, record.waiters);
        assert_eq!(inspect(left, at(2)).waiters, record.waiters);
    }
    for free in [&released, &evicted] {
        refused(free, &wait(two), 3);
        passes(free, &wait(one), 3);
    }
    refused(&held_on, &wait(one), 3);
}

#[test]
fn a_process_leaves_the_queue() {
    let [one, two, other] = processes();
    let record = held_with(&[wait(one), wait(two)]);
    let left = leave(Some(&record), one, at(2));
    let left = put(left.write);
    assert_eq!(waiters(&left), [two]);
    let rest = LockRecord {
        waiters: record.waiters.clone(),
        ..left.clone()
    };
    assert_eq!(rest, record, "nothing else changes");
    passes(&freed(&left, 1_000), &wait(two), 1_001);
    // A process without a place has none to give up.
    assert_eq!(leave(Some(&left), one, at(3)).write, Write::Keep);
    assert_eq!(leave(Some(&record), other, at(2)).write, Write::Keep);
    assert_eq!(leave(None, one, at(2)).write, Write::Keep);
    // The places that no longer count are removed as well.
    let left = put(leave(Some(&record), one, at(40_000)).write);
    assert_eq!(waiters(&left), []);
}

#[test]
fn a_repeated_request_is_granted_again_whatever_waits() {
    let [one, two] = processes();
    let once = wait(one);
    let record = put(acquire(None, &once, at(0)).write);
    let record = queued(record, &[wait(two)], 1);
    for turn in [once.turn, Turn::Behind, Turn::Barging] {
        let again = acquire(Some(&record), &once.clone().turn(turn), at(2));
        assert!(matches!(again.answer, AcquireAnswer::Granted(_)));
        assert_eq!(again.write, Write::Keep);
    }
    // The request of another task of this process takes a place while the lease is there.
    let record = queued(record, &[wait(one)], 3);
    assert_eq!(waiters(&record), [two, one]);
    let released = release(
        Some(&record),
        &ReleaseRequest::new(record.key.clone(), once.lease),
        at(4),
    );
    assert_eq!(released.answer, ReleaseAnswer::Released);
    refused(&put(released.write), &wait(one), 5);
}
