//! When which lease is renewed, and which go together: pure, times come in as arguments.
//!
//! A lease is due at a third of its ttl. Whatever is due goes in one batch, together with what will
//! be due soon: leases that were acquired at different moments fall into step after the first
//! period, and cost as few commands as those that were acquired at once.
//!
//! A batch that is not answered in time holds up nobody: its leases are due again, in smaller
//! batches, so that one that hangs in the server soon hangs alone. While nobody is answered, nobody knows
//! whether it is one lease that hangs or the store, so the batches are then never fewer than two, and twice
//! as many each time.

use std::{
    collections::{BTreeSet, HashMap},
    time::Duration,
};

use tokio::time::Instant;

use crate::{LeaseId, backoff, store::MAX_RENEWALS};

/// The part of the ttl after which a lease is renewed.
const PERIOD: u32 = 3;
/// The part of the ttl that a renewal may take before it is sent again, and how much earlier than
/// due a lease goes along with others.
const STEP: u32 = 6;
/// How many leases go together that were in a batch without an answer. One that hangs is then found
/// in two steps, and a store that is away altogether is not flooded.
const SUSPECTS: usize = 100;
/// How often in a row without any answer the least number of batches is doubled.
const DOUBLINGS: u32 = 3;

/// How much of the ttl is left when a renewal is due.
pub(crate) fn after_renewal(ttl: Duration) -> Duration {
    ttl - ttl / PERIOD
}

/// How long the answer to a renewal is waited for before it is sent again.
pub(crate) fn patience(ttl: Duration) -> Duration {
    ttl / STEP
}

/// The leases that are kept alive, each with what the caller wants to know it by.
#[derive(Debug)]
pub(crate) struct Schedule<T> {
    leases: HashMap<LeaseId, Entry<T>>,
    order: BTreeSet<(Instant, LeaseId)>,
    /// When the newest renewal was sent of those that were answered.
    answered: Option<Instant>,
    /// How often in a row something was sent again with no answer to anything in between.
    silent: u32,
}

#[derive(Debug)]
struct Entry<T> {
    lease: T,
    ttl: Duration,
    due: Instant,
    /// When it was sent last.
    sent: Instant,
    state: State,
    /// How many renewals in a row were not answered in time.
    unanswered: u32,
    /// How many errors there were in a row.
    errors: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Renewed; the next time is not urgent.
    Calm,
    /// Sent; due when the answer has not come in time.
    Sent,
    /// Failed; due when it is tried again.
    Failed,
}

/// What is due.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Due<T> {
    /// What to send together.
    pub(crate) batches: Vec<Vec<(LeaseId, T)>>,
    /// Whose last renewal was not answered in time. They are among the batches too.
    pub(crate) overdue: Vec<(LeaseId, T)>,
}

impl<T: Clone> Schedule<T> {
    pub(crate) fn new() -> Self {
        Self {
            leases: HashMap::new(),
            order: BTreeSet::new(),
            answered: None,
            silent: 0,
        }
    }

    /// Takes in a lease, and when it is due first.
    pub(crate) fn insert(&mut self, id: LeaseId, lease: T, ttl: Duration, due: Instant) {
        self.remove(id);
        self.order.insert((due, id));
        self.leases.insert(
            id,
            Entry {
                lease,
                ttl,
                due,
                sent: due,
                state: State::Calm,
                unanswered: 0,
                errors: 0,
            },
        );
    }

    pub(crate) fn remove(&mut self, id: LeaseId) {
        if let Some(entry) = self.leases.remove(&id) {
            self.order.remove(&(entry.due, id));
        }
    }

    /// When something is due next.
    pub(crate) fn next(&self) -> Option<Instant> {
        self.order.first().map(|(due, _)| *due)
    }

