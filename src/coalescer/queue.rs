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

#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, HashSet},
    mem,
    time::Duration,
};

use tokio::time::Instant;

use super::{
    choice::{Choice, SendMode},
    policy::{HANGS, Limits, LoadSnapshot, Next, is_crowd},
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
    is_batch: bool,
    /// How many requests have no answer yet.
    requests: usize,
    /// How long its requests have waited before, in sum.
    waited: Duration,
    /// How it was sent; `None` if its requests were no crowd, or must not go in a batch.
    mode: Option<SendMode>,
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
    since: Instant,
    to_send: W,
}

/// What is sent now: each with the number of its slot.
pub(super) struct Sends<W> {
    pub(super) alone: Vec<(u64, W)>,
    pub(super) batch: Option<(u64, Vec<W>)>,
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
        self.peak = self.peak.max(self.at_once());
        let batches = || self.under_way.iter().filter(|it| it.is_batch);
        let recent = |it: &&InFlightSend| now - it.since < RECENT;
        LoadSnapshot {
            waiting,
            unbatchable: self.unbatchable.len(),
            batches: batches().count(),
            recent_batches: batches().filter(recent).count(),
            singles: self.under_way.len() - batches().count(),
            recent: self
                .under_way
                .iter()
                .filter(recent)
                .filter(|it| it.mode.is_some())
                .count(),
            peak: self.peak,
            mode: self.choice.mode(),
            not_sent_for: self.sent.map_or(Duration::ZERO, |sent| now - sent),
        }
    }

    /// How many requests wait.
    fn waiting(&self) -> usize {
        self.batchable.len() + self.unbatchable.len()
    }

    /// How many requests wait or are under way.
    fn at_once(&self) -> usize {
        let under_way = self.under_way.iter().map(|it| it.requests);
        self.waiting() + under_way.sum::<usize>()
    }

    /// Adds a request at the end of the queue, and returns its number.
    pub(super) fn push(&mut self, key: Key, class: Class, now: Instant, to_send: W) -> u64 {
        let number = self.assign_number();
        let waiting = match class {
            Class::Alone => &mut self.unbatchable,
            Class::Durable | Class::Undoable => &mut self.batchable,
        };
        let request = Waiting {
            key,
            class,
            since: now,
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

    /// Takes the requests out of the queue that are sent now, and counts them as sent. `least` are enough for a batch.
    pub(super) fn send_next(&mut self, limits: Limits, least: usize, now: Instant) -> Sends<W> {
        let load = self.update_load(now);
        let mut next = load.next(limits, least);
        let (mut batch, mut enough) = (None, usize::MAX);
        if let Next::Together(least) = next {
            batch = self.take_batch(least);
            if batch.is_none() {
                (next, enough) = (load.each_alone(limits), least);
            }
        }
        let number = match next {
            Next::Alone(number) => number,
            Next::Together(_) | Next::Wait => 0,
        };
        let mut alone = self.take_first(number);
        let unbatchable = load.next_unbatchable(limits).saturating_sub(number);
        alone.extend(self.take_unbatchable(unbatchable));
        // The first request may be the only one of its class, and those behind it enough for a batch.
        let batch = batch.or_else(|| self.take_batch(enough));
        let send_alone =
            |it: Waiting<W>| (self.sent(false, &[(it.class, it.since)], now), it.to_send);
        let alone = alone.into_iter().map(send_alone).collect();
        let batch = batch.map(|batch| {
            let all: Vec<_> = batch.iter().map(|it| (it.class, it.since)).collect();
            let to_send = batch.into_iter().map(|it| it.to_send);
            (self.sent(true, &all, now), to_send.collect())
        });
        Sends { alone, batch }
    }

    /// Counts a request as sent now that did not wait, and returns the number of its slot.
    pub(super) fn send_at_once(&mut self, class: Class, now: Instant) -> u64 {
        self.sent(false, &[(class, now)], now)
    }

    /// Takes the first waiting requests out of the queue, at most `most` of them.
    fn take_first(&mut self, most: usize) -> Vec<Waiting<W>> {
        let (batchable, unbatchable) = (self.batchable.keys(), self.unbatchable.keys());
        let first = batchable.take(most).chain(unbatchable.take(most));
        let mut first: Vec<_> = first.copied().collect();
        first.sort_unstable();
        first.truncate(most);
        self.take(&first)
    }

    /// Takes the first of the waiting requests that must not go in a batch out of the queue, at most `most` of them.
    fn take_unbatchable(&mut self, most: usize) -> Vec<Waiting<W>> {
        let first: Vec<_> = self.unbatchable.keys().take(most).copied().collect();
        self.take(&first)
    }

    /// Takes the requests of the next batch out of the queue: of those that may go in a batch, the first ones that have
    /// the same class as the very first, one for each key.
    ///
    /// `None` if there are fewer than `least`. The queue is then unchanged.
    fn take_batch(&mut self, least: usize) -> Option<Vec<Waiting<W>>> {
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
    fn take(&mut self, numbers: &[u64]) -> Vec<Waiting<W>> {
        let remove = |number: &u64| {
            let batchable = self.batchable.remove(number);
            batchable.or_else(|| self.unbatchable.remove(number))
        };
        numbers.iter().filter_map(remove).collect()
    }

    /// Counts a single request or a batch as sent now, and returns the number of its slot. `requests` are the classes of its
    /// requests, and when they came.
    fn sent(&mut self, is_batch: bool, requests: &[(Class, Instant)], now: Instant) -> u64 {
        let number = self.assign_number();
        self.sent = Some(now);
        self.peak = self.peak.max(self.at_once() + requests.len());
        // What must go alone is sent in the same way in either mode.
        let is_alone = requests.iter().any(|(class, _)| *class == Class::Alone);
        let is_of_crowd = is_crowd(self.peak) && !is_alone;
        // There may be fewer requests by now. So this number shrinks with each send, and `update_load` raises it again.
        self.peak = self.peak.saturating_sub(1 + self.peak / 8);
        self.under_way.push(InFlightSend {
            number,
            since: now,
            is_batch,
            requests: requests.len(),
            waited: requests.iter().map(|(_, since)| now - *since).sum(),
            mode: is_of_crowd.then(|| self.choice.mode()),
            is_overtaken: false,
        });
        number
    }

    /// Records that the request or batch with this number was answered. It has its slot until it has [ended](Self::ended).
    pub(super) fn answered(&mut self, number: u64, now: Instant) {
        let mut under_way = self.under_way.iter_mut();
        let Some(answered) = under_way.find(|it| it.number == number) else {
            return;
        };
        // Its tasks may have further requests already, and are not counted twice.
        let requests = u32::try_from(mem::take(&mut answered.requests)).unwrap_or(u32::MAX);
        let since = answered.since;
        if let Some(mode) = answered.mode {
            let took = answered.waited + (now - since) * requests;
            self.choice.answered(mode, requests, took, now);
        }
        for it in &mut self.under_way {
            it.is_overtaken |= it.since < since;
        }
    }

    /// Records that the request or batch with this number has ended. It may have failed.
    pub(super) fn ended(&mut self, number: u64) {
        self.under_way.retain(|it| it.number != number);
    }

    fn assign_number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }
}
