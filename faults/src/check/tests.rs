//! Histories that are possible, and histories that are violations.

use super::*;
use crate::{history::Answer, work::CAPACITY};

fn granted(lease: &str, claim: Claim, fence: i64, (sent, got): (Time, Time)) -> Event {
    Event::Granted {
        key: "k".to_owned(),
        lease: lease.to_owned(),
        claim,
        fence,
        sent,
        got,
    }
}

fn ended(lease: &str, fence: i64, last: Time) -> Event {
    Event::Ended {
        lease: lease.to_owned(),
        fence,
        last,
    }
}

fn held(fence: i64, (sent, got): (Time, Time)) -> Event {
    Event::Held {
        key: "k".to_owned(),
        fences: vec![fence],
        sent,
        got,
    }
}

#[test]
fn holders_that_follow_each_other_are_in_order() {
    let history = [
        granted("a", Claim::All, 1, (0, 10)),
        ended("a", 1, 20),
        granted("b", Claim::All, 2, (5, 21)),
        held(1, (9, 15)),
        held(2, (11, 22)),
        ended("b", 2, 30),
        granted("c", Claim::All, 5, (31, 32)),
    ];
    assert_eq!(all(&history), Violations::new());
}

#[test]
fn holders_beside_each_other_are_seen() {
    let history = [
        granted("a", Claim::All, 1, (0, 10)),
        ended("a", 1, 21),
        granted("b", Claim::OneOf(2), 2, (5, 20)),
        ended("b", 2, 25),
    ];
    assert_eq!(all(&history).len(), 1);
    let two = |of| {
        let claim = Claim::OneOf(of);
        let mut history = vec![ended("a", 1, 50), ended("b", 2, 50), ended("c", 3, 50)];
        for (fence, lease) in [(1, "a"), (2, "b"), (3, "c")] {
            history.push(granted(lease, claim, fence, (0, 10)));
        }
        all(&history).len()
    };
    assert_eq!([two(2), two(3)], [1, 0]);
}

#[test]
fn fences_that_do_not_rise_are_seen() {
    let one = granted("a", Claim::All, 5, (0, 10));
    for (fence, wrong) in [(5, true), (4, true), (6, false)] {
        let history = [
            one.clone(),
            ended("a", 5, 10),
            granted("b", Claim::All, fence, (11, 12)),
        ];
        assert_eq!(!all(&history).is_empty(), wrong, "{fence}");
    }
    // Of two concurrent grants, either may be the first.
    let history = [one, ended("a", 5, 10), granted("b", Claim::All, 4, (9, 12))];
    assert_eq!(all(&history), Violations::new());
}

#[test]
fn what_is_read_too_late_or_too_early_is_seen() {
    let history = [
        granted("a", Claim::All, 5, (0, 10)),
        granted("b", Claim::All, 6, (20, 30)),
    ];
    for (read, wrong) in [
        (held(5, (31, 32)), true),
        (held(5, (29, 32)), false),
        (held(6, (15, 19)), true),
        (held(6, (15, 21)), false),
    ] {
        let mut history = history.to_vec();
        history.push(read.clone());
        assert_eq!(!all(&history).is_empty(), wrong, "{read:?}");
    }
}

#[test]
fn what_is_read_goes_into_the_order() {
    let two_reads = [
        granted("a", Claim::All, 1, (0, 9)),
        held(6, (1, 2)),
        held(5, (3, 4)),
    ];
    assert_eq!(all(&two_reads)[0].kind, Kind::Reads);
    // A server told of a grant that it then lost, and that no client was given.
    let at_risk = |from, to| Event::ReadsAtRisk { from, to };
    let mut undone = two_reads.to_vec();
    undone.push(Event::ReleasesAtRisk {
        from: 0,
        to: 2,
        ttl: 5,
    });
    assert_eq!(all(&undone), Violations::new());
    undone.pop();
    undone.push(at_risk(0, 2));
    assert_eq!(all(&undone), Violations::new());
    for proof in [
        at_risk(5_000_010, 5_000_020),
        granted("b", Claim::All, 6, (0, 1)),
    ] {
        let mut not_undone = undone.clone();
        match proof {
            Event::Granted { .. } => not_undone.push(proof),
            later => *not_undone.last_mut().unwrap() = later,
        }
        let found = all(&not_undone);
        assert!(found.iter().any(|it| it.kind == Kind::Reads), "{found:?}");
    }
    let late = [held(6, (1, 2)), granted("a", Claim::All, 5, (3, 4))];
    assert_eq!(all(&late)[0].kind, Kind::Fences);
}

#[test]
fn who_works_later_has_the_greater_fence() {
    let history = [
        granted("a", Claim::All, 2, (0, 10)),
        ended("a", 2, 20),
        granted("b", Claim::All, 1, (0, 21)),
        ended("b", 1, 30),
    ];
    let kinds: Vec<_> = all(&history).iter().map(|it| it.kind).collect();
    assert_eq!(kinds, [Kind::Fences]);
}

#[test]
fn only_a_reader_may_have_a_smaller_fence_than_another_that_was_known() {
    let history = |known, asked| {
        [
            granted("a", known, 2, (0, 5)),
            granted("b", asked, 1, (6, 7)),
        ]
    };
    let (reader, permit) = (Claim::OneOf(READERS), Claim::OneOf(CAPACITY));
    assert_eq!(all(&history(reader, reader)), Violations::new());
    for (known, asked) in [
        (Claim::All, reader),
        (permit, permit),
        (reader, Claim::All),
        (permit, Claim::All),
    ] {
        let kinds: Vec<_> = all(&history(known, asked))
            .iter()
            .map(|it| it.kind)
            .collect();
        assert_eq!(kinds, [Kind::Fences], "{known:?} {asked:?}");
    }
}

