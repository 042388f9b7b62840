use chrono::{DateTime, Utc};

use super::*;
use crate::model::{Fence, Key, LeaseId};

fn millis(number: u64) -> Duration {
    Duration::from_millis(number)
}

fn now() -> DateTime<Utc> {
    "2026-01-01T12:00:00Z".parse().unwrap()
}

/// A refusal of a key that has been held for a time.
fn held(time: u64) -> Held {
    let until = now() + Duration::from_secs(600);
    let (lease, fence) = (LeaseId::random(), Fence::new(7));
    let holder = Holder::exclusive(lease, "they".into(), fence, now() - millis(time), until);
    Held::new(Key::new("key").unwrap(), vec![holder], now())
}

/// A refusal of a free key, which is kept for others for a time.
fn free(binds_for: u64) -> Held {
    let free = Held::new(Key::new("key").unwrap(), Vec::new(), now());
    free.behind(1, millis(binds_for))
}

fn ahead(processes: usize) -> Ahead {
    Ahead {
        processes,
        turns: processes,
        is_in_turn: true,
    }
}

fn pauses(pace: &Pace, held: &Held) -> [u128; 6] {
    [0, 1, 2, 5, 20, 99].map(|processes| pace.pause(held, ahead(processes), false, 1.0).as_millis())
}

/// The pace of a queue in which each turn took a given time.
fn seen(each: &[u64]) -> Pace {
    let (mut pace, held) = (Pace::default(), held(1));
    let mut time = Instant::now();
    for (number, each) in each.iter().enumerate() {
        pace.see(&held, 100 - 4 * number, Duration::ZERO, time);
        time += 4 * millis(*each);
    }
    pace.see(&held, 100 - 4 * each.len(), Duration::ZERO, time);
    pace
}

#[test]
fn who_is_further_behind_asks_less_often_and_all_ask_in_time() {
    let pace = Pace::default();
    assert_eq!(pauses(&pace, &held(3)), [1, 2, 10, 25, 100, 495]);
    let long = held(60_000);
    assert_eq!(
        pauses(&pace, &long),
        [1_000, 1_000, 1_000, 2_500, 3_000, 3_000]
    );
    // `docs/guarantees.md` names these bounds.
    let between = [3, 4, 6].map(|processes| pace.pause(&long, ahead(processes), false, 1.0));
    assert_eq!(between, [millis(1_500), millis(2_000), millis(3_000)]);
    assert_eq!(
        pace.pause(&long, ahead(MAX_PLACES), false, 1.0),
        WITHOUT_PLACE
    );
    assert_eq!(
        pace.pause(&long, ahead(MAX_PLACES), false, 0.0),
        WITHOUT_PLACE.mul_f64(0.75)
    );
}

#[test]
fn the_first_asks_no_more_than_once_a_second_behind_a_long_job() {
    for reports_freed in [false, true] {
        let pause = |time, processes| {
            Pace::default().pause(&held(time), ahead(processes), reports_freed, 0.0)
        };
        assert_eq!(pause(8_000, 0), retry::LONGEST_PAUSE);
        assert_eq!(pause(60_000, 0), retry::LONGEST_PAUSE);
        assert_eq!(pause(60_000, 1), retry::LONGEST_PAUSE * 3 / 4);
        // Many processes that compete for the key have nobody ahead, and need the jitter.
        let beside = Pace::default().pause(&held(60_000), Ahead::NOBODY, reports_freed, 0.0);
        assert_eq!(beside, retry::LONGEST_PAUSE * 3 / 4);
    }
}

#[test]
fn who_is_woken_by_reports_asks_less_often_but_never_later_than_in_time() {
    let told = |held: &Held| {
        let pause = |processes| Pace::default().pause(held, ahead(processes), true, 1.0);
        [0, 1, 2, 5, 20, 99].map(|processes| pause(processes).as_millis())
    };
    assert_eq!(told(&held(3)), [50, 100, 150, 300, 1_050, 3_000]);
    let long = held(60_000);
    assert_eq!(told(&long), pauses(&Pace::default(), &long));
    // The places of the processes ahead, for which a free key is kept, expire before any of them asks.
    assert_eq!(told(&free(7)), [50, 7, 7, 7, 7, 7]);
}

