//! Histories of a job that is done once per tick. Each lease of a run has a name for its tick.

use super::*;
use crate::history::Time;

fn began(lease: &str, tick: i64, at: Time) -> Event {
    let lease = lease.to_owned();
    Event::Began { tick, lease, at }
}

fn done(tick: i64, got: Time) -> Event {
    Event::TickDone { tick, got }
}

fn told(asked: i64, (lease, done): (&str, i64), (sent, got): (Time, Time)) -> Event {
    Event::ToldDone {
        asked,
        done,
        lease: lease.to_owned(),
        sent,
        got,
    }
}

/// The number of violations. All of them must concern ticks.
fn wrong(history: &[Event]) -> usize {
    let found = super::super::all(history);
    assert!(found.iter().all(|it| it.kind == Kind::Ticks), "{found:?}");
    assert_eq!(found, ticks(history).violations);
    found.len()
}

#[test]
fn ticks_are_done_one_after_the_other() {
    let history = [
        began("a", 1, 10),
        done(1, 20),
        told(1, ("a", 1), (15, 19)),
        told(0, ("a", 1), (21, 22)),
        // A tick whose run failed, or has no known answer, may be done again.
        began("b", 3, 30),
        began("c", 3, 40),
        done(3, 50),
        told(2, ("c", 3), (51, 52)),
    ];
    let judged = ticks(&history);
    assert_eq!(judged.violations, Violations::new());
    assert_eq!((judged.done, judged.runs), (2, 3));
    assert_eq!(super::super::operations(&history), 3);
}

#[test]
fn a_run_after_its_tick_was_done_is_seen() {
    for (tick, at, found) in [
        (5, 21, 1),
        (4, 21, 1),
        (6, 21, 0),
        // A run that began before may have lost its lease.
        (5, 20, 0),
        (5, 15, 0),
    ] {
        let history = [began("a", 5, 10), done(5, 20), began("b", tick, at)];
        assert_eq!(wrong(&history), found, "{tick} at {at}");
    }
    // A tick is also done if only another client was told so.
    let history = |at| {
        [
            began("a", 5, 10),
            told(5, ("a", 5), (11, 20)),
            began("b", 5, at),
        ]
    };
    assert_eq!([20, 21].map(|at| wrong(&history(at))), [0, 1]);
    // The newest tick counts, whenever it was recorded.
    let history = [
        began("b", 5, 40),
        done(6, 30),
        done(4, 35),
        began("a", 6, 10),
        began("c", 4, 10),
    ];
    assert_eq!(wrong(&history), 1);
}

#[test]
fn a_tick_that_a_server_undid_may_be_run_again() {
    let history = |risk: (Time, Time)| {
        let (from, to) = risk;
        vec![
            began("a", 5, 10),
            told(5, ("a", 5), (11, 20)),
            Event::ReadsAtRisk { from, to },
            began("b", 5, 21),
        ]
    };
    assert_eq!(wrong(&history((20, 30))), 0);
    assert_eq!(wrong(&history((0, 19))), 1);
    // On MongoDB an answer says so when a majority has it.
    let mut on_mongodb = history((20, 30));
    on_mongodb[2] = Event::ReleasesAtRisk {
        from: 20,
        to: 30,
        ttl: 5,
    };
    assert_eq!(wrong(&on_mongodb), 1);
    // The release that wrote it was answered, so it was not undone.
    let mut acknowledged = history((20, 30));
    acknowledged.push(done(5, 40));
    assert_eq!(wrong(&acknowledged), 1);
}

#[test]
fn a_tick_that_is_done_twice_is_seen() {
    let history = [
        began("a", 5, 10),
        began("b", 5, 15),
        done(5, 20),
        done(5, 18),
    ];
    assert_eq!(wrong(&history), 1);
}

#[test]
fn a_tick_that_is_not_done_is_not_refused() {
    let history = |asked| [began("a", 5, 10), told(asked, ("a", 5), (11, 12))];
    assert_eq!([4, 5, 6].map(|asked| wrong(&history(asked))), [0, 0, 1]);
}

#[test]
fn what_is_done_is_not_told_as_older() {
    let runs = [began("a", 5, 10), began("b", 6, 11)];
    let read = |known: Event, sent| {
        let mut history = runs.to_vec();
        history.extend([known, told(4, ("a", 5), (sent, 40))]);
        wrong(&history)
    };
    for known in [done(6, 20), told(4, ("b", 6), (12, 20))] {
        // A request that was sent before may have been answered late.
        assert_eq!([20, 21].map(|sent| read(known.clone(), sent)), [0, 1]);
    }
}

#[test]
fn what_nobody_has_begun_is_not_done() {
    let history = |run, got| [run, told(5, ("a", 5), (1, got))];
    for (run, got, found) in [
        (began("a", 5, 10), 10, 0),
        // In addition, the run begins after its tick is known to be done.
        (began("a", 5, 10), 9, 2),
        (began("a", 4, 10), 20, 1),
        (began("b", 5, 10), 20, 1),
    ] {
        assert_eq!(wrong(&history(run.clone(), got)), found, "{run:?}, {got}");
    }
}
