//! Tests of the queue of a key, without a store and without waiting.

mod first;
mod let_in;

use chrono::{DateTime, Utc};

use WaiterKind::{Barging, Exclusive, Permits, Shared};
use futures::FutureExt;

use super::*;
use crate::{
    model::{Fence, Holder, Key, MAX_PLACES},
    waiters::Standing,
};

const TTL: Duration = Duration::from_secs(30);
const MOMENT: Duration = Duration::from_millis(1);

struct Waiting {
    queue: KeyQueue,
    turns: Vec<Arc<Notify>>,
    start: Instant,
}

impl Waiting {
    /// A queue with this number of waiters for an exclusive lease.
    fn of(waiters: usize) -> Self {
        Self::of_kinds(&vec![WaiterKind::Exclusive; waiters])
    }

    fn of_kinds(kinds: &[WaiterKind]) -> Self {
        let start = Instant::now();
        let turns: Vec<_> = kinds.iter().map(|_| Arc::new(Notify::new())).collect();
        let mut queue = KeyQueue::new(start);
        for (turn, kind) in turns.iter().zip(kinds) {
            queue.push(turn.clone(), *kind, start, Weak::new());
        }
        Self {
            queue,
            turns,
            start,
        }
    }

    fn step(&self, waiter: usize, at: Instant) -> Step {
        self.queue.step(&self.turns[waiter], None, None, at)
    }

    /// The first waiter sends a request.
    fn ask(&mut self, at: Instant) -> Option<HandoffOffer> {
        self.queue.ask(&self.turns[0].clone(), at)
    }

    /// When the first waiter sends a request.
    fn due(&self) -> Instant {
        match self.step(0, self.start) {
            Step::Wait(Some(at)) => at,
            step => panic!("{step:?}"),
        }
    }

    /// The waiter is granted a shared lease, and leaves.
    fn grant(&mut self, waiter: usize) {
        let turn = self.turns[waiter].clone();
        let shared = granted(LeaseId::random(), Mode::Shared);
        self.queue.granted(&turn, shared, self.start);
        self.queue.remove(&turn, self.start);
    }

    fn refuse(&mut self, lease: LeaseId, at: Instant) {
        let first = self.turns[0].clone();
        self.queue
            .refused(&first, held(lease), Standing::InTurn, false, at);
    }
}

fn now() -> DateTime<Utc> {
    "2026-01-01T12:00:00Z".parse().unwrap()
}

fn held(lease: LeaseId) -> Held {
    let now = now();
    let holder = Holder::exclusive(lease, "they".into(), Fence::new(7), now, now + TTL);
    Held::new(Key::new("key").unwrap(), vec![holder], now)
}

fn granted(lease: LeaseId, mode: Mode) -> Granted {
    Granted {
        lease,
        mode,
        remaining: TTL,
        is_in_turn: true,
        ends_place: true,
        refusal: None,
        in_place_of: None,
    }
}

fn failure() -> Error {
    Error::TimedOut {
        store: "the store".to_owned(),
        operation: "acquire",
        limit: TTL,
    }
}

#[test]
fn the_first_asks_and_the_others_wait() {
    let mut waiting = Waiting::of(2);
    let start = waiting.start;
    assert_eq!(waiting.step(0, start), Step::Ask);
    assert_eq!(waiting.step(1, start), Step::Wait(None));
    assert!(waiting.ask(start).is_none());
    assert_eq!(waiting.step(0, start), Step::Wait(None), "it has asked");
    waiting.refuse(LeaseId::random(), start);
    let due = waiting.due();
    assert!(due > start && due < start + retry::LONGEST_PAUSE);
    assert_eq!(waiting.step(0, due), Step::Ask);
    // The next waiter does not wait for an answer that is not reported to the queue.
    waiting.ask(start);
    waiting.queue.remove(&waiting.turns[0].clone(), due);
    assert_eq!(waiting.step(1, due), Step::Ask);
}

#[test]
fn news_while_a_request_is_under_way_count_after_its_refusal() {
    let mut waiting = Waiting::of(1);
    let start = waiting.start;
    let lease = LeaseId::random();
    waiting.ask(start);
    waiting.queue.released(lease);
    waiting.refuse(lease, start);
    assert_eq!(waiting.step(0, start), Step::Ask);
    // Without a report it pauses.
    waiting.ask(start);
    waiting.refuse(lease, start);
    assert_ne!(waiting.step(0, start), Step::Ask);
}

#[test]
fn what_the_store_tells_is_ignored_while_a_lease_of_the_queue_holds_the_key() {
    let mut waiting = Waiting::of(1);
    let (start, lease) = (waiting.start, LeaseId::random());
    waiting.ask(start);
    let turn = waiting.turns[0].clone();
    let granted = granted(lease, Mode::Exclusive);
    waiting.queue.granted(&turn, granted, start);
    let due = waiting.due();
    waiting.queue.wake_unless_held_locally();
    assert_eq!(waiting.due(), due, "the lease is here");
    waiting.queue.released(lease);
    waiting.ask(start);
    waiting.refuse(lease, start);
    waiting.queue.wake_unless_held_locally();
    assert_eq!(waiting.step(0, start), Step::Ask);
}

