//! Ticks: which one is done, and what is granted then.

use std::time::Duration;

use super::{TTL, acquire, ask, at, convert, evict, granted, holders, put, try_acquire};
use crate::{
    messages::{
        AcquireAnswer, AcquireRequest, ConvertRequest, ReleaseAnswer, ReleaseRequest, RenewRequest,
        Turn,
    },
    model::{Done, Error, LastDone, LeaseId, LockRecord, Tick, TickKind},
    rules::{Decision, Write, inspect, not_due, release, remove_expired, renew},
};

/// How long these tests keep a done tick: longer than a lease lives.
const KEPT: Duration = Duration::from_secs(60);

/// A request for the tick of this number.
fn ask_for(lease: LeaseId, number: i64) -> AcquireRequest {
    ask(lease).tick(Tick::counter(number))
}

/// A release after the tick of this number was done.
fn complete(record: &LockRecord, lease: LeaseId, number: i64, now: i64) -> Decision<ReleaseAnswer> {
    let request = ReleaseRequest::new(record.key.clone(), lease);
    let request = request.done(Tick::counter(number), KEPT);
    release(Some(record), &request, at(now))
}

/// A free key whose tick of this number was done at this time, and the lease under which it was done.
fn after_tick(number: i64, now: i64) -> (LockRecord, LeaseId) {
    let lease = LeaseId::random();
    let held = put(acquire(None, &ask_for(lease, number), at(now)).write);
    (put(complete(&held, lease, number, now).write), lease)
}

fn last(record: &LockRecord) -> &Done {
    match &record.done {
        LastDone::Tick(done) => done,
        other => panic!("{other:?}"),
    }
}

/// The answer to a request that must be refused because its tick is done. Nothing may be written.
fn refused_as_done(record: &LockRecord, request: &AcquireRequest, now: i64) -> Done {
    let decision = acquire(Some(record), request, at(now));
    assert_eq!(decision.write, Write::Keep, "{request:?}");
    match decision.answer {
        AcquireAnswer::Done(done) => done,
        other => panic!("{other:?}"),
    }
}

/// A request of a process that waits.
fn waiting(request: AcquireRequest) -> AcquireRequest {
    request.turn(Turn::in_turn(LeaseId::random(), Duration::from_secs(30)))
}

#[test]
fn a_tick_that_is_done_and_those_before_it_are_refused() {
    let (record, lease) = after_tick(7, 1_000);
    let done = last(&record).clone();
    let expected = Done::new(
        Tick::counter(7),
        (lease, "me".into()),
        at(1_000),
        at(61_000),
    );
    assert_eq!(done, expected);
    assert_eq!(inspect(&record, at(1_000)).done, Some(done.clone()));
    for number in [7, 6, i64::MIN] {
        let request = || ask_for(LeaseId::random(), number);
        for request in [
            request(),
            request().shared(),
            request().permits(1, 4).unwrap(),
            request().reentrant(),
            request().fresh(),
            request().turn(Turn::Barging),
            waiting(request()),
        ] {
            // The tick stays done until a clean-up removes it, even after its end.
            for now in [1_000, 60_999, 61_000, 100_000_000] {
                assert_eq!(refused_as_done(&record, &request, now), done);
            }
        }
    }
    let later = LeaseId::random();
    let next = put(acquire(Some(&record), &ask_for(later, 8), at(1_000)).write);
    assert_eq!(holders(&next), [later]);
    assert_eq!(last(&next), &done, "it is not done yet");
}

#[test]
fn the_newest_done_tick_tells_which_ticks_are_due() {
    let (record, _) = after_tick(7, 1_000);
    let (key, done) = (&record.key, last(&record));
    let told = |tick| not_due(done, tick, key);
    assert!(told(Tick::counter(8)).is_none());
    assert!(matches!(told(Tick::counter(7)), Some(Error::Done(newest)) if newest == *done));
    for older in [6, i64::MIN] {
        let older = Tick::counter(older);
        let left_out = told(older);
        assert!(
            matches!(&left_out, Some(Error::Superseded { tick, done: newest }) if (*tick, newest) == (older, done)),
            "{left_out:?}"
        );
    }
    let other = told(Tick::version(1, 0, 0));
    assert!(matches!(other, Some(Error::OtherTickKind { .. })));
}

