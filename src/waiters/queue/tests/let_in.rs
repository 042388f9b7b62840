//! Readers behind a granted one send their requests together.

use super::*;

/// Three readers behind one that was granted the key, and a writer and a reader behind them.
fn readers() -> Waiting {
    let mut waiting = Waiting::of_kinds(&[Shared, Shared, Shared, Shared, Exclusive, Shared]);
    let start = waiting.start;
    waiting.ask(start);
    waiting.refuse(LeaseId::random(), start);
    waiting.queue.plan_request(&waiting.turns[0]);
    waiting.ask(start);
    waiting.grant(0);
    waiting
}

#[test]
fn readers_behind_a_granted_one_ask_at_once_but_for_the_last_which_ends_the_place() {
    let mut waiting = readers();
    let start = waiting.start;
    for reader in [1, 2] {
        assert_eq!(waiting.step(reader, start), Step::Ask);
        assert!(
            waiting
                .queue
                .plan_request(&waiting.turns[reader])
                .keeps_place
        );
        waiting.queue.ask(&waiting.turns[reader].clone(), start);
        assert_eq!(waiting.step(reader, start), Step::Wait(None));
    }
    for other in [3, 4, 5] {
        assert_eq!(waiting.step(other, start), Step::Wait(None), "{other}");
    }
    let offered = waiting
        .queue
        .offer(LeaseId::random(), HandoffStreak::default());
    assert!(offered.is_none(), "requests are under way");
    waiting.grant(2);
    assert_eq!(waiting.step(3, start), Step::Wait(None), "one is left");
    waiting.grant(1);
    assert_eq!(waiting.step(3, start), Step::Ask);
    assert!(!waiting.queue.plan_request(&waiting.turns[3]).keeps_place);
}

#[test]
fn who_is_let_in_and_refused_asks_again_after_the_others_were_answered() {
    for leaves in [false, true] {
        let mut waiting = readers();
        let (start, readers) = (waiting.start, [1, 2].map(|at| waiting.turns[at].clone()));
        for reader in &readers {
            waiting.queue.plan_request(reader);
            waiting.queue.ask(reader, start);
        }
        let refused = held(LeaseId::random());
        waiting
            .queue
            .refused(&readers[0], refused, Standing::InTurn, false, start);
        let beside = start + retry::LONGEST_PAUSE;
        let step = waiting.step(1, start);
        assert_eq!(step, Step::Wait(Some(beside)), "another asks");
        // The answer to the other request may be lost.
        assert_eq!(waiting.step(1, beside), Step::Ask);
        let is_notified = || readers[0].notified().now_or_never().is_some();
        is_notified();
        assert!(!is_notified());
        if leaves {
            waiting.queue.remove(&readers[1], start);
        } else {
            waiting.queue.failed(&readers[1], failure(), true, start);
        }
        assert!(is_notified());
        assert_eq!(waiting.step(1, start), Step::Ask);
        assert!(waiting.queue.plan_request(&readers[0]).keeps_place);
    }
}

/// A reader that failed and whose time is over asks while another one is let in, and is granted the key.
#[test]
fn a_reader_that_is_let_in_already_is_not_let_in_again() {
    let mut waiting = readers();
    let start = waiting.start;
    let [one, two] = [1, 2].map(|at| waiting.turns[at].clone());
    for reader in [&one, &two] {
        waiting.queue.plan_request(reader);
        waiting.queue.ask(reader, start);
    }
    waiting.queue.failed(&one, failure(), true, start);
    assert_ne!(waiting.step(1, start), Step::Ask);
    let over = waiting.queue.step(&one, Some(start), None, start);
    assert_eq!(over, Step::Ask);
    waiting.queue.plan_request(&one);
    waiting.queue.ask(&one, start);
    waiting.grant(1);
    assert_eq!(waiting.step(2, start), Step::Wait(None), "it has asked");
    assert_eq!(waiting.step(3, start), Step::Wait(None));
    waiting.grant(2);
    assert_eq!(waiting.step(3, start), Step::Ask);
    assert!(!waiting.queue.plan_request(&waiting.turns[3]).keeps_place);
}

/// A waiter can be granted the key by a request from before it was in the queue.
#[test]
fn a_grant_to_a_waiter_that_is_not_the_first_changes_nothing_for_the_first() {
    let mut waiting = readers();
    let start = waiting.start;
    for reader in [1, 2] {
        let reader = waiting.turns[reader].clone();
        waiting.queue.ask(&reader, start);
    }
    waiting.grant(1);
    waiting.grant(2);
    let last = waiting.turns[3].clone();
    assert!(!waiting.queue.plan_request(&last).keeps_place);
    waiting.queue.ask(&last, start);
    waiting.grant(5);
    assert_eq!(waiting.step(3, start), Step::Wait(None), "it has asked");
    assert_eq!(waiting.step(4, start), Step::Wait(None), "it is a writer");
}