/// A permit may become free while this process has others.
#[test]
fn each_release_of_permits_wakes_the_queue() {
    let mut waiting = Waiting::of_kinds(&[Permits, Permits]);
    let start = waiting.start;
    let (first, second) = (waiting.turns[0].clone(), waiting.turns[1].clone());
    waiting.queue.ask(&first, start);
    let granted = granted(LeaseId::random(), Mode::Permits);
    let lease = granted.lease;
    waiting.queue.granted(&first, granted, start);
    waiting.queue.remove(&first, start);
    let released: [fn(&mut KeyQueue); 2] = [
        |queue| queue.released(LeaseId::random()),
        |queue| queue.freed(None),
    ];
    for release in released {
        waiting.queue.ask(&second, start);
        let mut holder = held(lease).holders()[0].clone();
        holder.mode = Mode::Permits;
        let held = Held::new(Key::new("key").unwrap(), vec![holder], now());
        waiting
            .queue
            .refused(&second, held, Standing::InTurn, false, start);
        assert_ne!(waiting.step(1, start), Step::Ask);
        release(&mut waiting.queue);
        assert_eq!(waiting.step(1, start), Step::Ask);
    }
}

/// All places of the key are taken.
#[test]
fn a_process_without_a_place_does_not_ask_when_the_key_is_free() {
    let mut waiting = Waiting::of(1);
    let (start, first) = (waiting.start, waiting.turns[0].clone());
    let held = held(LeaseId::random()).behind(MAX_PLACES, Duration::ZERO);
    waiting.ask(start);
    waiting
        .queue
        .refused(&first, held, Standing::InTurn, true, start);
    for next in [Some(&[WaiterId::random()][..]), None] {
        waiting.queue.freed(next);
        assert_ne!(waiting.step(0, start), Step::Ask);
    }
}

#[test]
fn a_process_that_does_not_come_next_does_not_ask() {
    let mut waiting = Waiting::of(1);
    let start = waiting.start;
    let me = waiting.queue.plan_request(&waiting.turns[0]).waiter;
    let other = WaiterId::random();
    waiting.queue.freed(Some(&[other]));
    assert_eq!(waiting.step(0, start), Step::Ask, "it has no place yet");
    for (next, ahead, asks) in [
        (Some(vec![other]), 0, false),
        (Some(vec![other, me]), 1, true),
        (None, 1, false),
        (None, 0, true),
    ] {
        waiting.ask(start);
        let held = held(LeaseId::random()).behind(ahead, Duration::ZERO);
        waiting.queue.refused(
            &waiting.turns[0].clone(),
            held,
            Standing::InTurn,
            false,
            start,
        );
        assert_ne!(waiting.step(0, start), Step::Ask);
        waiting.queue.freed(next.as_deref());
        let step = waiting.step(0, start);
        assert_eq!(step == Step::Ask, asks, "{next:?} {ahead}");
    }
}

/// All three that wait for permits are next to each other, and this process is the last of them.
#[test]
fn of_those_that_wait_for_permits_as_many_ask_as_there_is_room_for() {
    let holder = |mode, permits| {
        let mut holder = held(LeaseId::random()).holders()[0].clone();
        (holder.mode, holder.permits) = (mode, permits);
        holder
    };
    // The permits of the holders at the last refusal, and after how many releases this process asks.
    for (holders, asks_after) in [
        (vec![holder(Mode::Permits, 1); 5], 3),
        (vec![holder(Mode::Permits, 1), holder(Mode::Permits, 2)], 2),
        (vec![holder(Mode::Permits, 3)], 1),
        (vec![holder(Mode::Exclusive, 1)], 1),
        (vec![], 1),
    ] {
        let mut waiting = Waiting::of_kinds(&[Permits]);
        let (start, first) = (waiting.start, waiting.turns[0].clone());
        let me = waiting.queue.plan_request(&first).waiter;
        let next = [WaiterId::random(), WaiterId::random(), me];
        // A release before the request was sent makes no room after its refusal.
        waiting.queue.freed(Some(&next[..1]));
        waiting.ask(start);
        let held = Held::new(Key::new("key").unwrap(), holders, now());
        let held = held.behind(2, Duration::ZERO);
        waiting
            .queue
            .refused(&first, held, Standing::InTurn, true, start);
        for releases in 1..=3 {
            // A report has the processes only if they have changed.
            waiting.queue.freed((releases == 1).then_some(&next));
            let asks = waiting.step(0, start) == Step::Ask;
            assert_eq!(asks, releases >= asks_after, "{releases} {asks_after}");
        }
    }
}