#[test]
fn a_tick_that_is_done_takes_no_place_behind_a_later_one() {
    let (record, _) = after_tick(7, 1_000);
    let held = put(acquire(Some(&record), &ask_for(LeaseId::random(), 8), at(2_000)).write);
    for request in [
        ask_for(LeaseId::random(), 7),
        waiting(ask_for(LeaseId::random(), 7)),
        waiting(ask_for(LeaseId::random(), 6).shared()),
    ] {
        assert_eq!(&refused_as_done(&held, &request, 3_000), last(&record));
    }
    // A request for the same tick, or for a later one, waits for it.
    for number in [8, 9] {
        let request = waiting(ask_for(LeaseId::random(), number));
        let decision = acquire(Some(&held), &request, at(3_000));
        assert!(
            matches!(decision.answer, AcquireAnswer::Held(_)),
            "{decision:?}"
        );
        assert_eq!(put(decision.write).waiters.len(), 1);
    }
}

#[test]
fn ticks_of_different_kinds_are_not_compared() {
    let (record, _) = after_tick(7, 1_000);
    let held = granted(LeaseId::random(), Some(&record), 1_000);
    for kind in TickKind::ALL {
        if kind == TickKind::Counter {
            continue;
        }
        for number in [i64::MIN, 7, i64::MAX] {
            for record in [&record, &held] {
                let tick = Tick::stored(kind, number);
                let request = waiting(ask(LeaseId::random()).tick(tick));
                let decision = try_acquire(Some(record), &request, at(2_000));
                assert_eq!(decision.write, Write::Keep);
                let Err(Error::OtherTickKind {
                    key,
                    tick: asked,
                    done,
                }) = decision.answer
                else {
                    panic!("{decision:?}");
                };
                assert_eq!(
                    (key, asked, done),
                    (record.key.clone(), tick, Tick::counter(7))
                );
            }
        }
    }
}

#[test]
fn what_cannot_be_read_may_be_any_tick() {
    let (mut record, _) = after_tick(7, 1_000);
    record.done = LastDone::Unreadable;
    let mut held = granted(LeaseId::random(), Some(&record), 1_000);
    assert_eq!(held.done, LastDone::Unreadable);
    for record in [&record, &held] {
        for number in [6, i64::MAX] {
            let request = waiting(ask_for(LeaseId::random(), number));
            let decision = try_acquire(Some(record), &request, at(2_000));
            assert_eq!(decision.write, Write::Keep);
            assert!(
                matches!(decision.answer, Err(Error::NotALock { .. })),
                "{decision:?}"
            );
        }
    }
    assert_eq!(inspect(&record, at(2_000)).done, None);
    // A lease that was granted for a tick before can still mark it as done.
    let mine = held.holders[0].lease;
    held = put(complete(&held, mine, 8, 2_000).write);
    assert_eq!(last(&held).tick, Tick::counter(8));
}

#[test]
fn a_request_without_a_tick_does_not_look_at_what_is_done() {
    let (record, _) = after_tick(i64::MAX, 1_000);
    let mut unreadable = record.clone();
    unreadable.done = LastDone::Unreadable;
    for record in [record, unreadable] {
        for request in [
            ask(LeaseId::random()),
            ask(LeaseId::random()).shared(),
            ask(LeaseId::random()).permits(1, 4).unwrap(),
        ] {
            let next = put(acquire(Some(&record), &request, at(1_000)).write);
            assert_eq!(holders(&next), [request.lease]);
            assert_eq!(next.done, record.done);
            let other = waiting(ask(LeaseId::random()));
            let refused = acquire(Some(&next), &other, at(1_000));
            assert!(matches!(refused.answer, AcquireAnswer::Held(_)));
            let waited_for = put(refused.write);
            assert_eq!(waited_for.done, record.done);
        }
    }
}

/// The answer to the first request was lost. The lease is live, so nobody else has it for that tick.
#[test]
fn a_repeated_request_of_a_live_lease_is_granted_whatever_is_done() {
    let lease = LeaseId::random();
    let mut held = put(acquire(None, &ask_for(lease, 7), at(0)).write);
    let done = Done::new(Tick::counter(9), (lease, "me".into()), at(0), at(0));
    for last in [
        LastDone::Nothing,
        LastDone::Tick(done),
        LastDone::Unreadable,
    ] {
        held.done = last;
        for tick in [Tick::counter(7), Tick::version(1, 0, 0)] {
            let again = acquire(Some(&held), &ask(lease).tick(tick), at(1));
            assert_eq!(again.write, Write::Keep);
            let AcquireAnswer::Granted(grant) = again.answer else {
                panic!("{again:?}");
            };
            assert_eq!((grant.fence, grant.acquired_at), (held.fence, at(0)));
        }
    }
    // After its release it is a request like any other.
    let released = put(complete(&held, lease, 9, 2).write);
    assert_eq!(
        refused_as_done(&released, &ask_for(lease, 7), 3).lease,
        lease
    );
}