    /// Takes what is due now, and counts it as sent now.
    pub(crate) fn take_due(&mut self, now: Instant) -> Due<T> {
        let mut due = Due {
            batches: Vec::new(),
            overdue: Vec::new(),
        };
        if self.next().is_none_or(|next| next > now) {
            return due;
        }
        let (mut calm, mut suspects) = (Vec::new(), Vec::new());
        let soon =
            |entry: &Entry<T>| entry.state == State::Calm && entry.due <= now + entry.ttl / STEP;
        let wanted: Vec<_> = self.order.iter().map(|(_, id)| *id).collect();
        for id in wanted {
            let Some(entry) = self.leases.get_mut(&id) else {
                continue;
            };
            if entry.due > now && !soon(entry) {
                continue;
            }
            if entry.state == State::Sent {
                // While nobody is answered it is the store that hangs, and no single lease.
                let alone = self.answered.is_some_and(|at| at >= entry.sent);
                entry.unanswered = if alone { entry.unanswered + 1 } else { 1 };
                due.overdue.push((id, entry.lease.clone()));
            }
            let together = match entry.unanswered {
                0 => &mut calm,
                _ => &mut suspects,
            };
            together.push((id, entry.lease.clone(), entry.unanswered));
            let again = now + entry.ttl / STEP;
            (entry.state, entry.sent) = (State::Sent, now);
            move_to(&mut self.order, entry, id, again);
        }
        due.batches = batches(calm, MAX_RENEWALS);
        let (few, single): (Vec<_>, _) = suspects.into_iter().partition(|(.., times)| *times == 1);
        if !few.is_empty() {
            self.silent = DOUBLINGS.min(self.silent + 1);
        }
        // Whoever shares no batch with one that hangs is answered, and the others then go alone.
        let together = few.len().div_ceil(1 << self.silent);
        due.batches
            .extend(batches(few, together.clamp(1, SUSPECTS)));
        due.batches.extend(batches(single, 1));
        due
    }

    /// A renewal was answered. The next one counts from when it was sent.
    pub(crate) fn renewed(&mut self, id: LeaseId, sent: Instant) {
        self.answered = self.answered.max(Some(sent));
        self.silent = 0;
        if let Some(entry) = self.leases.get_mut(&id) {
            (entry.state, entry.unanswered, entry.errors) = (State::Calm, 0, 0);
            let due = sent + entry.ttl / PERIOD;
            move_to(&mut self.order, entry, id, due);
        }
    }

    /// A renewal failed. It is tried again after a pause, which chance, a number from 0 to 1, varies:
    /// the same for all that failed together, so that they stay together.
    pub(crate) fn failed(&mut self, id: LeaseId, now: Instant, chance: f64) {
        if let Some(entry) = self.leases.get_mut(&id) {
            let pause = backoff::pause(entry.errors, entry.ttl / STEP, chance);
            entry.errors = entry.errors.saturating_add(1);
            entry.state = State::Failed;
            move_to(&mut self.order, entry, id, now + pause);
        }
    }
}

fn move_to<T>(
    order: &mut BTreeSet<(Instant, LeaseId)>,
    entry: &mut Entry<T>,
    id: LeaseId,
    due: Instant,
) {
    order.remove(&(entry.due, id));
    entry.due = due;
    order.insert((due, id));
}

fn batches<T>(leases: Vec<(LeaseId, T, u32)>, size: usize) -> Vec<Vec<(LeaseId, T)>> {
    let mut batches = Vec::new();
    let mut leases = leases
        .into_iter()
        .map(|(id, lease, _)| (id, lease))
        .peekable();
    while leases.peek().is_some() {
        batches.push(leases.by_ref().take(size).collect());
    }
    batches
}

#[cfg(test)]
mod tests {
    use super::*;

    const TTL: Duration = Duration::from_secs(30);
    const SECOND: Duration = Duration::from_secs(1);

    fn with(leases: usize, now: Instant) -> Schedule<usize> {
        let mut schedule = Schedule::new();
        for number in 0..leases {
            schedule.insert(LeaseId::random(), number, TTL, now + TTL / 3);
        }
        schedule
    }

    fn sizes(due: &Due<usize>) -> Vec<usize> {
        due.batches.iter().map(Vec::len).collect()
    }

    #[test]
    fn a_lease_is_due_at_a_third_of_its_ttl() {
        let start = Instant::now();
        let mut schedule = with(1, start);
        assert_eq!(schedule.next(), Some(start + TTL / 3));
        assert!(
            schedule
                .take_due(start + TTL / 3 - SECOND)
                .batches
                .is_empty()
        );
        let due = schedule.take_due(start + TTL / 3);
        assert_eq!(sizes(&due), [1]);
        assert!(due.overdue.is_empty());
        schedule.renewed(due.batches[0][0].0, start + TTL / 3);
        assert_eq!(schedule.next(), Some(start + TTL / 3 * 2));
        schedule.remove(due.batches[0][0].0);
        assert_eq!(schedule.next(), None);
    }

    #[test]
    fn ten_thousand_leases_go_in_ten_batches() {
        let start = Instant::now();
        let due = with(10_000, start).take_due(start + TTL / 3);
        assert_eq!(sizes(&due), [MAX_RENEWALS; 10]);
    }