#[test]
fn the_pauses_go_by_the_speed_of_the_queue_within_bounds() {
    let at = |each: &[u64]| pauses(&seen(each), &held(1))[3];
    assert_eq!([at(&[1]), at(&[10]), at(&[500])], [10, 35, 50]);
    // The pace becomes faster at once, but slower only by degrees.
    assert_eq!([at(&[10, 4]), at(&[4, 12])], [14, 17]);
}

/// The first process was late, and the processes behind it see a slow queue.
#[test]
fn a_delay_brings_no_longer_one() {
    let slow = seen(&[9_000]);
    for time in [20, 300, 1_000] {
        for processes in 0..9 {
            let pause = slow.pause(&held(time), ahead(processes), false, 1.0);
            let bound = millis(time).max(MOST * processes as u32);
            assert!(pause <= bound, "{time} {processes}: {pause:?}");
        }
    }
    assert_eq!(pauses(&slow, &free(4_000)), [1, 5, 10, 25, 100, 495]);
    assert_eq!(pauses(&slow, &free(7)), [1, 5, 7, 7, 7, 7]);
}

/// Readers behind a few readers send a request as early as the first of them, but not more often while a long job
/// holds the key.
#[test]
fn a_few_who_share_a_turn_ask_with_the_first() {
    let readers = |processes| Ahead {
        processes,
        turns: 0,
        is_in_turn: true,
    };
    let pause = |held: &Held, ahead| Pace::default().pause(held, ahead, false, 1.0);
    for time in [3, 100, 1_000] {
        let held = held(time);
        assert_eq!(pause(&held, readers(SHARING - 1)), pause(&held, ahead(0)));
        assert!(pause(&held, readers(SHARING)) > pause(&held, ahead(0)));
    }
    let long = held(60_000);
    assert_eq!(pause(&long, readers(20)), pause(&long, ahead(20)));
}

/// The requests in a second of processes that all wait for the same turn, and of as many that wait for one each.
#[test]
fn many_who_share_a_turn_send_little_more_requests_than_others() {
    for reports_freed in [false, true] {
        let keys = [10, 100, 1_000, 10_000].map(|time| (time, held(time)));
        // The process ahead, for which a free key is kept, may be gone.
        for (time, held) in keys.into_iter().chain([(0, free(4_000))]) {
            let rate = |ahead| {
                let pause = Pace::default().pause(&held, ahead, reports_freed, 1.0);
                1.0 / pause.as_secs_f64()
            };
            let readers = |processes| {
                rate(Ahead {
                    processes,
                    turns: 0,
                    is_in_turn: true,
                })
            };
            let shared: f64 = (0..100).map(readers).sum();
            let others: f64 = (0..100).map(|processes| rate(ahead(processes))).sum();
            assert!(
                shared < others * 4.0,
                "{time} {reports_freed}: {shared} {others}"
            );
        }
    }
}

/// Both apply to a held key and to a free one.
#[test]
fn who_is_behind_pauses_for_longer_if_the_server_takes_long() {
    let pauses_of = |each: &[u64], took: [u64; 2], held: &Held| {
        let mut pace = seen(each);
        pace.took = took.map(millis);
        pauses(&pace, held)
    };
    let pauses = |took, held: &Held| pauses_of(&[2_000], took, held);
    for held in [held(3), free(4_000)] {
        let quick = pauses([0, 0], &held);
        assert_eq!(pauses([2, 2], &held), quick);
        assert_eq!(pauses([1_000, 2], &held), quick, "a single answer");
        assert_eq!(pauses([2, 1_000], &held), quick, "a single answer");
        let slow = pauses([40, 60], &held);
        assert_eq!(slow[1..], [20, 40, 100, 400, 1_980]);
        assert_eq!(slow[0], quick[0], "the first asks as often");
        assert_eq!(
            pauses([9_000, 9_000], &held)[2..],
            [1_000, 2_500, 3_000, 3_000]
        );
        // Others have quick answers: this process must not miss its turn.
        let slow_alone = pauses_of(&[20], [1_000, 1_000], &held);
        assert_eq!(slow_alone[1..], [14, 28, 70, 280, 1_386]);
    }
}

