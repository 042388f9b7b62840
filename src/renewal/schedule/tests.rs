//! Tests of which leases are renewed together and when, on a store that answers at once, never, or with an error.

use super::{batches::*, *};
use crate::{lease_state::timing::response_timeout, messages::MAX_RENEWALS};

const TTL: Duration = Duration::from_secs(30);
const SECOND: Duration = Duration::from_secs(1);
const CHANCE: f64 = 0.0;

/// A schedule for a store that has answered fast until now.
fn with(leases: usize, now: Instant) -> Schedule<usize> {
    let mut schedule = Schedule::new();
    for _ in 0..10 {
        let size = schedule.window.size();
        schedule.window.answered(size, now, now, SECOND);
    }
    for number in 0..leases {
        insert(&mut schedule, number, now);
    }
    schedule
}

fn insert(schedule: &mut Schedule<usize>, number: usize, now: Instant) {
    schedule.insert(LeaseNumber::next(), number, TTL, now + TTL / 3, now + TTL);
}

/// What was due.
#[derive(Debug, Default)]
struct Taken {
    batches: Vec<Batch<usize>>,
    overdue: Vec<usize>,
    expired: Vec<usize>,
}

fn take(schedule: &mut Schedule<usize>, now: Instant) -> Taken {
    let mut taken = Taken::default();
    for due in schedule.take_due(now) {
        match due {
            Due::Overdue(lease) => taken.overdue.push(lease),
            Due::Expired(lease) => taken.expired.push(lease),
            Due::Send(batch) => taken.batches.push(batch),
        }
    }
    taken
}

/// Answers all renewals of a batch.
fn renew(schedule: &mut Schedule<usize>, batch: &Batch<usize>, now: Instant) {
    let renewed = |(id, _): &(LeaseNumber, usize)| (*id, RenewalOutcome::Renewed(now + TTL));
    let outcomes: Vec<_> = batch.leases.iter().map(renewed).collect();
    schedule.answered(batch.id, &outcomes, now, CHANCE);
}

fn sizes(due: &Taken) -> Vec<usize> {
    due.batches.iter().map(|batch| batch.leases.len()).collect()
}

/// Takes the due work until there is none left, and answers each batch that has no lease that hangs. Returns the sizes
/// of all batches.
fn round(schedule: &mut Schedule<usize>, now: Instant, hanging: &[usize]) -> Vec<usize> {
    let mut sent = Vec::new();
    loop {
        let due = take(schedule, now);
        if due.batches.is_empty() {
            return sent;
        }
        sent.extend(sizes(&due));
        let hangs = |batch: &Batch<usize>| {
            let mut leases = batch.leases.iter();
            leases.any(|(_, number)| hanging.contains(number))
        };
        for batch in due.batches.iter().filter(|batch| !hangs(batch)) {
            renew(schedule, batch, now);
        }
    }
}

#[test]
fn a_lease_is_due_at_a_third_of_its_ttl() {
    let start = Instant::now();
    let mut schedule = with(1, start);
    assert_eq!(schedule.next(start), Some(start + TTL / 3));
    let early = take(&mut schedule, start + TTL / 3 - SECOND);
    assert!(early.batches.is_empty());
    let now = start + TTL / 3;
    let due = take(&mut schedule, now);
    assert_eq!(sizes(&due), [1]);
    assert!(due.overdue.is_empty() && due.expired.is_empty());
    assert_eq!(due.batches[0].lag, Duration::ZERO);
    renew(&mut schedule, &due.batches[0], now);
    assert_eq!(schedule.next(now), Some(start + TTL / 3 * 2));
    assert_eq!(schedule.remove(due.batches[0].leases[0].0), Some(0));
    assert_eq!(schedule.next(now), None);
}

#[test]
fn ten_thousand_leases_go_in_ten_batches_a_few_at_a_time() {
    let start = Instant::now();
    let mut schedule = with(10_000, start);
    let now = start + TTL / 3;
    let due = take(&mut schedule, now);
    assert_eq!(sizes(&due), [MAX_RENEWALS; 4]);
    assert!(take(&mut schedule, now).batches.is_empty(), "no place");
    renew(&mut schedule, &due.batches[0], now);
    assert_eq!(sizes(&take(&mut schedule, now)), [MAX_RENEWALS]);
    let mut schedule = with(10_000, start);
    assert_eq!(round(&mut schedule, now, &[]), [MAX_RENEWALS; 10]);
    assert_eq!(schedule.load(now), load(10_000, 0, 0));
}

