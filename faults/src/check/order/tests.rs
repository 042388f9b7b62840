//! Histories of processes that wait. Times are in milliseconds. At the beginning of each history, the key has a holder.

use super::*;

#[derive(Clone)]
struct History(Vec<Event>);

/// Who asks, and how much of the key it asks for.
#[derive(Clone, Copy)]
struct Ask {
    waiter: Option<&'static str>,
    claim: Claim,
    overtakes: bool,
}

const A: Ask = Ask {
    waiter: Some("a"),
    claim: Claim::All,
    overtakes: false,
};
const B: Ask = Ask {
    waiter: Some("b"),
    ..A
};

fn reads(ask: Ask) -> Ask {
    let claim = Claim::OneOf(1_000);
    Ask { claim, ..ask }
}

fn at(millis: Time) -> Time {
    millis * 1_000
}

impl History {
    fn new() -> Self {
        let first = Ask { waiter: None, ..A };
        Self(Vec::new()).granted(first, 1, (0, 1))
    }

    /// Adds a request for a new lease.
    fn asked(mut self, ask: Ask, sent: Time) -> Self {
        let request = self.0.len() as u64;
        self.0.push(Event::Asked {
            request,
            key: "k".to_owned(),
            lease: format!("lease-{request}"),
            waiter: ask.waiter.map(str::to_owned),
            claim: ask.claim,
            overtakes: ask.overtakes,
            fences: 1,
            sent: at(sent),
        });
        self
    }

    fn answered(mut self, answer: Answer, got: Time) -> Self {
        self.0.push(Event::Answered {
            request: self.0.len() as u64 - 1,
            answer,
            got: at(got),
        });
        self
    }

    fn granted(self, ask: Ask, fence: i64, (sent, got): (Time, Time)) -> Self {
        self.asked(ask, sent)
            .answered(Answer::Granted { fence }, got)
    }

    fn refused(self, ask: Ask, (sent, got): (Time, Time), until: Time) -> Self {
        let (held, until) = (at(sent), at(until));
        self.asked(ask, sent)
            .answered(Answer::Refused { held, until }, got)
    }

    fn then(mut self, event: Event) -> Self {
        self.0.push(event);
        self
    }

    /// How many orders are judged, and how many of them are violated.
    fn judged(&self) -> (usize, usize) {
        let orders = orders(&self.0);
        (orders.judged, orders.violations.len())
    }
}

/// A history in which the first process waits before the second one asks.
fn a_waits() -> History {
    History::new().refused(A, (10, 11), 600)
}

#[test]
fn an_order_is_kept() {
    let history = a_waits()
        .refused(B, (20, 21), 600)
        .granted(A, 2, (50, 51))
        .granted(B, 3, (60, 61));
    assert_eq!(history.judged(), (1, 0));
    // Both requests were in flight at the same time, and the fences show which was granted first.
    let history = a_waits().granted(B, 3, (20, 80)).granted(A, 2, (50, 90));
    assert_eq!(history.judged(), (1, 0));
}

#[test]
fn an_order_is_broken() {
    let history = a_waits()
        .refused(B, (20, 21), 600)
        .granted(B, 2, (50, 51))
        .granted(A, 3, (60, 61));
    assert_eq!(history.judged(), (1, 1));
    // The first process is never granted the key.
    assert_eq!(a_waits().granted(B, 2, (50, 51)).judged(), (1, 1));
    // A process that does not wait may not come first either.
    let once = Ask { waiter: None, ..B };
    assert_eq!(a_waits().granted(once, 2, (50, 51)).judged(), (1, 1));
    let found = super::super::all(&a_waits().granted(B, 2, (50, 51)).0);
    assert!(found.iter().all(|it| it.kind == Kind::Order), "{found:?}");
}

#[test]
fn who_asked_before_the_place_was_there_may_be_first() {
    let history = History::new().refused(B, (5, 6), 600);
    let history = history.refused(A, (10, 11), 600).granted(B, 2, (50, 51));
    assert_eq!(history.judged(), (0, 0));
    // The outcome of the request is unknown, so it is unknown whether it has taken a place.
    let history = History::new().asked(B, 5).refused(A, (10, 11), 600);
    assert_eq!(history.granted(B, 2, (50, 51)).judged(), (0, 0));
}

#[test]
fn a_grant_ends_a_place() {
    let granted_before = |got| {
        let history = History::new().refused(B, (5, 6), 600);
        history.granted(B, 2, (7, got)).refused(A, (10, 11), 600)
    };
    let again = granted_before(8).granted(B, 3, (20, 21));
    assert_eq!(again.judged(), (1, 1));
    // The second request was in flight at the first grant, and may have taken a place after it.
    let beside = granted_before(12).refused(B, (9, 13), 600);
    assert_eq!(beside.granted(B, 3, (20, 21)).judged(), (0, 0));
    let history = a_waits().granted(A, 2, (12, 13)).granted(B, 3, (20, 21));
    assert_eq!(history.judged(), (1, 0));
}

#[test]
fn a_place_that_may_be_over_is_passed() {
    let short = || History::new().refused(A, (10, 11), 40);
    assert_eq!(short().granted(B, 2, (20, 51)).judged(), (0, 0));
    // A process that asks again in time keeps its place. A process that asks too late gets a new one.
    let again = short().refused(A, (30, 39), 600);
    assert_eq!(again.granted(B, 2, (20, 51)).judged(), (1, 1));
    let late = short().refused(A, (30, 41), 600);
    assert_eq!(late.granted(B, 2, (20, 51)).judged(), (0, 0));
    let left = a_waits().then(Event::Leaves {
        waiter: "a".to_owned(),
        sent: at(40),
    });
    assert_eq!(left.clone().granted(B, 2, (20, 51)).judged(), (0, 0));
    assert_eq!(left.granted(B, 2, (20, 39)).judged(), (1, 1));
    // The process may have been granted the key and then have died.
    let unanswered = a_waits().asked(A, 12);
    assert_eq!(unanswered.granted(B, 2, (20, 51)).judged(), (0, 0));
}