#[test]
fn who_is_near_needs_reports_of_a_key_that_is_held_for_long() {
    let needs = |held: &Held, turns| {
        let processes = turns + 5;
        let ahead = Ahead {
            processes,
            turns,
            is_in_turn: true,
        };
        [false, true].map(|permits| needs_reports(held, ahead, Duration::ZERO, permits))
    };
    let at = |held: &Held| [0, 1, 9, 10, 94, 95].map(|turns| needs(held, turns)[0]);
    let near = [true, true, true, false, false, false];
    assert_eq!(at(&held(249)), [false; 6]);
    assert_eq!(at(&held(250)), near);
    assert_eq!(at(&held(3_600_000)), near);
    assert_eq!(at(&free(4_000)), [false; 6]);
    // If all holders of permits leave, as many processes come next.
    let by = |mode, permits: [i64; 2]| {
        let held = held(250);
        let holders = permits.map(|permits| {
            let mut holder = held.holders()[0].clone();
            (holder.mode, holder.permits) = (mode, permits);
            holder
        });
        Held::new(Key::new("key").unwrap(), holders.to_vec(), now())
    };
    let permits = |held: Held| [9, 10, 49, 50, 94, 95].map(|turns| needs(&held, turns)[1]);
    assert_eq!(
        permits(by(Mode::Permits, [1, 1])),
        [true, false, false, false, false, false]
    );
    assert_eq!(
        permits(by(Mode::Permits, [49, 1])),
        [true, true, true, false, false, false]
    );
    // The last one has no place.
    assert_eq!(
        permits(by(Mode::Exclusive, [1, 1])),
        [true, true, true, true, true, false]
    );
}

#[test]
fn who_sleeps_until_a_key_has_been_held_for_long_needs_reports() {
    let needs = |held: &Held, pause| needs_reports(held, ahead(0), millis(pause), false);
    assert_eq!(
        [99, 100, 1_000].map(|pause| needs(&held(150), pause)),
        [false, true, true]
    );
    assert_eq!(
        [240, 250].map(|pause| needs(&held(0), pause)),
        [false, true]
    );
    assert!(!needs(&free(4_000), 1_000));
}

#[test]
fn the_first_asks_soon_while_holders_leave() {
    let mut pace = Pace::default();
    for (readers, mode, first) in [
        (41, Mode::Shared, 1_000),
        (40, Mode::Shared, 10),
        (2, Mode::Shared, 1),
        (2, Mode::Shared, 1_000),
        (3, Mode::Permits, 1_000),
        (2, Mode::Permits, 1),
        (1, Mode::Exclusive, 1_000),
    ] {
        let mut holder = held(60_000).holders()[0].clone();
        holder.mode = mode;
        let holders = vec![holder; readers];
        let held = Held::new(Key::new("key").unwrap(), holders, now());
        pace.see(&held, 0, Duration::ZERO, Instant::now());
        assert_eq!(pauses(&pace, &held)[..2], [first, 1_000], "{readers}");
    }
}

#[test]
fn the_first_asks_when_a_holder_expires() {
    let (lease, fence) = (LeaseId::random(), Fence::new(7));
    let [since, until] = [now() - millis(60_000), now() + millis(30)];
    let holder = Holder::exclusive(lease, "they".into(), fence, since, until);
    let held = Held::new(Key::new("key").unwrap(), vec![holder], now());
    assert_eq!(pauses(&Pace::default(), &held)[..2], [30, 1_000]);
}