fn load(kept: usize, waiting: usize, at_risk: usize) -> KeptLeases {
    KeptLeases {
        kept,
        waiting,
        at_risk,
    }
}

#[test]
fn leases_that_were_acquired_one_after_the_other_fall_into_step() {
    let start = Instant::now();
    let mut schedule = Schedule::new();
    // A lease is acquired every 10 ms, over a whole period.
    for number in 0..1_000 {
        let at = start + Duration::from_millis(10) * number as u32;
        insert(&mut schedule, number, at);
    }
    let mut batches = Vec::new();
    let mut now = start;
    while now < start + TTL * 3 {
        now = schedule.next(now).unwrap();
        batches.push(round(&mut schedule, now, &[]));
    }
    assert_eq!(batches.last(), Some(&vec![1_000]), "{batches:?}");
    assert!(batches.len() < 14, "{batches:?}");
}

#[test]
fn batches_that_were_sent_together_drift_apart() {
    let start = Instant::now();
    let mut schedule = with(10_000, start);
    let mut now = start;
    let mut at = Vec::new();
    let mut chance = 0.0;
    while now < start + TTL * 5 {
        now = schedule.next(now).unwrap();
        for batch in take(&mut schedule, now).batches {
            at.push(now);
            let renewed =
                |(id, _): &(LeaseNumber, usize)| (*id, RenewalOutcome::Renewed(now + TTL));
            let outcomes: Vec<_> = batch.leases.iter().map(renewed).collect();
            chance = (chance + 0.37) % 1.0;
            schedule.answered(batch.id, &outcomes, now, chance);
        }
    }
    // In the last period only a few batches are sent at the same time, and there are hardly more batches than without
    // the drift.
    let last: BTreeSet<_> = at.iter().filter(|at| **at > now - TTL / 3).collect();
    assert!(last.len() >= 7, "{last:?}");
    assert!(at.len() <= 10 * 15 * 5 / 4, "{}", at.len());
}

#[test]
fn what_is_not_answered_is_split_and_sent_once_more() {
    let start = Instant::now();
    let mut schedule = with(200, start);
    let mut now = start + TTL / 3;
    let first = take(&mut schedule, now);
    assert_eq!(sizes(&first), [200]);
    assert_eq!(schedule.next(now), Some(now + TTL / 6));
    now += TTL / 6;
    let due = take(&mut schedule, now);
    assert_eq!(sizes(&due), [20; REPEATS], "as many as have a place");
    assert_eq!(due.overdue.len(), 200);
    // Without an answer no more batches are sent.
    assert!(take(&mut schedule, now + SECOND).batches.is_empty());
    // The first batch is answered after all, so nothing is left to do.
    renew(&mut schedule, &first.batches[0], now + SECOND);
    for batch in &due.batches {
        renew(&mut schedule, batch, now + SECOND);
    }
    assert!(take(&mut schedule, now + 2 * SECOND).batches.is_empty());
}

/// Runs until all leases are renewed, except those that hang. Returns the sizes of the batches at each time.
fn until_found(leases: usize, hanging: &[usize]) -> Vec<Vec<usize>> {
    let start = Instant::now();
    let mut schedule = with(leases, start);
    let (mut now, mut sent) = (start, Vec::new());
    let end = start + TTL - Duration::from_millis(100);
    loop {
        let renewed = |entry: &&ScheduledLease<usize>| entry.deadline > start + TTL;
        if schedule.leases.values().filter(renewed).count() == leases - hanging.len() {
            return sent;
        }
        now = schedule.next(now).unwrap();
        assert!(now < end, "they are lost: {sent:?}");
        sent.push(round(&mut schedule, now, hanging));
    }
}