#[test]
fn what_was_released_is_not_read() {
    let released = Event::Released {
        key: "k".to_owned(),
        fence: 1,
        got: 10,
    };
    let history = |sent| [released.clone(), held(1, (sent, 20))];
    assert_eq!(all(&history(9)), Violations::new());
    assert_eq!(all(&history(11))[0].kind, Kind::Reads);
    let at_risk = |from, to, ttl| Event::ReleasesAtRisk { from, to, ttl };
    let suffered = |from, to, ttl| [released.clone(), at_risk(from, to, ttl), held(1, (11, 20))];
    for (from, to, ttl) in [(12, 15, 5), (5, 10, 5), (20, 30, 1)] {
        let history = suffered(from, to, ttl);
        assert_eq!((all(&history), undone_releases(&history)), (vec![], 1));
    }
    // In the last case, the lease is read after its ttl is over.
    for (from, to, ttl) in [(5, 9, 5), (21, 30, 5), (12, 15, 0)] {
        let history = suffered(from, to, ttl);
        assert_eq!(all(&history)[0].kind, Kind::Reads);
        assert_eq!(undone_releases(&history), 0);
    }
}

#[test]
fn what_a_limiter_lets_through_is_counted() {
    let within = |limiter: &str, many: u64, micros: u64| {
        let permit = |number| Event::Permit {
            limiter: limiter.to_owned(),
            sent: number * micros / many,
            got: number * micros / many + 1,
        };
        all(&(0..many).map(permit).collect::<Vec<_>>()).is_empty()
    };
    let (window, limit) = (WINDOW.as_micros() as Time, u64::from(LIMIT));
    assert!(within("fixed", 2 * limit, window));
    assert!(!within("fixed", 2 * limit + 1, window));
    assert!(within(SMOOTH, limit + u64::from(BURST) + 1, window));
    assert!(!within(SMOOTH, 2 * limit, window));
}

#[test]
fn a_gap_is_measured() {
    let history = [10, 20, 90, 100].map(|got| granted("a", Claim::All, 1, (got, got)));
    let gap = |run| longest_gap(&["k"], &history, run).as_micros();
    assert_eq!(gap((10, 100)), 70);
    assert_eq!(gap((15, 80)), 60);
    // If no grant follows at all, that is a gap too.
    assert_eq!(gap((10, 200)), 100);
}

/// A request for a lease that takes ten fences, whose answer names the last one.
fn block(last: i64, (sent, got): (Time, Time)) -> [Event; 2] {
    let asked = Event::Asked {
        request: last as u64,
        key: "k".to_owned(),
        lease: "a".to_owned(),
        waiter: None,
        claim: Claim::All,
        overtakes: false,
        fences: 10,
        sent,
    };
    let answer = Answer::Granted { fence: last };
    let answered = Event::Answered {
        request: last as u64,
        answer,
        got,
    };
    [asked, answered]
}

#[test]
fn grants_from_memory_exclude_each_other() {
    let history = |last| {
        vec![
            granted("a", Claim::All, 1, (0, 10)),
            granted("a", Claim::All, 2, (5, 20)),
            ended("a", 1, last),
            ended("a", 2, 30),
        ]
    };
    assert_eq!(all(&history(20)), Violations::new());
    assert_eq!(all(&history(21))[0].kind, Kind::Exclusion);
}

#[test]
fn a_fence_of_a_block_stands_for_those_before_it() {
    let mut history = block(10, (0, 5)).to_vec();
    history.extend([
        granted("a", Claim::All, 1, (0, 6)),
        held(10, (7, 8)),
        granted("a", Claim::All, 2, (9, 11)),
        // The task of the same process is told the fence of the grant from memory.
        held(2, (12, 13)),
        Event::Released {
            key: "k".to_owned(),
            fence: 10,
            got: 14,
        },
        held(10, (15, 16)),
        granted("b", Claim::All, 11, (17, 18)),
    ]);
    assert_eq!(all(&history), Violations::new());
    assert_eq!(from_memory(&history), 1);
    let old = held(10, (20, 21));
    let wrong = [&history[..], &[old]].concat();
    assert_eq!(all(&wrong)[0].kind, Kind::Reads);
    let falls = granted("a", Claim::All, 3, (19, 20));
    let wrong = [&history[..], &[falls]].concat();
    assert_eq!(all(&wrong)[0].kind, Kind::Fences);
}

#[test]
fn a_lease_that_has_expired_has_another_block_when_it_is_granted_again() {
    let mut history = block(10, (0, 5)).to_vec();
    history.extend(block(30, (6, 8)));
    history.extend([
        granted("a", Claim::All, 21, (0, 9)),
        held(30, (7, 10)),
        granted("a", Claim::All, 22, (11, 12)),
    ]);
    assert_eq!(all(&history), Violations::new());
}

#[test]
fn a_block_may_be_that_of_an_earlier_request_which_was_not_answered() {
    let mut history = vec![held(10, (7, 8))];
    history.extend(block(10, (9, 11)));
    history.push(granted("a", Claim::All, 1, (0, 12)));
    assert_eq!(
        all(&history)[0].kind,
        Kind::Reads,
        "nobody has asked for it"
    );
    let [mut asked, _] = block(10, (0, 5));
    if let Event::Asked { request, .. } = &mut asked {
        *request = 7;
    }
    history.push(asked);
    assert_eq!(all(&history), Violations::new());
}