    #[test]
    fn leases_that_were_acquired_one_after_the_other_fall_into_step() {
        let start = Instant::now();
        let mut schedule = Schedule::new();
        // One every 10 ms, over a whole period.
        for number in 0..1_000 {
            let at = start + Duration::from_millis(10) * number;
            schedule.insert(LeaseId::random(), number, TTL, at + TTL / 3);
        }
        let mut batches = Vec::new();
        while schedule.next().unwrap() < start + TTL * 3 {
            let now = schedule.next().unwrap();
            let due = schedule.take_due(now);
            for (id, _) in due.batches.iter().flatten() {
                schedule.renewed(*id, now);
            }
            batches.push(due.batches.iter().map(Vec::len).collect::<Vec<_>>());
        }
        assert_eq!(batches.last(), Some(&vec![1_000]), "{batches:?}");
        assert!(batches.len() < 14, "{batches:?}");
    }

    #[test]
    fn what_is_not_answered_is_sent_again_in_smaller_batches() {
        let start = Instant::now();
        let mut schedule = with(200, start);
        let mut now = start + TTL / 3;
        assert_eq!(sizes(&schedule.take_due(now)), [200]);
        assert_eq!(schedule.next(), Some(now + TTL / 6));
        now += TTL / 6;
        let due = schedule.take_due(now);
        assert_eq!(sizes(&due), [100, 100]);
        assert_eq!(due.overdue.len(), 200);
        // One half is answered, and is as good as new.
        for (id, _) in &due.batches[0] {
            schedule.renewed(*id, now);
        }
        now += TTL / 6;
        let again = sizes(&schedule.take_due(now));
        assert_eq!(again[0], 100, "they go along again");
        assert_eq!(again[1..], [1; 100], "each of the others alone");
    }

    #[test]
    fn while_nobody_is_answered_nobody_goes_alone() {
        let start = Instant::now();
        let mut schedule = with(1_000, start);
        let mut now = start + TTL / 3;
        assert_eq!(sizes(&schedule.take_due(now)), [1_000]);
        for _ in 0..3 {
            now += TTL / 6;
            assert_eq!(sizes(&schedule.take_due(now)), [100; 10]);
        }
    }

    /// Runs until all are answered but those that hang, and gives the sizes of the batches of each time.
    fn until_found(leases: usize, hanging: &[usize]) -> Vec<Vec<usize>> {
        let start = Instant::now();
        let mut schedule = with(leases, start);
        let mut now = start + TTL / 3;
        let mut sent = Vec::new();
        let mut waiting = leases;
        while waiting > hanging.len() {
            let due = schedule.take_due(now);
            sent.push(sizes(&due));
            assert!(sent.len() < 5, "they are lost: {sent:?}");
            let hangs = |batch: &[(LeaseId, usize)]| {
                let found = batch.iter().find(|(_, number)| hanging.contains(number));
                found.is_some()
            };
            for batch in due.batches.iter().filter(|batch| !hangs(batch)) {
                for (id, _) in batch {
                    schedule.renewed(*id, now);
                    schedule.remove(*id);
                    waiting -= 1;
                }
            }
            now += TTL / 6;
        }
        sent
    }

    #[test]
    fn one_that_hangs_does_not_hold_up_the_few_that_are_all() {
        assert_eq!(until_found(2, &[0]), [vec![2], vec![1, 1]]);
        assert_eq!(
            until_found(100, &[50]),
            [vec![100], vec![50, 50], vec![1; 50]]
        );
        for leases in 3..=100 {
            until_found(leases, &[leases - 1]);
        }
    }

    /// In the worst case they are in different batches, and nobody is answered at first.
    #[test]
    fn several_that_hang_are_found_before_the_others_are_lost() {
        for _ in 0..100 {
            until_found(90, &[7, 42, 77]);
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
            let due = schedule.take_due(now);
            assert_eq!(sizes(&due), [10], "errors do not split a batch");
            for (id, _) in due.batches.iter().flatten() {
                schedule.failed(*id, now, 1.0);
            }
            let next = schedule.next().unwrap();
            pauses.push((next - now).as_millis());
            now = next;
        }
        assert_eq!(pauses[..3], [10, 20, 40]);
        assert_eq!(pauses[11], (TTL / 6).as_millis());
    }

    #[test]
    fn a_lease_with_a_short_ttl_does_not_take_long_ones_along() {
        let start = Instant::now();
        let mut schedule = with(100, start);
        schedule.insert(LeaseId::random(), 100, SECOND, start + SECOND / 3);
        let due = schedule.take_due(start + SECOND / 3);
        assert_eq!(sizes(&due), [1]);
    }
}