#[test]
fn one_that_hangs_does_not_hold_up_the_others() {
    assert_eq!(until_found(2, &[0]), [vec![2], vec![1, 1]]);
    let found = until_found(100, &[50]);
    let expected = [vec![100], vec![10; 10], vec![1; 10]];
    assert_eq!(found, expected);
    for leases in 3..=100 {
        until_found(leases, &[leases - 1]);
    }
    let found = until_found(1_000, &[7]);
    // At the end, the next renewals of the other leases are due too.
    let sizes: Vec<_> = found
        .iter()
        .map(|sent| (sent[0], sent.len().min(10)))
        .collect();
    assert_eq!(sizes, [(1_000, 1), (100, 10), (10, 10), (1, 10)]);
}

/// In the worst case the leases that hang are in different parts, so that no part is answered at first.
#[test]
fn several_that_hang_are_found_before_the_others_are_lost() {
    for _ in 0..20 {
        until_found(90, &[7, 42, 77]);
        until_found(1_000, &[7, 420, 770]);
        until_found(5_000, &[7, 1_420, 2_770, 4_000]);
    }
    until_found(3, &[0, 1]);
}

#[test]
fn what_failed_is_tried_again_soon_and_then_less_often() {
    let start = Instant::now();
    let mut schedule = with(10, start);
    let mut now = start + TTL / 3;
    let mut pauses = Vec::new();
    for _ in 0..12 {
        let due = take(&mut schedule, now);
        assert_eq!(sizes(&due), [10], "errors do not split a batch");
        schedule.answered(due.batches[0].id, &[], now, 1.0);
        let next = schedule.next(now).unwrap();
        pauses.push((next - now).as_millis());
        now = next;
        if now > start + TTL / 2 {
            break;
        }
    }
    assert_eq!(pauses[..3], [10, 20, 40]);
    assert!(pauses.is_sorted(), "{pauses:?}");
    // The call was dropped with its runtime, without an outcome.
    let due = take(&mut schedule, now);
    schedule.answered(due.batches[0].id, &[], now, 1.0);
    assert!(schedule.next(now).is_some_and(|next| next > now));
}

/// The leases were granted one after the other, so each has a deadline of its own.
#[test]
fn what_failed_together_is_tried_again_together() {
    let start = Instant::now();
    let mut schedule = with(0, start);
    for number in 0..10 {
        let granted = start + SECOND * u32::try_from(number).unwrap() / 4;
        insert(&mut schedule, number, granted);
    }
    let mut now = start + TTL / 3;
    while now < start + TTL {
        let due = take(&mut schedule, now);
        assert_eq!(sizes(&due), [10], "after {:?}", now - start);
        schedule.answered(due.batches[0].id, &[], now, 1.0);
        now = schedule.next(now).unwrap();
    }
}

#[test]
fn a_lease_with_a_short_ttl_does_not_take_long_ones_along() {
    let start = Instant::now();
    let mut schedule = with(100, start);
    let due = start + SECOND / 3;
    schedule.insert(LeaseNumber::next(), 100, SECOND, due, start + SECOND);
    assert_eq!(sizes(&take(&mut schedule, due)), [1]);
}

#[test]
fn the_nearest_deadline_goes_first_and_what_cannot_be_in_time_goes_last() {
    let start = Instant::now();
    let mut schedule = Schedule::new();
    for number in 0..3 {
        let deadline = start + SECOND * (3 - number);
        schedule.insert(
            LeaseNumber::next(),
            number as usize,
            SECOND * 3,
            start,
            deadline,
        );
    }
    let mut order = Vec::new();
    schedule.window.observe(Duration::ZERO);
    let taken = take(&mut schedule, start);
    order.extend(taken.batches[0].leases.iter().map(|(_, number)| *number));
    assert_eq!(order, [2, 1, 0]);

    let mut schedule = Schedule::new();
    for number in 0..3 {
        let deadline = start + SECOND * (3 - number);
        schedule.insert(
            LeaseNumber::next(),
            number as usize,
            SECOND * 3,
            start,
            deadline,
        );
    }
    for _ in 0..100 {
        schedule.window.observe(SECOND * 3 / 2);
    }
    let taken = take(&mut schedule, start);
    let order: Vec<_> = taken.batches[0].leases.iter().map(|(_, it)| *it).collect();
    assert_eq!(order, [1, 0, 2]);
}

