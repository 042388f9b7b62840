//! The requests that wait for a slot, and those that are under way. This file is pure: times come in as arguments.
//!
//! Invariants:
//!
//! - A request or a batch has its slot from the moment when it is sent until it ends. If one that was sent later is
//!   answered first, the earlier one hangs by itself, in a transaction for example. It then loses its slot after
//!   [`HANGS`]. An early error proves nothing, because an overloaded server refuses requests unread.
//! - The waiting requests stand in the order of their numbers, in which they came: in one map those that may go in a
//!   batch, and in another one those that must not.
//! - A batch has at most one request for each key: the first one that waits.

use std::{
    collections::{BTreeMap, HashSet},
    time::Duration,
};

use tokio::time::Instant;

use super::{
    choice::{Choice, Mode},
    policy::{HANGS, LoadSnapshot, is_crowd},
};
use crate::model::Key;

/// How long a batch keeps waiting requests from being sent alone. A batch that takes longer may hang.
pub(super) const RECENT: Duration = Duration::from_millis(50);

/// The most requests in one batch. A larger batch would delay each of its answers.
const LARGEST: usize = 100;

/// How many waiting requests are considered for a batch. This bounds the time that it takes to fill one.
const MAX_SCANNED: usize = 4 * LARGEST;

/// The requests of a client. `W` is what is sent for a waiting request.
pub(super) struct SendQueue<W> {
    under_way: Vec<InFlightSend>,
    batchable: BTreeMap<u64, Waiting<W>>,
    unbatchable: BTreeMap<u64, Waiting<W>>,
    /// When a request or a batch was last sent.
    sent: Option<Instant>,
    next: u64,
    /// The greatest recent number of requests, under way and waiting together. It shrinks with each send.
    peak: usize,
    choice: Choice,
}

/// A single request or a batch that was sent and has not ended.
struct InFlightSend {
    number: u64,
    since: Instant,
    requests: usize,
    /// How long its requests have waited before, in sum.
    waited: Duration,
    /// How it was sent, if that was one of two ways.
    mode: Option<Mode>,
    /// Whether a request or a batch that was sent later has been answered.
    is_overtaken: bool,
}

/// Whether a request may go in a batch, and the durability that it asks for. A batch has requests of one class only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Class {
    /// It must not go in a batch.
    Alone,
    /// Acquires, and releases that a failover must not undo. If the store gains nothing from separate batches for the
    /// other class, every request is in this one.
    Durable,
    /// Releases that a failover may undo.
    Undoable,
}

struct Waiting<W> {
    key: Key,
    class: Class,
    to_send: W,
}

impl<W> SendQueue<W> {
    pub(super) fn new() -> Self {
        Self {
            under_way: Vec::new(),
            batchable: BTreeMap::new(),
            unbatchable: BTreeMap::new(),
            sent: None,
            next: 0,
            peak: 0,
            choice: Choice::new(),
        }
    }

    /// Takes the slots from requests that hang, and counts the requests that wait and those under way.
    pub(super) fn update_load(&mut self, now: Instant) -> LoadSnapshot {
        self.under_way
            .retain(|it| !it.is_overtaken || now - it.since < HANGS);
        let waiting = self.waiting();
        let requests = self.under_way.iter().map(|it| it.requests);
        self.peak = self.peak.max(waiting + requests.sum::<usize>());
        let batches = || self.under_way.iter().filter(|it| it.requests != 1);
        LoadSnapshot {
            waiting,
            unbatchable: self.unbatchable.len(),
            batches: batches().count(),
            recent_batches: batches().filter(|it| now - it.since < RECENT).count(),
            singles: self.under_way.len() - batches().count(),
            recent: self
                .under_way
                .iter()
                .filter(|it| now - it.since < RECENT)
                .count(),
            peak: self.peak,
            mode: self.choice.mode(),
            not_sent_for: self.sent.map_or(Duration::ZERO, |sent| now - sent),
        }
    }

    /// How many requests wait.
    pub(super) fn waiting(&self) -> usize {
        self.batchable.len() + self.unbatchable.len()
    }

    /// Adds a request at the end of the queue, and returns its number.
    pub(super) fn push(&mut self, key: Key, class: Class, to_send: W) -> u64 {
        let number = self.assign_number();
        let waiting = match class {
            Class::Alone => &mut self.unbatchable,
            Class::Durable | Class::Undoable => &mut self.batchable,
        };
        let request = Waiting {
            key,
            class,
            to_send,
        };
        waiting.insert(number, request);
        number
    }