#[test]
fn an_offer_is_taken_by_the_next_request_or_taken_back() {
    let mut waiting = Waiting::of(1);
    let (start, lease) = (waiting.start, LeaseId::random());
    let offer = |queue: &mut KeyQueue| queue.offer(lease, HandoffStreak::default());
    waiting.ask(start);
    assert!(offer(&mut waiting.queue).is_none(), "one is under way");
    waiting.refuse(lease, start);
    let (mut outcome, _) = offer(&mut waiting.queue).unwrap();
    assert_eq!(waiting.step(0, start), Step::Ask);
    assert!(waiting.queue.take_back(lease));
    assert_eq!(outcome.try_recv(), Ok(HandoffOutcome::NotHandedOver));
    assert!(waiting.ask(start).is_none());
    waiting.refuse(lease, start);
    let _outcome = offer(&mut waiting.queue).unwrap();
    assert_eq!(waiting.ask(start).map(|offer| offer.from()), Some(lease));
    assert!(!waiting.queue.take_back(lease), "it was taken");
}

#[test]
fn the_last_request_is_left_out_if_another_waiter_goes_on_and_the_last_answer_is_fresh() {
    for (waiters, age, step) in [
        (2, MOMENT, Step::GiveUp),
        (1, MOMENT, Step::Ask),
        (2, retry::LONGEST_PAUSE / 2, Step::Ask),
    ] {
        let mut waiting = Waiting::of(waiters);
        let start = waiting.start;
        waiting.ask(start);
        waiting.refuse(LeaseId::random(), start);
        let look = |waiting: &Waiting, waiter: usize| {
            let turn = &waiting.turns[waiter];
            waiting
                .queue
                .step(turn, Some(start + age), None, start + age)
        };
        assert_eq!(look(&waiting, 0), step);
        if waiters > 1 {
            assert_eq!(look(&waiting, 1), Step::GiveUp, "it is not the first");
            waiting.queue.wake();
            assert_eq!(look(&waiting, 0), Step::Ask, "the key may be free");
        }
    }
}

#[test]
fn all_give_up_after_a_final_failure_and_an_answer_ends_it() {
    let mut waiting = Waiting::of(2);
    let (start, first) = (waiting.start, waiting.turns[0].clone());
    for times in 1..=3 {
        waiting.ask(start);
        assert_eq!(
            waiting.queue.failed(&first, failure(), true, start),
            (times, start)
        );
    }
    let look = |waiting: &Waiting, at| {
        let turn = &waiting.turns[1];
        waiting.queue.step(turn, None, Some(start + TTL), at)
    };
    assert_eq!(look(&waiting, start + TTL), Step::Wait(None));
    waiting.queue.give_up();
    assert_eq!(look(&waiting, start), Step::Wait(None), "it may wait on");
    assert_eq!(look(&waiting, start + TTL), Step::GiveUp);
    waiting.ask(start);
    waiting.refuse(LeaseId::random(), start);
    assert_eq!(look(&waiting, start + TTL), Step::Wait(None));
    waiting.ask(start);
    assert_eq!(waiting.queue.failed(&first, failure(), true, start).0, 1);
}

#[test]
fn a_process_that_is_told_of_releases_asks_less_often() {
    let due = |reports_freed| {
        let mut waiting = Waiting::of(1);
        let start = waiting.start;
        waiting.ask(start);
        let held = held(LeaseId::random()).behind(2, Duration::ZERO);
        waiting.queue.refused(
            &waiting.turns[0].clone(),
            held,
            Standing::InTurn,
            reports_freed,
            start,
        );
        waiting.due() - start
    };
    assert!(due(true) > 4 * due(false), "{:?}", [due(true), due(false)]);
}

/// Otherwise a process that waits behind many readers, of which some leave all the time, would ask all the time.
#[test]
fn a_request_because_holders_left_does_not_make_later_pauses_shorter_or_longer() {
    for before in [0, 20] {
        let mut waiting = Waiting::of(1);
        let (start, first) = (waiting.start, waiting.turns[0].clone());
        let oldest = LeaseId::random();
        let mut refuse = |readers: usize| {
            let reader = |lease| {
                let mut reader = held(lease).holders()[0].clone();
                reader.mode = Mode::Shared;
                reader
            };
            let others = (1..readers).map(|_| reader(LeaseId::random()));
            let readers = std::iter::once(reader(oldest)).chain(others).collect();
            let refused = Held::new(Key::new("key").unwrap(), readers, now());
            waiting.queue.ask(&first, start);
            waiting
                .queue
                .refused(&first, refused, Standing::InTurn, false, start);
            waiting.due() - start
        };
        for _ in 0..before {
            refuse(20);
        }
        let usual = refuse(20);
        for left in (10..20).rev() {
            assert!(refuse(left) < MOMENT * 5);
        }
        let after = refuse(10);
        assert!(
            after < usual * 5 && usual < after * 5,
            "{usual:?} {after:?}"
        );
    }
}