#[test]
fn what_is_past_its_deadline_is_given_back_and_forgotten() {
    let start = Instant::now();
    let mut schedule = with(5_000, start);
    let now = start + TTL / 3;
    let sent = take(&mut schedule, now);
    assert_eq!(sizes(&sent), [MAX_RENEWALS; 4]);
    assert_eq!(schedule.load(now), load(5_000, 1_000, 0));
    let late = now + timing::slack(TTL);
    assert!(!schedule.is_late(late - SECOND) && schedule.is_late(late));
    assert_eq!(schedule.load(now + TTL / 2), load(5_000, 1_000, 5_000));
    assert_eq!(schedule.at_risk_and_waiting(now + TTL / 2).count(), 1_000);
    let (mut now, mut expired) = (now, Vec::new());
    while let Some(next) = schedule.next(now) {
        now = next;
        expired.extend(take(&mut schedule, now).expired);
        assert!(now < start + TTL * 3, "{:?}", schedule.load(now));
    }
    assert_eq!(expired.len(), 5_000);
    assert_eq!(schedule.load(now), KeptLeases::default());
}

#[test]
fn a_lease_that_reaches_its_end_is_not_renewed_and_is_given_back_there() {
    let start = Instant::now();
    let mut schedule = with(2, start);
    let now = start + TTL / 3;
    let batch = take(&mut schedule, now).batches.remove(0);
    let end = now + TTL;
    let [(ending, lease), (other, _)] = batch.leases[..] else {
        panic!("{batch:?}");
    };
    let outcomes = [
        (ending, RenewalOutcome::Final(end)),
        (other, RenewalOutcome::Lost),
    ];
    schedule.answered(batch.id, &outcomes, now, CHANCE);
    assert_eq!(schedule.next(now), Some(end));
    // It is not renewed in a batch with others, and it is not at risk.
    insert(&mut schedule, 7, end - TTL / 3 - SECOND);
    let near = end - SECOND;
    assert_eq!(sizes(&take(&mut schedule, near)), [1]);
    assert_eq!(schedule.load(near), load(2, 0, 0));
    assert_eq!(take(&mut schedule, end).expired, [lease]);

    // A lease that has reached its end before it was kept.
    let number = LeaseNumber::next();
    schedule.insert(number, 8, TTL, end + SECOND, end + SECOND);
    assert_eq!(schedule.load(end), load(2, 0, 0));
    assert_eq!(take(&mut schedule, end + SECOND).expired, [8]);
}

/// The process was suspended for longer than the ttl of the short lease, and the call was dropped with its runtime.
#[test]
fn a_batch_that_is_forgotten_leaves_no_live_lease_behind() {
    let start = Instant::now();
    let mut schedule = with(10, start);
    let brief = LeaseNumber::next();
    schedule.insert(brief, 10, TTL / 2, start + TTL / 3, start + TTL);
    let now = start + TTL / 3;
    let due = take(&mut schedule, now);
    let sent: Vec<_> = due.batches.iter().map(|batch| batch.id).collect();
    assert_eq!(sizes(&due), [11], "the control");
    let mut now = now + TTL / 2 + SECOND;
    round(&mut schedule, now, &[]);
    for batch in sent {
        schedule.answered(batch, &[], now, CHANCE);
    }
    let renewed = |entry: &ScheduledLease<usize>| entry.deadline > start + TTL;
    while !schedule.leases.values().all(renewed) {
        now = schedule.next(now).unwrap();
        assert!(now < start + TTL, "{schedule:?}");
        round(&mut schedule, now, &[]);
    }
}

/// The store never answers. Each lease is given back at its deadline, sent or not.
#[test]
fn a_store_that_never_answers_leaves_nothing_behind() {
    let start = Instant::now();
    let mut schedule = with(0, start);
    for number in 0..300 {
        insert(&mut schedule, number, start + SECOND / 10 * number as u32);
    }
    let (mut now, mut expired, mut most) = (start, 0, 0);
    while let Some(next) = schedule.next(now) {
        now = now.max(next);
        expired += take(&mut schedule, now).expired.len();
        most = most.max(schedule.under_way.len());
        assert!(now < start + TTL * 4, "{:?}", schedule.load(now));
    }
    assert_eq!(expired, 300);
    assert!(most <= MOST_UNANSWERED, "{most}");
}

