//! Histories of documents. Unless stated otherwise, the document is the guarded one of the key `k`.

use super::*;

fn read(fence: i64, (number, writer): (i64, i64), got: Time) -> Event {
    Event::DocumentRead {
        key: "k".to_owned(),
        guarded: true,
        fence,
        content: Content {
            number,
            writer,
            over: 0,
        },
        got,
    }
}

fn asked(fence: i64, number: i64, sent: Time) -> Event {
    Event::WriteAsked {
        key: "k".to_owned(),
        guarded: true,
        fence,
        number,
        sent,
    }
}

fn answered(fence: i64, written: bool, got: Time) -> Event {
    Event::WriteAnswered {
        key: "k".to_owned(),
        guarded: true,
        fence,
        written,
        got,
    }
}

/// The same history for the document without a guard.
fn without_a_guard(mut history: Vec<Event>) -> Vec<Event> {
    for event in &mut history {
        match event {
            Event::DocumentRead { guarded, .. }
            | Event::WriteAsked { guarded, .. }
            | Event::WriteAnswered { guarded, .. } => *guarded = false,
            _ => {}
        }
    }
    history
}

/// The number of violations. All of them must concern the guard.
fn wrong(history: &[Event]) -> usize {
    let found = super::super::all(history);
    assert!(found.iter().all(|it| it.kind == Kind::Guarded), "{found:?}");
    assert_eq!(found, guarded(history).violations);
    found.len()
}

#[test]
fn holders_that_write_one_after_the_other_are_right() {
    let mut history = vec![
        read(5, (0, 0), 10),
        asked(5, 1, 11),
        answered(5, true, 12),
        read(7, (1, 5), 20),
        // This holder was paused, and is refused.
        asked(7, 2, 40),
        read(9, (1, 5), 30),
        answered(7, false, 41),
        asked(9, 2, 31),
        answered(9, true, 32),
    ];
    assert_eq!(wrong(&history), 0);
    let judged = guarded(&history);
    assert_eq!((judged.written, judged.refused), (2, 1));
    assert_eq!(judged.late_without, 0);
    // The histories of the clients may be read in any order.
    history.rotate_left(3);
    assert_eq!(guarded(&history), judged);
    history.push(read(i64::MAX, (2, 9), 99));
    assert_eq!(wrong(&history), 0);
}

#[test]
fn a_late_write_that_was_acknowledged_is_seen() {
    let history = |sent| {
        vec![
            read(5, (0, 0), 10),
            read(7, (0, 0), 20),
            asked(5, 1, sent),
            answered(5, true, 40),
        ]
    };
    let late_without = |sent| guarded(&without_a_guard(history(sent))).late_without;
    // The read alone is the claim of 7, and shows that 5 had not written before it.
    assert_eq!((wrong(&history(21)), late_without(21)), (2, 1));
    // A write that was sent before the claim may have been carried out before 7 read, but not with a guard.
    assert_eq!((wrong(&history(20)), late_without(20)), (1, 0));
    let after_a_write = vec![
        asked(7, 1, 20),
        answered(7, true, 30),
        asked(5, 1, 31),
        answered(5, true, 40),
    ];
    assert_eq!(wrong(&after_a_write), 1);
    // A refusal does not show that its fence wrote anything.
    let mut after_a_refusal = after_a_write;
    after_a_refusal[1] = answered(7, false, 30);
    assert_eq!(wrong(&after_a_refusal), 0);
}

#[test]
fn a_write_that_the_document_shows_to_be_late_is_seen() {
    for (over, late) in [(7, 1), (4, 0)] {
        let mut end = read(9, (1, 5), 50);
        if let Event::DocumentRead { content, .. } = &mut end {
            content.over = over;
        }
        // The write has no answer.
        let mut history = vec![read(5, (0, 0), 10), asked(5, 1, 11), end];
        assert_eq!(wrong(&history), late);
        // The same write counts only once.
        history.push(read(7, (0, 0), 10));
        history.push(answered(5, true, 60));
        let history = without_a_guard(history);
        assert_eq!(guarded(&history).late_without, 1);
        assert_eq!(wrong(&history), 0);
    }
}

#[test]
fn a_write_that_is_lost_is_seen() {
    let after = |answer: Option<bool>, read_next| {
        let mut history = vec![read(5, (3, 0), 10), asked(5, 4, 11)];
        history.extend(answer.map(|written| answered(5, written, 12)));
        history.push(read(7, read_next, 20));
        // The first read is wrong, because it shows a document that was written before the history began. So one
        // violation is subtracted.
        wrong(&history) - 1
    };
    let (old, new) = ((3, 0), (4, 5));
    assert_eq!([after(Some(true), new), after(Some(true), old)], [0, 1]);
    assert_eq!([after(Some(false), new), after(Some(false), old)], [1, 0]);
    assert_eq!([after(None, new), after(None, old)], [0, 0]);
    // The writer is not in the history, or the number is a different one.
    for other in [(4, 6), (5, 5), (3, 5)] {
        assert_eq!(after(None, other), 1);
    }
}

#[test]
fn an_unanswered_write_that_comes_after_a_claim_is_seen() {
    let mut history = vec![
        read(5, (0, 0), 10),
        asked(5, 1, 11),
        read(7, (0, 0), 20),
        read(9, (1, 5), 30),
    ];
    assert_eq!(wrong(&history), 1);
    // The write came before the claim of 7.
    history[2] = read(7, (1, 5), 20);
    assert_eq!(wrong(&history), 0);
}
