//! Tests of how many permits are granted, at times that the tests choose.

use fastrand::Rng;

use super::*;
use crate::{
    model::{Key, MAX_WINDOW, PermitId},
    rules::Write,
};

const SECOND: Duration = Duration::from_secs(1);
/// The start of a window of a second, of a minute and of an hour.
const START: i64 = 1_700_000_000_000 - 1_700_000_000_000 % 3_600_000;

fn fixed(limit: u32, window: Duration) -> Quota {
    Quota::fixed(limit, window).unwrap()
}

fn smooth(limit: u32, window: Duration, burst: u32) -> Quota {
    fixed(limit, window).smooth(burst).unwrap()
}

fn ask(quota: Quota) -> PermitRequest {
    PermitRequest::new(Key::new("k").unwrap(), PermitId::random(), quota, 1)
}

/// A limiter: its document, to which the rule is applied.
#[derive(Default)]
struct Limited(Option<LimiterRecord>);

impl Limited {
    /// Applies the rule at this many milliseconds after [`START`].
    fn ask(&mut self, request: &PermitRequest, at: i64) -> PermitAnswer {
        let decision = permit(self.0.as_ref(), request, time(START + at));
        let granted = matches!(decision.answer, PermitAnswer::Granted { .. });
        match decision.write {
            Write::Keep => {}
            Write::Put(record) => {
                assert!(granted, "a refusal was written");
                self.0 = Some(record);
            }
            Write::Remove => panic!("nothing is removed"),
        }
        decision.answer
    }

    /// Asks for permits, and returns how many were granted.
    fn take(&mut self, quota: Quota, permits: u32, at: i64) -> u32 {
        let mut request = ask(quota);
        request.permits = permits;
        match self.ask(&request, at) {
            PermitAnswer::Granted { permits, .. } => permits,
            PermitAnswer::Full { .. } => 0,
        }
    }

    fn wait(&mut self, quota: Quota, at: i64) -> i64 {
        match self.ask(&ask(quota), at) {
            PermitAnswer::Full { retry_in, .. } => retry_in.as_millis() as i64,
            granted => panic!("{granted:?}"),
        }
    }
}

#[test]
fn a_window_has_its_permits_and_the_next_one_has_them_again() {
    let (mut limited, quota) = (Limited::default(), fixed(2, SECOND));
    assert_eq!([0, 1, 2].map(|at| limited.take(quota, 1, at)), [1, 1, 0]);
    assert_eq!(limited.wait(quota, 400), 600);
    assert_eq!(limited.take(quota, 1, 999), 0);
    assert_eq!(
        [1_000, 1_500, 1_999].map(|at| limited.take(quota, 1, at)),
        [1, 1, 0]
    );
}

fn left_of(answer: &PermitAnswer) -> PermitsLeft {
    match answer {
        PermitAnswer::Granted { left, .. } | PermitAnswer::Full { left, .. } => *left,
    }
}

#[test]
fn an_answer_says_what_is_left_and_when_all_is_back() {
    let left = |limited: &mut Limited, quota, permits, at| {
        let mut request = ask(quota);
        request.permits = permits;
        let PermitsLeft {
            limit,
            remaining,
            reset_in,
        } = left_of(&limited.ask(&request, at));
        (limit, remaining, reset_in.as_millis())
    };
    let (mut limited, quota) = (Limited::default(), fixed(10, SECOND));
    assert_eq!(left(&mut limited, quota, 3, 100), (10, 7, 900));
    // A refusal takes nothing.
    assert_eq!(left(&mut limited, quota, 8, 200), (10, 7, 800));
    assert_eq!(left(&mut limited, quota, 7, 300), (10, 0, 700));
    // With a lower limit there are fewer than none.
    assert_eq!(left(&mut limited, fixed(5, SECOND), 1, 400), (5, 0, 600));
    assert_eq!(left(&mut limited, quota, 1, 1_000), (10, 9, 1_000));

    let (mut limited, quota) = (Limited::default(), fixed(10, SECOND).smooth(3).unwrap());
    assert_eq!(left(&mut limited, quota, 2, 0), (3, 1, 200));
    assert_eq!(left(&mut limited, quota, 2, 50), (3, 1, 150));
    assert_eq!(left(&mut limited, quota, 2, 100), (3, 0, 300));
    assert_eq!(left(&mut limited, quota, 1, 1_000), (3, 2, 100));
}

#[test]
fn a_refusal_that_is_read_in_the_next_window_says_that_nothing_is_left() {
    let (mut limited, quota) = (Limited::default(), fixed(2, SECOND));
    assert_eq!(limited.take(quota, 2, 900), 2);
    let record = limited.0.unwrap();
    let millisecond = Duration::from_millis(1);
    let left = PermitsLeft {
        limit: 2,
        remaining: 0,
        reset_in: millisecond,
    };
    let answer = answer_permit(&record, &ask(quota), time(START + 1_000));
    let retry_in = millisecond;
    assert_eq!(answer, PermitAnswer::Full { retry_in, left });
}

