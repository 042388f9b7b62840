//! Tests of the place of a process, without a store and without waiting.

use chrono::{DateTime, Utc};

use super::*;
use crate::model::{Fence, Holder, Key, LeaseId, Mode};

/// A refusal of a key that has been held for a time, with some processes ahead.
fn held(millis: u64, ahead: usize) -> Held {
    let now: DateTime<Utc> = "2026-01-01T12:00:00Z".parse().unwrap();
    let since = now - Duration::from_millis(millis);
    let until = now + Duration::from_secs(600);
    let (lease, fence) = (LeaseId::random(), Fence::new(7));
    let holder = Holder::exclusive(lease, "they".into(), fence, since, until);
    Held::new(Key::new("key").unwrap(), vec![holder], now).behind(ahead, Duration::ZERO)
}

fn refusal(held: &Held, processes: usize, otherwise: Duration) -> Refusal<'_> {
    Refusal {
        held,
        ahead: Ahead {
            processes,
            turns: processes,
            is_in_turn: true,
        },
        otherwise,
        reports_freed: false,
        took: Duration::ZERO,
    }
}

fn counts_for(place: &mut OwnPlace) -> Duration {
    place.plan_request(0).counts_for
}

#[test]
fn a_place_counts_until_the_next_request_also_if_it_is_not_written_again() {
    let otherwise = Duration::from_millis(10);
    for chance in [0.0, 0.5, 1.0] {
        let mut place = OwnPlace::new();
        for (millis, ahead) in [
            (1, 0),
            (1, 9),
            (9_000, 9),
            (60_000, 99),
            (5, 3),
            (60_000, 0),
        ] {
            for took in [0, 0, 3_000, 3_000, 20] {
                let took = Duration::from_millis(took);
                let least = long_enough(counts_for(&mut place));
                let held = held(millis, ahead);
                let refusal = Refusal {
                    took,
                    ..refusal(&held, ahead, otherwise)
                };
                let pause = place.pause(refusal, Instant::now(), chance);
                let is_in_time = pause + took + SLACK <= least;
                assert!(
                    is_in_time || pause.is_zero(),
                    "{millis} {ahead}: {pause:?} of {least:?}"
                );
                let next = pause + took + SLACK;
                assert!(next <= long_enough(counts_for(&mut place)));
                assert!(counts_for(&mut place) <= MAX_PLACE_TIME);
            }
        }
    }
}

#[test]
fn who_overtakes_asks_as_often_as_the_first_one() {
    for millis in [5, 60_000] {
        let pause = |behind| {
            let held = held(millis, 99);
            let mut place = OwnPlace::new();
            let refusal = refusal(&held, behind, Duration::from_secs(1));
            place.pause(refusal, Instant::now(), 1.0)
        };
        assert!(pause(0) <= pause(1), "{millis}");
    }
}

#[test]
fn places_ahead_are_passed_if_they_had_the_free_key_for_their_time() {
    let start = Instant::now();
    let free = |ahead, binds_for| {
        let now = "2026-01-01T12:00:00Z".parse().unwrap();
        Held::new(Key::new("key").unwrap(), Vec::new(), now).behind(ahead, binds_for)
    };
    let (first, then) = (Duration::from_secs(2), Duration::from_secs(1));
    for (millis, passed) in [(1_500, false), (2_000, true)] {
        let granted = start + Duration::from_millis(millis);
        let mut place = OwnPlace::new();
        let taken = PlaceNews::Taken { ahead: 3 };
        assert_eq!(place.refused(&held(5, 3), start), Some(taken));
        assert_eq!(place.refused(&free(3, first), start), None);
        assert_eq!(place.refused(&free(1, then), start + then), None);
        let ended = place.granted(true, granted).unwrap();
        let time = Duration::from_millis(millis);
        assert_eq!((ended.ahead, ended.waited), (3, time));
        assert_eq!(ended.passed, passed.then_some((3, time)));
        // One of the processes ahead has acquired the key after all.
        place.refused(&free(3, first), start);
        place.refused(&held(5, 2), granted);
        assert_eq!(place.granted(true, granted).unwrap().passed, None);
    }
}

#[test]
fn the_tasks_that_waited_at_the_first_grant_are_let_in_by_one_place() {
    let start = Instant::now();
    let mut place = OwnPlace::new();
    place.plan_request(0);
    place.refused(&held(5, 0), start);
    // Two tasks wait behind the one that sends the request, and later others come all the time.
    for (beside, is_kept) in [(2, true), (9, true), (9, false), (9, true)] {
        assert_eq!(place.plan_request(beside).keeps_place, is_kept);
        // Only a grant counts.
        assert_eq!(place.plan_request(beside).keeps_place, is_kept);
        place.granted(true, start);
        assert_eq!(place.may_be_taken(), is_kept);
        place.set_taken();
    }
    // The tasks behind it have left meanwhile.
    assert!(!place.plan_request(0).keeps_place);
}