    /// Withdraws a waiting request. Returns whether it was still waiting.
    pub(super) fn withdraw(&mut self, number: u64) -> bool {
        !self.take(&[number]).is_empty()
    }

    /// Drops the waiting requests for which `keep` returns `false`.
    pub(super) fn retain(&mut self, keep: impl Fn(&W) -> bool) {
        for waiting in [&mut self.batchable, &mut self.unbatchable] {
            waiting.retain(|_, waiting| keep(&waiting.to_send));
        }
    }

    /// Takes the first waiting requests out of the queue, at most `most` of them.
    pub(super) fn take_first(&mut self, most: usize) -> Vec<W> {
        let (batchable, unbatchable) = (self.batchable.keys(), self.unbatchable.keys());
        let first = batchable.take(most).chain(unbatchable.take(most));
        let mut first: Vec<_> = first.copied().collect();
        first.sort_unstable();
        first.truncate(most);
        self.take(&first)
    }

    /// Takes the first of the waiting requests that must not go in a batch out of the queue, at most `most` of them.
    pub(super) fn take_unbatchable(&mut self, most: usize) -> Vec<W> {
        let first: Vec<_> = self.unbatchable.keys().take(most).copied().collect();
        self.take(&first)
    }

    /// Takes the requests of the next batch out of the queue: of those that may go in a batch, the first ones that have
    /// the same class as the very first, one for each key.
    ///
    /// `None` if there are fewer than `least`. The queue is then unchanged.
    pub(super) fn take_batch(&mut self, least: usize) -> Option<Vec<W>> {
        let (_, first) = self.batchable.first_key_value()?;
        let mut keys = HashSet::new();
        let scanned = self.batchable.iter().take(MAX_SCANNED);
        let fitting = scanned.filter(|(_, it)| it.class == first.class && keys.insert(&it.key));
        let batch: Vec<_> = fitting.take(LARGEST).map(|(number, _)| *number).collect();
        if batch.len() < least {
            return None;
        }
        Some(self.take(&batch))
    }

    /// Takes those of these requests that wait out of the queue.
    fn take(&mut self, numbers: &[u64]) -> Vec<W> {
        let remove = |number: &u64| {
            let batchable = self.batchable.remove(number);
            batchable.or_else(|| self.unbatchable.remove(number))
        };
        let taken = numbers.iter().filter_map(remove);
        taken.map(|waiting| waiting.to_send).collect()
    }

    /// Counts a single request, or a batch of this many, as sent now, and returns its number. The requests have waited
    /// for this long before, in sum.
    pub(super) fn sent(&mut self, requests: usize, waited: Duration, now: Instant) -> u64 {
        let number = self.assign_number();
        self.sent = Some(now);
        let mode = is_crowd(self.peak).then(|| self.choice.mode());
        // There may be fewer requests by now. So this number shrinks with each send, and `update_load` raises it again.
        self.peak = self.peak.saturating_sub(1 + self.peak / 8);
        self.under_way.push(InFlightSend {
            number,
            since: now,
            requests,
            waited,
            mode,
            is_overtaken: false,
        });
        number
    }

    /// Records that the request or batch with this number has ended, with an answer or an error.
    pub(super) fn ended(&mut self, number: u64, answered: bool, now: Instant) {
        let Some(at) = self.under_way.iter().position(|it| it.number == number) else {
            return;
        };
        let ended = self.under_way.swap_remove(at);
        if let Some(mode) = ended.mode.filter(|_| answered) {
            let requests = u32::try_from(ended.requests).unwrap_or(u32::MAX);
            let took = ended.waited + (now - ended.since) * requests;
            self.choice.answered(mode, requests, took, now);
        }
        for it in &mut self.under_way {
            it.is_overtaken |= answered && it.since < ended.since;
        }
    }

    fn assign_number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }
}

#[cfg(test)]
mod tests {
    use super::{super::policy::LEAST_BATCH, *};

    fn key(number: usize) -> Key {
        Key::new(format!("key {number}")).unwrap()
    }