#[test]
fn a_release_writes_what_is_done_under_a_live_lease_only() {
    let lease = LeaseId::random();
    let (before, _) = after_tick(6, 0);
    let held = put(acquire(Some(&before), &ask_for(lease, 7), at(0)).write);
    let in_time = complete(&held, lease, 7, 9_999);
    assert_eq!(in_time.answer, ReleaseAnswer::Released);
    let released = put(in_time.write);
    let done = Done::new(
        Tick::counter(7),
        (lease, "me".into()),
        at(9_999),
        at(69_999),
    );
    assert_eq!(last(&released), &done);
    assert_eq!(holders(&released), []);
    assert_eq!(
        (released.expires_at, released.fence),
        (at(9_999), held.fence)
    );

    let taken_over = granted(LeaseId::random(), Some(&held), 10_000);
    let evicted = put(evict(Some(&held), at(1)).write);
    for (record, now) in [
        (&held, 10_000),
        (&held, 20_000),
        (&taken_over, 10_000),
        (&evicted, 1),
        (&before, 1),
    ] {
        let late = complete(record, lease, 7, now);
        assert_eq!(
            (late.write, late.answer),
            (Write::Keep, ReleaseAnswer::NotHeld)
        );
    }
    let request = ReleaseRequest::new(held.key.clone(), lease).done(Tick::counter(7), KEPT);
    let gone = release(None, &request, at(1));
    assert_eq!(
        (gone.write, gone.answer),
        (Write::Keep, ReleaseAnswer::NotHeld)
    );
    // So the next request is granted the same tick.
    let next = ask_for(LeaseId::random(), 7);
    for (record, now) in [(&held, 10_000), (&evicted, 1)] {
        let answer = acquire(Some(record), &next, at(now)).answer;
        assert!(matches!(answer, AcquireAnswer::Granted(_)), "{answer:?}");
    }
}

#[test]
fn a_release_with_a_tick_leaves_the_other_holders() {
    let (mine, other) = (LeaseId::random(), LeaseId::random());
    let record = put(acquire(None, &ask_for(mine, 7).shared(), at(0)).write);
    let record = put(acquire(Some(&record), &ask(other).shared(), at(5_000)).write);
    let request = ReleaseRequest::new(record.key.clone(), mine).done(Tick::counter(7), KEPT);
    let request = request.likely_sole();
    let released = put(release(Some(&record), &request, at(6_000)).write);
    assert_eq!(holders(&released), [other]);
    assert_eq!(released.expires_at, at(15_000));
    assert_eq!(last(&released).tick, Tick::counter(7));
    assert!(!request.undoable().is_undoable());
}

#[test]
fn a_repeated_release_finds_what_the_first_one_wrote() {
    let (record, lease) = after_tick(7, 0);
    let again = |record: &LockRecord, lease, number| {
        let decision = complete(record, lease, number, 5_000);
        assert_eq!(decision.write, Write::Keep);
        decision.answer
    };
    assert_eq!(again(&record, lease, 7), ReleaseAnswer::Released);
    let later = LeaseId::random();
    let held = put(acquire(Some(&record), &ask_for(later, 8), at(1_000)).write);
    assert_eq!(again(&held, lease, 7), ReleaseAnswer::Released);
    // Another lease has not done it, and this lease has done no other tick.
    assert_eq!(again(&record, LeaseId::random(), 7), ReleaseAnswer::NotHeld);
    assert_eq!(again(&record, lease, 8), ReleaseAnswer::NotHeld);
    let done = put(complete(&held, later, 8, 2_000).write);
    assert_eq!(again(&done, lease, 7), ReleaseAnswer::NotHeld);
    assert_eq!(again(&done, later, 8), ReleaseAnswer::Released);
    // A request without a tick ignores the done tick.
    let plain = ReleaseRequest::new(record.key.clone(), lease);
    let plain = release(Some(&record), &plain, at(1)).answer;
    assert_eq!(plain, ReleaseAnswer::NotHeld);
}

