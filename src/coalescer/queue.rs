//! Which requests wait for a place, and which are under way: without I/O, times come in as arguments.
//!
//! Invariants:
//!
//! - What was sent has its place until it has ended. If something that was sent after it is answered before it,
//!   it hangs by itself, in a transaction for example, and loses its place after [`HANGS`]. An error that comes
//!   early proves nothing: a server that has too much to do refuses what it does not even look at.
//! - Those that wait stand in the order in which they came.
//! - Of two requests for one key only the first goes in a batch.

use std::{
    collections::{HashSet, VecDeque},
    time::Duration,
};

use tokio::{runtime::Id, time::Instant};

use super::policy::LoadSnapshot;
use crate::model::Key;

/// How long a request has its place although it was overtaken. If nothing was sent for so long for want of a
/// place, one more goes than there are places.
pub(super) const HANGS: Duration = Duration::from_millis(200);

/// How long a batch keeps others from going alone: one that takes longer may hang.
pub(super) const YOUNG: Duration = Duration::from_millis(50);

/// How many go in one batch: more would delay every answer of the batch.
const LARGEST: usize = 100;

/// How many of the waiting requests are looked at for a batch.
const LOOK: usize = 4 * LARGEST;

/// The requests of a handle. Each that waits has something to be sent.
pub(super) struct Queue<W> {
    under_way: Vec<UnderWay>,
    waiting: VecDeque<Waiting<W>>,
    /// When something was sent last.
    sent: Option<Instant>,
    next: u64,
    /// How many requests there were at once of late: under way and waiting.
    crowd: usize,
}

/// A single request, or a batch, that was sent and has not ended.
struct UnderWay {
    number: u64,
    since: Instant,
    requests: usize,
    /// Whether something that was sent after it was answered.
    is_overtaken: bool,
}

struct Waiting<W> {
    number: u64,
    key: Key,
    /// Whether it must not go together with others.
    alone: bool,
    /// Where the operation runs that waits for it.
    runtime: Id,
    to_send: W,
}

impl<W> Queue<W> {
    pub(super) fn new() -> Self {
        Self {
            under_way: Vec::new(),
            waiting: VecDeque::new(),
            sent: None,
            next: 0,
            crowd: 0,
        }
    }

    /// How much waits and is under way now.
    pub(super) fn load(&mut self, now: Instant) -> LoadSnapshot {
        self.under_way
            .retain(|it| !it.is_overtaken || now - it.since < HANGS);
        let mut load = LoadSnapshot {
            waiting: self.waiting.len(),
            batches: 0,
            young: 0,
            alone: 0,
            crowd: self.waiting.len(),
            stalled: self.sent.is_some_and(|sent| now - sent >= HANGS),
        };
        for it in &self.under_way {
            load.crowd += it.requests;
            match it.requests {
                1 => load.alone += 1,
                _ => {
                    load.batches += 1;
                    load.young += usize::from(now - it.since < YOUNG);
                }
            }
        }
        self.crowd = self.crowd.max(load.crowd);
        load.crowd = self.crowd;
        load
    }

    /// Takes in a request that waits, and gives its number.
    pub(super) fn push(&mut self, key: Key, alone: bool, runtime: Id, to_send: W) -> u64 {
        let number = self.number();
        self.waiting.push_back(Waiting {
            number,
            key,
            alone,
            runtime,
            to_send,
        });
        number
    }

    /// Takes back a request that waits. Says whether it did.
    pub(super) fn withdraw(&mut self, number: u64) -> bool {
        let before = self.waiting.len();
        self.waiting.retain(|waiting| waiting.number != number);
        self.waiting.len() < before
    }

    /// Keeps of the requests that wait only these.
    pub(super) fn retain(&mut self, keep: impl Fn(&W) -> bool) {
        self.waiting.retain(|waiting| keep(&waiting.to_send));
    }

    /// Takes out the first that wait.
    pub(super) fn take_first(&mut self, most: usize) -> Vec<W> {
        let first = self.waiting.drain(..most.min(self.waiting.len()));
        first.map(|waiting| waiting.to_send).collect()
    }