#[test]
fn many_are_granted_in_whole_numbers_of_what_belongs_together() {
    let (mut limited, quota) = (Limited::default(), fixed(10, SECOND));
    let mut request = ask(quota).up_to(7);
    request.permits = 3;
    let answer = limited.ask(&request, 0);
    let left = Duration::from_secs(1);
    assert!(
        matches!(answer, PermitAnswer::Granted { permits: 9, retry_in, .. } if retry_in == left),
        "{answer:?}"
    );
    assert_eq!(limited.take(quota, 2, 0), 0);
    assert_eq!(limited.take(quota, 1, 0), 1);
}

#[test]
fn a_repeated_request_is_granted_once_and_only_in_its_window() {
    let (mut limited, quota) = (Limited::default(), fixed(2, SECOND));
    let request = ask(quota);
    let first = limited.ask(&request, 0);
    let repeated = limited.ask(&request, 900);
    assert_eq!(left_of(&repeated).reset_in, Duration::from_millis(100));
    let has_granted = |answer: &PermitAnswer| match answer {
        PermitAnswer::Granted {
            permits,
            granted_at,
            ..
        } => Some((*permits, *granted_at)),
        PermitAnswer::Full { .. } => None,
    };
    assert_eq!(has_granted(&repeated), has_granted(&first));
    assert_eq!(limited.take(quota, 1, 950), 1);
    assert_eq!(limited.take(quota, 1, 960), 0);
    // If the window of the first grant is over, the repeated request gets a new grant.
    let late = ask(quota);
    limited.ask(&late, 1_100);
    limited.ask(&late, 2_100);
    assert_eq!(limited.take(quota, 2, 2_200), 0);
    assert_eq!(limited.take(quota, 1, 2_200), 1);
    assert!(matches!(
        limited.ask(&late, 2_300),
        PermitAnswer::Full { .. }
    ));
}

#[test]
fn smooth_permits_come_back_one_after_the_other() {
    let (mut limited, quota) = (Limited::default(), smooth(10, SECOND, 1));
    assert_eq!(limited.take(quota, 1, 0), 1);
    assert_eq!(limited.wait(quota, 30), 70);
    assert_eq!(limited.take(quota, 1, 99), 0);
    assert_eq!(limited.take(quota, 1, 100), 1);
    // Permits that are not taken are lost: with a burst of 1, one permit is there after a pause.
    assert_eq!([5_000, 5_001].map(|at| limited.take(quota, 1, at)), [1, 0]);
}

#[test]
fn a_burst_is_there_after_a_pause() {
    let (mut limited, quota) = (Limited::default(), smooth(10, SECOND, 3));
    assert_eq!(limited.take(quota, 3, 0), 3);
    assert_eq!(limited.wait(quota, 0), 100);
    assert_eq!(limited.take(quota, 2, 199), 0);
    assert_eq!(limited.take(quota, 2, 200), 2);
    assert_eq!(
        [300, 300, 600].map(|at| limited.take(quota, 1, at)),
        [1, 0, 1]
    );
}

/// Checks each span as long as the window, whenever it begins.
#[test]
fn a_smooth_limit_holds_over_every_span() {
    for burst in [1, 2, 5, 7] {
        let (mut limited, quota) = (Limited::default(), smooth(7, SECOND, burst));
        let times = (0..10_000).filter(|at| limited.take(quota, 1, *at) == 1);
        let granted: Vec<i64> = times.collect();
        let most = granted
            .iter()
            .map(|from| {
                granted
                    .iter()
                    .filter(move |at| (*from..from + 1_000).contains(at))
            })
            .map(Iterator::count)
            .max();
        assert!(most <= Some(7 + burst as usize - 1), "{burst}: {most:?}");
        assert!(
            (70..=70 + burst as usize).contains(&granted.len()),
            "{burst}"
        );
    }
}

#[test]
fn another_limit_counts_what_is_taken() {
    let mut limited = Limited::default();
    assert_eq!(limited.take(fixed(10, SECOND), 8, 0), 8);
    assert_eq!(limited.take(fixed(5, SECOND), 1, 100), 0);
    assert_eq!(limited.take(fixed(12, SECOND), 5, 100), 0);
    assert_eq!(limited.take(fixed(12, SECOND), 4, 100), 4);
    assert_eq!(limited.take(fixed(5, SECOND), 1, 1_000), 1);
}