    #[test]
    fn only_what_is_overtaken_loses_its_place() {
        let (mut queue, start) = (SendQueue::<()>::new(), Instant::now());
        let first = queue.sent(1, Duration::ZERO, start);
        let second = queue.sent(1, Duration::ZERO, start + RECENT);
        let alone = |queue: &mut SendQueue<()>, at| queue.update_load(at).singles;
        assert_eq!(alone(&mut queue, start + HANGS * 100), 2, "it is slow");
        // The first was sent before the second.
        queue.ended(first, true, start + HANGS);
        assert_eq!(alone(&mut queue, start + HANGS * 100), 1);
        let third = queue.sent(1, Duration::ZERO, start + RECENT * 2);
        queue.ended(third, true, start + HANGS);
        assert_eq!(alone(&mut queue, start + HANGS), 1, "not at once");
        assert_eq!(alone(&mut queue, start + RECENT + HANGS), 0);
        // The second ends after all.
        queue.ended(second, true, start + HANGS);
    }

    #[test]
    fn a_refusal_overtakes_nothing() {
        let (mut queue, start) = (SendQueue::<()>::new(), Instant::now());
        queue.sent(1, Duration::ZERO, start);
        let refused = queue.sent(1, Duration::ZERO, start + RECENT);
        queue.ended(refused, false, start + HANGS);
        assert_eq!(queue.update_load(start + HANGS * 100).singles, 1);
    }

    #[test]
    fn the_time_without_a_send_begins_with_the_last_one() {
        let (mut queue, start) = (SendQueue::<()>::new(), Instant::now());
        let not_sent_for = |queue: &mut SendQueue<()>, at| queue.update_load(at).not_sent_for;
        assert_eq!(
            not_sent_for(&mut queue, start),
            Duration::ZERO,
            "nobody came"
        );
        queue.sent(20, Duration::ZERO, start);
        let load = queue.update_load(start + RECENT);
        let seen = (load.batches, load.recent_batches, load.not_sent_for);
        assert_eq!(seen, (1, 0, RECENT));
        queue.sent(1, Duration::ZERO, start + HANGS);
        assert_eq!(not_sent_for(&mut queue, start + HANGS), Duration::ZERO);
    }

    #[test]
    fn what_goes_together_is_of_many_keys() {
        let mut queue = SendQueue::new();
        for number in 0..LEAST_BATCH {
            queue.push(key(number), Class::Durable, number);
        }
        queue.push(key(0), Class::Durable, 100);
        queue.push(key(101), Class::Alone, 101);
        let batch: Vec<_> = (0..LEAST_BATCH).collect();
        assert_eq!(queue.take_batch(LEAST_BATCH), Some(batch));
        assert_eq!(queue.take_batch(LEAST_BATCH), None, "they are few");
        assert_eq!(queue.take_first(9), [100, 101], "in their order");
    }

    #[test]
    fn what_must_go_alone_is_taken_past_what_may_go_in_a_batch() {
        let mut queue = SendQueue::new();
        for number in 0..6 {
            let class = [Class::Durable, Class::Alone][number % 2];
            queue.push(key(number), class, number);
        }
        let load = queue.update_load(Instant::now());
        assert_eq!((load.waiting, load.unbatchable), (6, 3));
        assert_eq!(queue.take_unbatchable(2), [1, 3]);
        assert_eq!(queue.take_first(2), [0, 2]);
        assert_eq!(queue.take_unbatchable(2), [5]);
        assert_eq!(queue.take_first(2), [4]);
    }

    #[test]
    fn each_class_has_batches_of_its_own_and_the_oldest_goes_first() {
        let mut queue = SendQueue::new();
        for number in 0..LEAST_BATCH * 2 {
            let class = [Class::Undoable, Class::Durable][number % 2];
            queue.push(key(number), class, number);
        }
        let every_second = |first: usize| (first..LEAST_BATCH * 2).step_by(2).collect::<Vec<_>>();
        assert_eq!(queue.take_batch(LEAST_BATCH), Some(every_second(0)));
        assert_eq!(queue.take_batch(LEAST_BATCH), Some(every_second(1)));
        assert!(queue.take_first(9).is_empty());
    }

    #[test]
    fn what_is_withdrawn_is_never_sent() {
        let mut queue = SendQueue::new();
        let [first, second] = [1, 2].map(|it| queue.push(key(it), Class::Durable, it));
        assert!(queue.withdraw(first) && !queue.withdraw(first));
        assert_eq!(queue.take_first(9), [2]);
        assert!(!queue.withdraw(second), "it was sent");
    }
}
