//! Tests of the requests that wait, without a store.

use super::{super::policy::LEAST_BATCH, *};

fn key(number: usize) -> Key {
    Key::new(format!("key {number}")).unwrap()
}

impl<W> SendQueue<W> {
    fn add(&mut self, number: usize, class: Class, to_send: W) -> u64 {
        self.push(key(number), class, Instant::now(), to_send)
    }

    /// Counts a batch of this many as sent now, that have waited for this long.
    fn batch(&mut self, requests: usize, waited: Duration, now: Instant) -> u64 {
        self.sent(true, &vec![(Class::Durable, now - waited); requests], now)
    }
}

fn to_send<W>(taken: Vec<Waiting<W>>) -> Vec<W> {
    taken.into_iter().map(|it| it.to_send).collect()
}

#[test]
fn only_what_is_overtaken_loses_its_place() {
    let (mut queue, start) = (SendQueue::<()>::new(), Instant::now());
    let first = queue.send_at_once(Class::Alone, start);
    let second = queue.send_at_once(Class::Alone, start + RECENT);
    let alone = |queue: &mut SendQueue<()>, at| queue.update_load(at).singles;
    assert_eq!(alone(&mut queue, start + HANGS * 100), 2, "it is slow");
    // The first was sent before the second.
    queue.answered(first, start + HANGS);
    queue.ended(first);
    assert_eq!(alone(&mut queue, start + HANGS * 100), 1);
    let third = queue.send_at_once(Class::Alone, start + RECENT * 2);
    queue.answered(third, start + HANGS);
    queue.ended(third);
    assert_eq!(alone(&mut queue, start + HANGS), 1, "not at once");
    assert_eq!(alone(&mut queue, start + RECENT + HANGS), 0);
    // The second ends after all.
    queue.answered(second, start + HANGS);
    queue.ended(second);
}

#[test]
fn a_refusal_overtakes_nothing() {
    let (mut queue, start) = (SendQueue::<()>::new(), Instant::now());
    queue.send_at_once(Class::Alone, start);
    let refused = queue.send_at_once(Class::Alone, start + RECENT);
    queue.ended(refused);
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
    queue.batch(20, Duration::ZERO, start);
    let load = queue.update_load(start + RECENT);
    let seen = (load.batches, load.recent_batches, load.not_sent_for);
    assert_eq!(seen, (1, 0, RECENT));
    queue.send_at_once(Class::Alone, start + HANGS);
    assert_eq!(not_sent_for(&mut queue, start + HANGS), Duration::ZERO);
}

#[test]
fn what_goes_together_is_of_many_keys() {
    let mut queue = SendQueue::new();
    for number in 0..LEAST_BATCH {
        queue.add(number, Class::Durable, number);
    }
    queue.add(0, Class::Durable, 100);
    queue.add(101, Class::Alone, 101);
    let batch: Vec<_> = (0..LEAST_BATCH).collect();
    assert_eq!(queue.take_batch(LEAST_BATCH).map(to_send), Some(batch));
    assert!(queue.take_batch(LEAST_BATCH).is_none(), "they are few");
    assert_eq!(to_send(queue.take_first(9)), [100, 101], "in their order");
}

#[test]
fn what_must_go_alone_is_taken_past_what_may_go_in_a_batch() {
    let mut queue = SendQueue::new();
    for number in 0..6 {
        let class = [Class::Durable, Class::Alone][number % 2];
        queue.add(number, class, number);
    }
    let load = queue.update_load(Instant::now());
    assert_eq!((load.waiting, load.unbatchable), (6, 3));
    assert_eq!(to_send(queue.take_unbatchable(2)), [1, 3]);
    assert_eq!(to_send(queue.take_first(2)), [0, 2]);
    assert_eq!(to_send(queue.take_unbatchable(2)), [5]);
    assert_eq!(to_send(queue.take_first(2)), [4]);
}

#[test]
fn each_class_has_batches_of_its_own_and_the_oldest_goes_first() {
    let mut queue = SendQueue::new();
    for number in 0..LEAST_BATCH * 2 {
        let class = [Class::Undoable, Class::Durable][number % 2];
        queue.add(number, class, number);
    }
    let every_second = |first: usize| (first..LEAST_BATCH * 2).step_by(2).collect::<Vec<_>>();
    assert_eq!(
        queue.take_batch(LEAST_BATCH).map(to_send),
        Some(every_second(0))
    );
    assert_eq!(
        queue.take_batch(LEAST_BATCH).map(to_send),
        Some(every_second(1))
    );
    assert!(queue.take_first(9).is_empty());
}

#[test]
fn what_goes_in_no_batch_delays_no_group() {
    let (mut queue, start) = (SendQueue::<()>::new(), Instant::now());
    let mut now = start;
    let crowd = |queue: &mut SendQueue<()>, now, took| {
        let numbers = [0; 8].map(|_| queue.send_at_once(Class::Durable, now));
        for number in numbers {
            queue.answered(number, now + took);
            queue.ended(number);
        }
    };
    for _ in 0..40 {
        crowd(&mut queue, now, RECENT);
        now += RECENT;
    }
    let mode = queue.update_load(now).mode;
    assert_eq!(mode, SendMode::Grouped, "it is as fast");
    let sent = queue.send_at_once(Class::Alone, now);
    assert_eq!(queue.update_load(now).recent, 0, "it goes in no batch");
    queue.ended(sent);
    let batch = queue.batch(8, Duration::ZERO, now);
    assert_eq!(queue.update_load(now).recent, 1, "the control");
    assert_eq!(queue.update_load(now + RECENT).recent, 0);
    queue.answered(batch, now);
    let load = queue.update_load(now);
    assert_eq!((load.batches, load.recent), (1, 1), "it still has its slot");
    assert_eq!(queue.at_once(), 0, "its tasks may have come again");
}

#[test]
fn one_of_another_class_does_not_keep_a_batch_waiting() {
    let mut queue = SendQueue::new();
    queue.add(0, Class::Undoable, 0);
    for number in 1..LEAST_BATCH + 2 {
        queue.add(number, Class::Durable, number);
    }
    let sends = queue.send_next(Limits::of(2), LEAST_BATCH, Instant::now());
    let alone: Vec<_> = sends.alone.into_iter().map(|(_, it)| it).collect();
    assert_eq!(alone, [0, 1]);
    let batch = sends.batch.map(|(_, batch)| batch);
    assert_eq!(batch, Some((2..LEAST_BATCH + 2).collect()));
}

#[test]
fn the_time_that_a_request_has_waited_counts() {
    let (mut queue, now) = (SendQueue::<()>::new(), Instant::now());
    let mut seen = Vec::new();
    for _ in 0..100 {
        seen.push(queue.update_load(now).mode);
        // A batch is answered as fast as single requests, but its requests have waited for as long before.
        let waited = match seen.last() {
            Some(SendMode::Grouped) => RECENT,
            _ => Duration::ZERO,
        };
        let batch = queue.batch(8, waited, now);
        queue.answered(batch, now + RECENT);
        queue.ended(batch);
    }
    assert_eq!(seen.last(), Some(&SendMode::AtOnce));
    assert!(seen.contains(&SendMode::Grouped), "it was tried");
}

#[test]
fn what_is_withdrawn_is_never_sent() {
    let mut queue = SendQueue::new();
    let [first, second] = [1, 2].map(|it| queue.add(it, Class::Durable, it));
    assert!(queue.withdraw(first) && !queue.withdraw(first));
    assert_eq!(to_send(queue.take_first(9)), [2]);
    assert!(!queue.withdraw(second), "it was sent");
}