/// A task may send its last request while others are let in, and be granted the key after them.
#[test]
fn no_more_tasks_are_let_in_than_waited_whatever_the_order_of_the_answers() {
    let start = Instant::now();
    let mut place = OwnPlace::new();
    place.refused(&held(5, 0), start);
    place.plan_request(5);
    place.granted(true, start);
    place.plan_request(4);
    for _ in 0..3 {
        assert!(place.plan_request_to_be_let_in().keeps_place);
        place.let_one_in();
    }
    place.granted(true, start);
    assert_eq!(place.still_let_in(), 1);
    assert!(!place.plan_request(9).keeps_place);
}

/// The last task asks again after a request that was to keep the place, and the grant may be the answer to that one.
#[test]
fn a_place_that_an_earlier_request_may_have_kept_is_given_up_by_the_last_task() {
    for (ends, is_left) in [(true, false), (false, true)] {
        let start = Instant::now();
        let mut place = OwnPlace::new();
        place.refused(&held(5, 0), start);
        assert!(place.plan_request(1).keeps_place);
        assert!(!place.plan_request(0).keeps_place);
        place.granted(ends, start);
        if is_left {
            assert!(
                !place.plan_request(9).keeps_place,
                "it is kept for one task"
            );
        }
        assert_eq!(place.leave().is_some(), is_left);
    }
}

#[test]
fn a_place_is_due_after_a_long_pause() {
    let otherwise = Duration::from_millis(10);
    let mut place = OwnPlace::new();
    let mut known = |millis| {
        let held = held(millis, 1);
        place.refused(&held, Instant::now());
        // A pause may be cut short if the place would expire before its end.
        for _ in 0..2 {
            place.pause(refusal(&held, 1, otherwise), Instant::now(), 1.0);
        }
        place.plan_request(0).known
    };
    assert_eq!(known(5), KnownPlace::Taken);
    assert_eq!(known(60_000), KnownPlace::Due);
    assert_eq!(OwnPlace::new().plan_request(0).known, KnownPlace::None);
}

#[test]
fn a_full_queue_has_no_place() {
    let mut place = OwnPlace::new();
    for news in [Some(PlaceNews::NoRoom), None] {
        let full = held(5, MAX_PLACES);
        assert_eq!(place.refused(&full, Instant::now()), news);
    }
    assert_eq!(place.granted(true, Instant::now()), None);
    assert_eq!(place.leave(), None);
}

#[test]
fn the_only_process_that_waits_asks_soon_while_readers_leave() {
    let otherwise = Duration::from_millis(100);
    for (reports_freed, then) in [(false, Duration::from_millis(1)), (true, otherwise)] {
        let mut place = OwnPlace::new();
        for (readers, wanted) in [(2, otherwise), (1, then), (1, otherwise)] {
            let mut reader = held(60_000, 0).holders()[0].clone();
            reader.mode = Mode::Shared;
            let holders = vec![reader; readers];
            let now = "2026-01-01T12:00:00Z".parse().unwrap();
            let held = Held::new(Key::new("key").unwrap(), holders, now);
            let refusal = Refusal {
                reports_freed,
                ..refusal(&held, 0, otherwise)
            };
            assert_eq!(place.pause(refusal, Instant::now(), 1.0), wanted);
        }
    }
}

#[test]
fn a_process_that_competes_with_no_other_asks_as_its_queue_says() {
    let mut place = OwnPlace::new();
    let otherwise = Duration::from_millis(17);
    let mut pause = |behind| {
        let held = held(60_000, behind);
        place.pause(refusal(&held, behind, otherwise), Instant::now(), 1.0)
    };
    assert_eq!(pause(0), otherwise);
    pause(1);
    assert_ne!(pause(0), otherwise);
}

/// A process that was without a place may be killed as soon as it has one.
#[test]
fn a_place_does_not_count_for_the_pause_without_one() {
    let mut place = OwnPlace::new();
    let held = held(60_000, MAX_PLACES);
    let without = refusal(&held, MAX_PLACES, Duration::ZERO);
    for _ in 0..3 {
        let pause = place.pause(without, Instant::now(), 1.0);
        assert_eq!(pause, Duration::from_secs(30));
        assert_eq!(counts_for(&mut place), Duration::from_millis(3_500));
    }
}