#[test]
fn a_short_lease_does_not_hurry_long_ones() {
    let start = Instant::now();
    let mut schedule = with(100, start);
    let now = start + TTL / 3;
    schedule.insert(LeaseNumber::next(), 100, SECOND, now, now + SECOND);
    let mut sizes = sizes(&take(&mut schedule, now));
    sizes.sort_unstable();
    assert_eq!(sizes, [1, 100]);
}

/// Renewals of leases with long ttls hang in the server, for example because of a transaction that is short for such a
/// ttl.
#[test]
fn a_lease_with_a_short_ttl_does_not_wait_for_those_with_long_ones() {
    let (start, minute) = (Instant::now(), 60 * SECOND);
    let mut schedule = Schedule::new();
    for (number, ttl) in [(0, 10 * minute), (1, 30 * minute)] {
        schedule.insert(LeaseNumber::next(), number, ttl, start, start + ttl);
    }
    assert_eq!(sizes(&take(&mut schedule, start)), [1, 1]);
    insert(&mut schedule, 2, start);
    let due = start + TTL / 3;
    assert_eq!(sizes(&take(&mut schedule, due)), [1]);
    // That one hangs too, and is sent again.
    let overdue = due + response_timeout(TTL);
    assert!(schedule.next(due).is_some_and(|next| next <= overdue));
    assert_eq!(sizes(&take(&mut schedule, overdue)), [1]);
}

#[test]
fn a_repeat_with_a_short_ttl_does_not_wait_for_those_with_long_ones() {
    let (start, ttl) = (Instant::now(), 1_800 * SECOND);
    let mut schedule = Schedule::new();
    for number in 0..2 * REPEATS {
        schedule.insert(LeaseNumber::next(), number, ttl, start, start + ttl);
    }
    assert_eq!(sizes(&take(&mut schedule, start)), [2 * REPEATS]);
    let overdue = start + response_timeout(ttl);
    assert_eq!(sizes(&take(&mut schedule, overdue)), [1; REPEATS]);
    insert(&mut schedule, 100, overdue);
    let due = overdue + TTL / 3;
    assert_eq!(sizes(&take(&mut schedule, due)), [1]);
    let again = take(&mut schedule, due + response_timeout(TTL));
    let sent = again.batches.iter().flat_map(|batch| &batch.leases);
    assert_eq!(sent.map(|(_, number)| *number).collect::<Vec<_>>(), [100]);
}

/// The parts with a long ttl have the nearer deadlines, and no slot.
#[test]
fn a_repeat_that_may_be_sent_does_not_wait_for_one_that_may_not() {
    let (start, ttl) = (Instant::now(), 60 * SECOND);
    let mut schedule = Schedule::new();
    for number in 0..=REPEATS {
        schedule.insert(LeaseNumber::next(), number, ttl, start, start + ttl / 2);
    }
    let later = start + ttl / 2 + SECOND;
    schedule.insert(LeaseNumber::next(), 100, TTL / 3, start, later);
    assert_eq!(sizes(&take(&mut schedule, start)), [REPEATS + 1, 1]);
    let overdue = start + response_timeout(ttl);
    let numbers = |due: &Taken| {
        let sent = due.batches.iter().flat_map(|batch| &batch.leases);
        sent.map(|(_, number)| *number).collect::<Vec<_>>()
    };
    // The short one is overdue first, and its repeat hangs too.
    assert_eq!(
        numbers(&take(&mut schedule, start + response_timeout(TTL / 3))),
        [100]
    );
    let sent = take(&mut schedule, overdue);
    assert!(sent.batches.len() >= REPEATS - 1, "{sent:?}");
    let later = overdue + response_timeout(TTL / 3);
    assert!(numbers(&take(&mut schedule, later)).contains(&100));
}