/// A new deployment waits for at most a window, whatever the limit of the old deployment was.
#[test]
fn another_limit_or_burst_never_blocks_for_longer_than_a_window() {
    let year = 365 * 24 * 60 * 60 * SECOND;
    for quotas in [
        vec![fixed(10, SECOND), fixed(1, SECOND), fixed(u32::MAX, SECOND)],
        vec![
            smooth(10, SECOND, 1),
            smooth(10, SECOND, 10),
            smooth(2, SECOND, 1),
        ],
        vec![
            smooth(10, year, 1),
            smooth(10, year, 10),
            smooth(1, year, 1),
        ],
    ] {
        for (before, after) in quotas
            .iter()
            .flat_map(|it| quotas.iter().map(move |to| (*it, *to)))
        {
            let mut limited = Limited::default();
            let all = before.most_at_once();
            assert_eq!(limited.take(before, all, 500), all);
            let at = match limited.ask(&ask(after), 500) {
                PermitAnswer::Granted { .. } => continue,
                PermitAnswer::Full { retry_in, .. } => {
                    assert!(retry_in <= after.window(), "{before:?}, {after:?}");
                    500 + retry_in.as_millis() as i64
                }
            };
            assert_eq!(limited.take(after, 1, at - 1), 0, "{before:?}, {after:?}");
            assert_eq!(limited.take(after, 1, at), 1, "{before:?}, {after:?}");
        }
    }
}

/// In a rolling deployment the permits of both deployments count for each of the two limits.
#[test]
fn of_two_limits_side_by_side_the_greater_holds_for_both() {
    for (one, other, most) in [
        (fixed(10, SECOND), fixed(5, SECOND), 10),
        (smooth(10, SECOND, 1), smooth(5, SECOND, 1), 10),
        (smooth(10, SECOND, 4), smooth(5, SECOND, 2), 14),
        (smooth(10, SECOND, 10), smooth(10, SECOND, 1), 20),
        (smooth(10, SECOND, 5), smooth(10, SECOND, 3), 15),
        (smooth(5, SECOND, 5), smooth(10, SECOND, 1), 15),
    ] {
        let mut limited = Limited::default();
        let granted: u32 = (0..10_000)
            .map(|at| limited.take(other, 1, at) + limited.take(one, 1, at))
            .sum();
        assert!(granted <= 9 * 10 + most, "{granted}");
    }
}

#[test]
fn a_clock_that_goes_back_stands_still_or_is_believed() {
    let quota = fixed(2, SECOND);
    let mut limited = Limited::default();
    assert_eq!(limited.take(quota, 2, 5_500), 2);
    // The clock steps back a little: the window of the newest grant goes on.
    assert_eq!(limited.wait(quota, 400), 5_600);
    assert_eq!(limited.take(quota, 1, 6_000), 1);
    // The clock steps back far, but within the same window: the permits are still taken.
    let (mut limited, hour) = (Limited::default(), fixed(2, 3_600 * SECOND));
    assert_eq!(limited.take(hour, 2, 1_000_000), 2);
    assert_eq!(limited.wait(hour, 0), 3_600_000);
    // The clock steps back farther: the clock of the newest grant was wrong.
    let mut limited = Limited::default();
    assert_eq!(limited.take(quota, 2, 6_000), 2);
    assert_eq!(limited.take(quota, 2, -20_000), 2);
    assert_eq!(limited.take(quota, 1, -19_999), 0);
}

#[test]
fn what_can_never_be_granted_is_not_written() {
    for quota in [fixed(2, SECOND), smooth(2, SECOND, 1)] {
        let mut limited = Limited::default();
        assert_eq!(limited.take(quota, 3, 0), 0);
        assert_eq!(limited.0, None);
    }
}

#[test]
fn a_document_is_not_over_before_what_it_says_is() {
    for quota in [fixed(3, SECOND), smooth(u32::MAX, SECOND / 1_000, u32::MAX)] {
        let (mut limited, all) = (Limited::default(), quota.most_at_once());
        limited.take(quota, all, 999);
        let mut request = ask(quota);
        request.permits = all;
        let PermitAnswer::Full { retry_in, .. } = limited.ask(&request, 999) else {
            panic!("nothing is left");
        };
        let record = limited.0.unwrap();
        let earned_back = time(START + 999) + retry_in;
        assert!(!is_over(
            &record,
            Duration::ZERO,
            earned_back - SECOND / 1_000
        ));
        assert!(is_over(&record, Duration::ZERO, earned_back + 2 * SECOND));
    }
}

impl Limited {
    /// Gives permits back that were granted at the first time, at the second one.
    fn give_back(&mut self, quota: Quota, permits: u32, granted_at: i64, at: i64) {
        let key = Key::new("k").unwrap();
        let request = GiveBackRequest::new(key, quota, permits, time(START + granted_at));
        match give_back(self.0.as_ref(), &request, time(START + at)).write {
            Write::Keep => {}
            Write::Put(record) => self.0 = Some(record),
            Write::Remove => panic!("nothing is removed"),
        }
    }
}