#[test]
fn what_is_done_stays_whatever_happens_to_the_key() {
    let (record, _) = after_tick(7, 0);
    let mut unreadable = record.clone();
    unreadable.done = LastDone::Unreadable;
    for record in [record, unreadable] {
        let lease = LeaseId::random();
        let mut now = 0;
        let mut at_next = || {
            now += 1;
            at(now)
        };
        let key = record.key.clone();
        let held = put(acquire(Some(&record), &ask(lease).shared(), at_next()).write);
        let request = RenewRequest::new(key.clone(), lease, TTL);
        let renewed = put(renew(Some(&held), &request, at_next()).write);
        let request = ConvertRequest::upgrade(key.clone(), lease);
        let upgraded = put(convert(Some(&renewed), &request, at_next()).write);
        let request = ConvertRequest::downgrade(key.clone(), lease);
        let downgraded = put(convert(Some(&upgraded), &request, at_next()).write);
        let request = ReleaseRequest::new(key.clone(), lease);
        let held_on = request.clone().min_hold(TTL, LeaseId::random());
        let held_on = put(release(Some(&downgraded), &held_on, at_next()).write);
        let released = put(release(Some(&downgraded), &request, at_next()).write);
        let evicted = put(evict(Some(&downgraded), at_next()).write);
        let next = granted(LeaseId::random(), Some(&evicted), 100);
        let took_over = granted(LeaseId::random(), Some(&next), 50_000);
        for left in [
            held, renewed, upgraded, downgraded, held_on, released, evicted, next, took_over,
        ] {
            assert_eq!(left.done, record.done, "{left:?}");
        }
    }
}

#[test]
fn a_clean_up_waits_until_what_is_done_may_be_forgotten() {
    let (record, _) = after_tick(7, 0);
    let is_removed = |record: &LockRecord, retention, now| {
        let decision = remove_expired(Some(record), retention, at(now));
        assert_eq!(decision.write == Write::Remove, decision.answer);
        decision.answer
    };
    let day = Duration::from_secs(86_400);
    assert!(!is_removed(&record, Duration::ZERO, 59_999));
    assert!(is_removed(&record, Duration::ZERO, 60_000));
    assert!(!is_removed(&record, day, 86_399_999));
    assert!(is_removed(&record, day, 86_401_000));
    // A holder keeps the document as well.
    let held = granted(LeaseId::random(), Some(&record), 55_000);
    assert!(!is_removed(&held, Duration::ZERO, 64_999));
    assert!(is_removed(&held, Duration::ZERO, 65_000));

    let lease = LeaseId::random();
    let held = put(acquire(None, &ask_for(lease, 7), at(0)).write);
    let request = ReleaseRequest::new(held.key.clone(), lease);
    let request = request.done(Tick::counter(7), Duration::MAX);
    let forever = put(release(Some(&held), &request, at(0)).write);
    let mut unreadable = record;
    unreadable.done = LastDone::Unreadable;
    for record in [forever, unreadable] {
        for retention in [Duration::ZERO, day] {
            assert!(!is_removed(&record, retention, 8_000_000_000_000));
        }
    }
}

#[test]
fn leases_that_share_a_key_do_not_undo_a_later_tick() {
    let [one, two] = [(); 2].map(|()| LeaseId::random());
    let held = put(acquire(None, &ask_for(one, 1).shared(), at(0)).write);
    let held = put(acquire(Some(&held), &ask_for(two, 2).shared(), at(1)).write);
    let later = put(complete(&held, two, 2, 2).write);
    let older = complete(&later, one, 1, 3);
    assert_eq!(
        (older.write, older.answer),
        (Write::Keep, ReleaseAnswer::NotHeld)
    );
    assert_eq!(last(&later).tick, Tick::counter(2));
}

#[test]
fn a_later_tick_does_not_shorten_what_an_earlier_one_was_promised() {
    let (record, _) = after_tick(7, 1_000);
    let lease = LeaseId::random();
    let held = put(acquire(Some(&record), &ask_for(lease, 8), at(2_000)).write);
    let request = ReleaseRequest::new(held.key.clone(), lease);
    let request = request.done(Tick::counter(8), Duration::from_millis(1));
    let later = put(release(Some(&held), &request, at(3_000)).write);
    let (before, now) = (last(&record), last(&later));
    assert_eq!((now.tick, now.until), (Tick::counter(8), before.until));
}