#[test]
fn readers_go_together() {
    let reader_waits = History::new().refused(reads(A), (10, 11), 600);
    let reads_too = reader_waits.clone().granted(reads(B), 2, (20, 21));
    assert_eq!(reads_too.judged(), (0, 0));
    assert_eq!(reader_waits.granted(B, 2, (20, 21)).judged(), (1, 1));
    let before_a_writer = a_waits().granted(reads(B), 2, (20, 21));
    assert_eq!(before_a_writer.judged(), (1, 1));
    // In the meantime, a reader of the process has the place.
    let changed = a_waits().refused(reads(A), (12, 13), 600);
    assert_eq!(changed.granted(reads(B), 2, (20, 21)).judged(), (0, 0));
}

#[test]
fn a_grant_ends_the_place_of_a_reader() {
    let history = History::new().refused(reads(B), (5, 6), 600);
    let history = history.refused(A, (10, 11), 600);
    let history = history.granted(reads(B), 2, (20, 21));
    // The grant has ended the place.
    let history = history.granted(reads(B), 3, (22, 23));
    assert_eq!(history.judged(), (1, 1));
}

#[test]
fn a_handoff_within_a_process_overtakes() {
    let hands_off = |ask| Ask {
        overtakes: true,
        ..ask
    };
    let handed = |history: History| {
        (0..32).fold(history, |history, turn: Time| {
            let times = (20 + turn, 21 + turn);
            history.granted(hands_off(B), 2 + turn as i64, times)
        })
    };
    assert_eq!(handed(a_waits()).judged(), (0, 0));
    // A request that does not overtake is judged again.
    let again = handed(a_waits()).granted(B, 90, (60, 61));
    assert_eq!(again.judged(), (1, 1));
    // A handoff also ends the place of its process.
    let handed = a_waits().granted(hands_off(A), 2, (30, 31));
    assert_eq!(handed.granted(B, 3, (20, 51)).judged(), (1, 0));
    // A handoff that is refused takes no place.
    let refused = History::new().refused(hands_off(A), (10, 11), 600);
    assert_eq!(refused.granted(B, 2, (20, 21)).judged(), (0, 0));
}

#[test]
fn a_key_that_may_have_been_free_for_long_is_nobodys() {
    let long = || History::new().refused(A, (10, 11), 20_000);
    assert_eq!(long().granted(B, 2, (20, 3_500)).judged(), (1, 1));
    assert_eq!(long().granted(B, 2, (20, 3_600)).judged(), (0, 0));
    let held = long().refused(reads(B), (3_000, 3_001), 0);
    let other = Ask {
        waiter: Some("c"),
        ..A
    };
    assert_eq!(held.granted(other, 2, (3_002, 3_600)).judged(), (1, 1));
}

#[test]
fn what_a_server_may_have_forgotten_is_left_open() {
    let suffers = |from, to| {
        [
            Event::ServerSuffers { at: at(from) },
            Event::ServersAreBack { at: at(to) },
        ]
        .into_iter()
        .fold(a_waits(), History::then)
        .granted(B, 2, (50, 51))
        .judged()
    };
    assert_eq!(suffers(30, 40), (0, 0));
    assert_eq!(suffers(52, 60), (1, 1));
    let goes_on = a_waits().then(Event::ServerSuffers { at: at(30) });
    assert_eq!(goes_on.granted(B, 2, (50, 51)).judged(), (0, 0));
    let over = vec![
        Event::ServerSuffers { at: 0 },
        Event::ServersAreBack { at: 1 },
    ];
    let span = (0, 1 + SETTLES);
    assert_eq!(troubles(&over), [span]);
}

#[test]
fn who_is_told_that_its_tick_is_done_takes_no_place() {
    let told = |history: History, (sent, got)| history.asked(A, sent).answered(Answer::Done, got);
    let history = told(History::new(), (10, 11)).granted(B, 2, (20, 21));
    assert_eq!(history.judged(), (0, 0));
    // An earlier place remains.
    let history = told(a_waits(), (20, 21)).granted(B, 2, (50, 51));
    assert_eq!(history.judged(), (1, 1));
    // The answer does not extend the place.
    let history = told(a_waits(), (500, 510)).granted(B, 2, (700, 701));
    assert_eq!(history.judged(), (0, 0));
}

#[test]
fn what_is_asked_at_the_instant_of_a_grant_may_have_come_before_it() {
    let next_task_reads_at = |time| {
        let history = a_waits().granted(reads(A), 2, (time, time));
        history.granted(reads(B), 3, (50, 50)).judged()
    };
    assert_eq!(next_task_reads_at(50), (0, 0));
    assert_eq!(next_task_reads_at(51), (1, 1));
    let leaves_at = |time| {
        let leaves = Event::Leaves {
            waiter: "a".to_owned(),
            sent: at(time),
        };
        let history = a_waits().granted(B, 2, (50, 50)).then(leaves);
        history.judged()
    };
    assert_eq!(leaves_at(50), (0, 0));
    assert_eq!(leaves_at(51), (1, 1));
}