#[test]
fn permits_of_a_window_can_be_given_back_until_it_ends() {
    let (mut limited, quota) = (Limited::default(), fixed(4, SECOND));
    assert_eq!(limited.take(quota, 4, 100), 4);
    limited.give_back(quota, 3, 100, 900);
    assert_eq!(limited.take(quota, 4, 900), 0);
    assert_eq!(limited.take(quota, 3, 900), 3);
    assert_eq!(limited.take(quota, 4, 1_000), 4);
    // These were of the window before.
    limited.give_back(quota, 4, 900, 1_100);
    assert_eq!(limited.take(quota, 1, 1_100), 0);
    // The clock was wrong, and the limiter has forgotten what it granted then.
    let hour = fixed(2, 3_600 * SECOND);
    let mut limited = Limited::default();
    assert_eq!(limited.take(hour, 2, 0), 2);
    limited.give_back(hour, 2, 1_000, 1_000);
    assert_eq!(limited.take(hour, 1, 1_000), 0);
}

#[test]
fn smooth_permits_can_be_given_back_while_they_cannot_have_come_back() {
    let (mut limited, quota) = (Limited::default(), smooth(10, SECOND, 4));
    assert_eq!(limited.take(quota, 4, 0), 4);
    limited.give_back(quota, 1, 0, 0);
    assert_eq!(limited.take(quota, 2, 0), 0);
    assert_eq!(limited.take(quota, 1, 0), 1);
    // Of this one 40 ms are worth something, so there is another one 60 ms later. That is when one comes back anyway.
    limited.give_back(quota, 1, 0, 60);
    assert_eq!(limited.take(quota, 1, 59), 0);
    assert_eq!(limited.take(quota, 1, 60), 1);
    assert_eq!(limited.wait(quota, 60), 100);
    limited.give_back(quota, 1, 0, 100);
    assert_eq!(limited.wait(quota, 100), 60);
    // The clock goes back a little, so the limiter counts by the time of the newest grant.
    let mut limited = Limited::default();
    assert_eq!(limited.take(quota, 1, 0) + limited.take(quota, 1, 150), 2);
    limited.give_back(quota, 1, 0, 50);
    assert_eq!(limited.take(quota, 3, 150), 3);
    assert_eq!(limited.wait(quota, 150), 100);
}

/// What is granted and not given back would be granted too if nobody had asked for the rest.
#[test]
fn what_is_given_back_is_granted_once() {
    for seed in 0..2_000 {
        let mut rng = Rng::with_seed(seed);
        let quota = match rng.u32(..4) {
            0 => fixed(rng.u32(1..6), SECOND),
            burst => smooth(rng.u32(3..6), SECOND, burst),
        };
        let (mut limited, mut at, mut kept) = (Limited::default(), 0, Vec::new());
        for _ in 0..60 {
            at += rng.i64(0..400);
            let permits = rng.u32(1..=quota.most_at_once());
            if limited.take(quota, permits, at) > 0 {
                kept.push((at, permits));
            }
            while rng.bool() && !kept.is_empty() {
                let (granted_at, permits) = kept.swap_remove(rng.usize(..kept.len()));
                limited.give_back(quota, permits, granted_at, at);
            }
        }
        kept.sort_unstable();
        let mut others = Limited::default();
        for (at, permits) in kept {
            assert_eq!(
                others.take(quota, permits, at),
                permits,
                "seed {seed}, at {at}"
            );
        }
    }
}

#[test]
fn nothing_overflows() {
    let quotas = [
        fixed(u32::MAX, MAX_WINDOW),
        smooth(u32::MAX, MAX_WINDOW, u32::MAX),
        smooth(1, MAX_WINDOW, 1),
    ];
    for quota in quotas {
        let mut request = ask(quota).up_to(u32::MAX);
        for now in [0, i64::MIN, i64::MAX, START] {
            for stored in [i64::MIN, -1, 0, i64::MAX] {
                let record = LimiterRecord {
                    key: request.key.clone(),
                    granted_at: time(stored),
                    used: stored,
                    last: request.id,
                    granted: stored,
                    over_at: time(stored),
                };
                permit(Some(&record), &request, time(now));
                request.id = PermitId::random();
                permit(Some(&record), &request, time(now));
                is_over(&record, Duration::MAX, time(now));
                for granted_at in [0, i64::MIN, i64::MAX, START] {
                    let key = request.key.clone();
                    let back = GiveBackRequest::new(key, quota, u32::MAX, time(granted_at));
                    give_back(Some(&record), &back, time(now));
                }
            }
        }
    }
}