    /// Takes out what goes together: the first that wait, of one runtime, because another one may stand still;
    /// but for a second request for one key. `None`, and nothing is taken out, if those are fewer than `least`.
    pub(super) fn take_batch(&mut self, least: usize) -> Option<Vec<W>> {
        let runtime = self.waiting.front()?.runtime;
        let looked_at = self.waiting.len().min(LOOK);
        let (mut batch, mut left) = (Vec::new(), Vec::new());
        let mut keys = HashSet::new();
        for waiting in self.waiting.drain(..looked_at) {
            let goes = batch.len() < LARGEST
                && !waiting.alone
                && waiting.runtime == runtime
                && keys.insert(waiting.key.clone());
            if goes {
                batch.push(waiting)
            } else {
                left.push(waiting)
            }
        }
        let few = batch.len() < least;
        if few {
            left.append(&mut batch);
            left.sort_by_key(|waiting| waiting.number);
        }
        left.into_iter()
            .rev()
            .for_each(|waiting| self.waiting.push_front(waiting));
        if few {
            return None;
        }
        // The greatest number of requests at once counts less with each batch.
        self.crowd -= self.crowd / 8;
        Some(batch.into_iter().map(|waiting| waiting.to_send).collect())
    }

    /// Counts so many requests as sent now, together, and gives their number.
    pub(super) fn sent(&mut self, requests: usize, now: Instant) -> u64 {
        let number = self.number();
        self.sent = Some(now);
        self.under_way.push(UnderWay {
            number,
            since: now,
            requests,
            is_overtaken: false,
        });
        number
    }

    /// The request or batch of this number has ended: with an answer, or with an error.
    pub(super) fn ended(&mut self, number: u64, answered: bool) {
        let Some(at) = self.under_way.iter().position(|it| it.number == number) else {
            return;
        };
        let ended = self.under_way.swap_remove(at);
        for it in &mut self.under_way {
            it.is_overtaken |= answered && it.since < ended.since;
        }
    }

    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }
}

#[cfg(test)]
mod tests {
    use tokio::runtime::{Builder, Runtime};

    use super::{super::policy::LEAST, *};

    fn runtime() -> Runtime {
        Builder::new_current_thread().build().unwrap()
    }

    fn key(number: usize) -> Key {
        Key::new(format!("key {number}")).unwrap()
    }

    #[test]
    fn only_what_is_overtaken_loses_its_place() {
        let (mut queue, start) = (Queue::<()>::new(), Instant::now());
        let first = queue.sent(1, start);
        let second = queue.sent(1, start + YOUNG);
        let alone = |queue: &mut Queue<()>, at| queue.load(at).alone;
        assert_eq!(alone(&mut queue, start + HANGS * 100), 2, "it is slow");
        // It was sent before the other.
        queue.ended(first, true);
        assert_eq!(alone(&mut queue, start + HANGS * 100), 1);
        let third = queue.sent(1, start + YOUNG * 2);
        queue.ended(third, true);
        assert_eq!(alone(&mut queue, start + HANGS), 1, "not at once");
        assert_eq!(alone(&mut queue, start + YOUNG + HANGS), 0);
        // It ends after all.
        queue.ended(second, true);
    }

    #[test]
    fn a_refusal_overtakes_nothing() {
        let (mut queue, start) = (Queue::<()>::new(), Instant::now());
        queue.sent(1, start);
        let refused = queue.sent(1, start + YOUNG);
        queue.ended(refused, false);
        assert_eq!(queue.load(start + HANGS * 100).alone, 1);
    }

    #[test]
    fn a_queue_from_which_nothing_was_sent_for_long_is_stalled() {
        let (mut queue, start) = (Queue::<()>::new(), Instant::now());
        assert!(!queue.load(start).stalled, "nobody came");
        queue.sent(20, start);
        let load = queue.load(start + YOUNG);
        assert_eq!((load.batches, load.young, load.stalled), (1, 0, false));
        assert!(queue.load(start + HANGS).stalled);
        queue.sent(1, start + HANGS);
        assert!(!queue.load(start + HANGS).stalled);
    }

    #[test]
    fn what_goes_together_is_of_one_runtime_and_of_many_keys() {
        let (here, there) = (runtime(), runtime());
        let (here, there) = (here.handle().id(), there.handle().id());
        let mut queue = Queue::new();
        for number in 0..LEAST {
            queue.push(key(number), false, here, number);
        }
        queue.push(key(0), false, here, 100);
        queue.push(key(101), true, here, 101);
        queue.push(key(102), false, there, 102);
        let batch: Vec<_> = (0..LEAST).collect();
        assert_eq!(queue.take_batch(LEAST), Some(batch));
        assert_eq!(queue.take_batch(LEAST), None, "they are few");
        assert_eq!(queue.take_first(9), [100, 101, 102], "in their order");
    }

    #[test]
    fn what_is_withdrawn_is_never_sent() {
        let runtime = runtime();
        let mut queue = Queue::new();
        let [first, second] =
            [1, 2].map(|it| queue.push(key(it), false, runtime.handle().id(), it));
        assert!(queue.withdraw(first) && !queue.withdraw(first));
        assert_eq!(queue.take_first(9), [2]);
        assert!(!queue.withdraw(second), "it was sent");
    }
}