#[test]
fn many_readers_are_let_in_by_groups() {
    const READERS: usize = 100;
    let mut waiting = Waiting::of_kinds(&[Shared; READERS]);
    let start = waiting.start;
    let (mut granted, mut rounds) = (0, 0);
    while granted < READERS {
        let ask = |at: &usize| waiting.step(*at, start) == Step::Ask;
        let asking: Vec<_> = (granted..READERS).filter(ask).collect();
        assert!((1..=32).contains(&asking.len()), "{}", asking.len());
        for at in &asking {
            let turn = waiting.turns[*at].clone();
            let is_last = *at == READERS - 1;
            assert_eq!(waiting.queue.plan_request(&turn).keeps_place, !is_last);
            waiting.queue.ask(&turn, start);
        }
        for at in &asking {
            waiting.grant(*at);
        }
        (granted, rounds) = (granted + asking.len(), rounds + 1);
    }
    // The first, and then 32 and one again and again.
    assert_eq!(rounds, 7);
}

#[test]
fn the_failures_of_readers_that_are_let_in_together_do_not_count() {
    let mut waiting = readers();
    let start = waiting.start;
    for reader in [1, 2] {
        let reader = waiting.turns[reader].clone();
        waiting.queue.ask(&reader, start);
        assert_eq!(waiting.queue.failed(&reader, failure(), true, start).0, 0);
    }
    let first = waiting.turns[1].clone();
    assert_eq!(waiting.step(1, start), Step::Ask);
    waiting.queue.ask(&first, start);
    assert_eq!(waiting.queue.failed(&first, failure(), true, start).0, 1);
}

/// Answers of the store may come when the time limit of their call is over.
#[test]
fn a_late_answer_to_a_waiter_that_is_not_the_first_changes_nothing_for_the_first() {
    let mut waiting = readers();
    let (start, readers) = (waiting.start, [1, 2].map(|at| waiting.turns[at].clone()));
    for reader in &readers {
        waiting.queue.ask(reader, start);
        waiting.queue.failed(reader, failure(), true, start);
    }
    waiting.queue.ask(&readers[0], start);
    for _ in 0..3 {
        assert_eq!(
            waiting.queue.failed(&readers[1], failure(), true, start).0,
            0
        );
        let late = held(LeaseId::random());
        waiting
            .queue
            .refused(&readers[1], late, Standing::InTurn, false, start);
        assert_eq!(waiting.step(1, start), Step::Wait(None), "it has asked");
        let offered = waiting
            .queue
            .offer(LeaseId::random(), HandoffStreak::default());
        assert!(offered.is_none(), "a request is under way");
    }
    assert_eq!(
        waiting.queue.failed(&readers[0], failure(), true, start).0,
        1
    );
}

#[test]
fn a_late_grant_of_a_shared_lease_wakes_the_first() {
    for (mode, asks) in [(Mode::Shared, true), (Mode::Exclusive, false)] {
        let mut waiting = Waiting::of_kinds(&[Shared, Shared]);
        let (start, other) = (waiting.start, waiting.turns[1].clone());
        waiting.ask(start);
        waiting.refuse(LeaseId::random(), start);
        assert_ne!(waiting.step(0, start), Step::Ask);
        let late = granted(LeaseId::random(), mode);
        waiting.queue.granted(&other, late, start);
        assert_eq!(waiting.step(0, start) == Step::Ask, asks, "{mode:?}");
    }
}

/// Four waiters of this kind, of which the first is granted this lease. Returns what the others do then.
fn steps_after(kind: WaiterKind, granted: Granted) -> [Step; 3] {
    let mut waiting = Waiting::of_kinds(&[kind; 4]);
    let (start, first) = (waiting.start, waiting.turns[0].clone());
    assert!(waiting.queue.plan_request(&first).keeps_place);
    waiting.ask(start);
    waiting.queue.granted(&first, granted, start);
    waiting.queue.remove(&first, start);
    [1, 2, 3].map(|waiter| waiting.step(waiter, start))
}

const ONE_ASKS: [Step; 3] = [Step::Ask, Step::Wait(None), Step::Wait(None)];

/// The request that takes an offer comes before the places of other processes, and those behind it do not.
#[test]
fn a_handover_lets_nobody_in() {
    let from = Some((LeaseId::random(), HandoffStreak::default()));
    let granted = Granted {
        in_place_of: from,
        ..granted(LeaseId::random(), Mode::Shared)
    };
    assert_eq!(steps_after(Shared, granted), ONE_ASKS);
}

/// The queue does not know how many permits are free.
#[test]
fn permits_are_asked_for_one_after_the_other() {
    let granted = granted(LeaseId::random(), Mode::Permits);
    assert_eq!(steps_after(Permits, granted), ONE_ASKS);
}

/// A task that waited elsewhere begins to wait here after others that began later.
#[test]
fn who_began_first_comes_next_but_for_the_first_and_those_that_are_let_in() {
    for (mut waiting, before) in [(readers(), 3), (Waiting::of(3), 1)] {
        let (start, late) = (waiting.start, Arc::new(Notify::new()));
        let began = start - MOMENT;
        waiting
            .queue
            .push(late.clone(), Exclusive, began, Weak::new());
        for turn in waiting.turns.clone().iter().take(before) {
            assert!(!waiting.queue.is_first(&late));
            waiting.queue.remove(turn, start);
        }
        assert!(waiting.queue.is_first(&late), "{before}");
    }
}
