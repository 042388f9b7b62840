//! Whether a history may be: pure functions of what clients saw.

use std::{
    collections::{BTreeMap, HashMap},
    time::Duration,
};

use super::{
    history::{Claim, Event, Time},
    work::{BURST, LIMIT, SMOOTH, WINDOW},
};

/// What must not be, in words.
pub type Violations = Vec<String>;

/// A grant, and up to when its holder counted on it.
#[derive(Clone, Debug)]
struct Grant<'a> {
    lease: &'a str,
    claim: Claim,
    fence: i64,
    sent: Time,
    got: Time,
    last: Time,
}

type Keys<'a> = BTreeMap<&'a str, Vec<Grant<'a>>>;

/// Everything that a history alone can show to be wrong.
pub fn all(events: &[Event]) -> Violations {
    let keys = grants(events);
    let mut violations = Vec::new();
    for (key, grants) in &keys {
        violations.extend(exclusion(key, grants));
        violations.extend(fences(key, grants));
        violations.extend(reads(key, grants, events));
    }
    violations.extend(permits(events));
    violations
}

/// How many grants and other operations there were.
pub fn operations(events: &[Event]) -> u64 {
    let count = |event: &Event| match event {
        Event::Granted { .. } | Event::Held { .. } | Event::Permit { .. } => 1,
        Event::Ended { .. } => 0,
        Event::Operations(count) => *count,
    };
    events.iter().map(count).sum()
}

fn grants(events: &[Event]) -> Keys<'_> {
    let mut lasts = HashMap::new();
    for event in events {
        if let Event::Ended { lease, last } = event {
            lasts.insert(lease.as_str(), *last);
        }
    }
    let mut keys = Keys::new();
    for event in events {
        if let Event::Granted {
            key,
            lease,
            claim,
            fence,
            sent,
            got,
        } = event
        {
            keys.entry(key).or_default().push(Grant {
                lease,
                claim: *claim,
                fence: *fence,
                sent: *sent,
                got: *got,
                // Of one that was killed nothing more is known than that it had the lease.
                last: lasts
                    .get(lease.as_str())
                    .map_or(*got, |last| *last.max(got)),
            });
        }
    }
    keys
}

/// At no time do holders that count on their leases have more than there is.
fn exclusion(key: &str, grants: &[Grant]) -> Violations {
    let mut steps: Vec<(Time, bool, &Grant)> = Vec::new();
    // One that was not looked at a second time was perhaps over before the next.
    for grant in grants.iter().filter(|grant| grant.got < grant.last) {
        steps.push((grant.got, false, grant));
        steps.push((grant.last, true, grant));
    }
    // At one moment the one may have ended before the other began.
    steps.sort_by_key(|(time, ends, _)| (*time, !ends));
    let mut inside: Vec<&Grant> = Vec::new();
    let mut violations = Vec::new();
    for (time, ends, grant) in steps {
        if ends {
            inside.retain(|other| other.lease != grant.lease);
            continue;
        }
        let room = |other: &&Grant| match (other.claim, grant.claim) {
            (Claim::OneOf(there), Claim::OneOf(here)) => (there.min(here) as usize) > inside.len(),
            _ => false,
        };
        if let Some(other) = inside.iter().find(|other| !room(other)) {
            violations.push(format!("{key}: at {time} {grant:?} is beside {other:?}"));
        }
        inside.push(grant);
    }
    violations
}

/// No two grants have one fence, and one that was asked for after another was answered has a greater
/// one.
fn fences(key: &str, grants: &[Grant]) -> Violations {
    let mut violations = Vec::new();
    let mut by_fence = HashMap::new();
    for grant in grants {
        if let Some(other) = by_fence.insert(grant.fence, grant) {
            violations.push(format!("{key}: one fence, {grant:?} and {other:?}"));
        }
    }
    let mut asked: Vec<_> = grants.iter().collect();
    asked.sort_by_key(|grant| grant.sent);
    let mut answered: Vec<_> = grants.iter().collect();
    answered.sort_by_key(|grant| grant.got);
    let mut answered = answered.into_iter().peekable();
    let mut newest: Option<&Grant> = None;
    for grant in asked {
        while let Some(before) = answered.next_if(|before| before.got < grant.sent) {
            if newest.is_none_or(|newest| newest.fence < before.fence) {
                newest = Some(before);
            }
        }
        if let Some(before) = newest.filter(|before| before.fence >= grant.fence) {
            violations.push(format!("{key}: {grant:?} came after {before:?}"));
        }
    }
    violations
}

/// The lock as a register whose writes are the grants of all of it, in the order of their fences: who
/// is told of a holder is told of the last write, or of one that went on at the same time.
///
/// As every write has a number of its own, that order is the only one possible, and to look at it is
/// to check linearizability.
fn reads(key: &str, grants: &[Grant], events: &[Event]) -> Violations {
    if grants.iter().any(|grant| grant.claim != Claim::All) {
        return Violations::new();
    }
    let mut answered: Vec<_> = grants
        .iter()
        .map(|grant| (grant.got, grant.fence))
        .collect();
    answered.sort_unstable();
    // The greatest fence that was answered by a time.
    let mut newest = i64::MIN;
    for (_, fence) in &mut answered {
        newest = newest.max(*fence);
        *fence = newest;
    }
    let sent: HashMap<_, _> = grants
        .iter()
        .map(|grant| (grant.fence, grant.sent))
        .collect();
    let mut violations = Vec::new();
    for event in events {
        let Event::Held {
            key: of,
            fences,
            sent: asked,
            got,
        } = event
        else {
            continue;
        };
        let [fence] = fences[..] else { continue };
        if of != key {
            continue;
        }
        let before = answered.partition_point(|(at, _)| at < asked);
        if let Some((_, newest)) = before.checked_sub(1).map(|last| answered[last])
            && fence < newest
        {
            violations.push(format!(
                "{key}: {newest} was granted, and then {fence} read"
            ));
        }
        if sent.get(&fence).is_some_and(|sent| sent > got) {
            violations.push(format!("{key}: {fence} was read before it was asked for"));
        }
    }
    violations
}

/// No limiter lets more through in any of its windows than it may: twice the limit where windows are
/// fixed, because the end of one and the start of the next are within one; else the burst, and what
/// drips out of a bucket meanwhile.
fn permits(events: &[Event]) -> Violations {
    let mut limiters: BTreeMap<&str, Vec<(Time, Time)>> = BTreeMap::new();
    for event in events {
        if let Event::Permit { limiter, sent, got } = event {
            limiters.entry(limiter).or_default().push((*sent, *got));
        }
    }
    let mut violations = Violations::new();
    for (limiter, mut permits) in limiters {
        let most = match limiter {
            SMOOTH => LIMIT + BURST + 1,
            _ => 2 * LIMIT,
        };
        permits.sort_unstable();
        for (first, (from, _)) in permits.iter().enumerate() {
            let end = from + WINDOW.as_micros() as Time;
            let later = permits[first..].iter().take_while(|(sent, _)| *sent <= end);
            // Whoever was answered in this time was let through in it.
            let within = later.filter(|(_, got)| *got <= end).count();
            if within > most as usize {
                violations.push(format!("{limiter}: {within} from {from} to {end}"));
            }
        }
    }
    violations
}

/// The longest time in which nobody was granted a key that is always waited for, but for the times
/// at which the servers were not whole.
pub fn longest_gap(key: &str, events: &[Event], outages: &[(Time, Time)]) -> Duration {
    let mut got: Vec<_> = events
        .iter()
        .filter_map(|event| match event {
            Event::Granted { key: of, got, .. } if of == key => Some(*got),
            _ => None,
        })
        .collect();
    got.sort_unstable();
    let whole = |gap: &&[Time]| {
        !outages
            .iter()
            .any(|(from, to)| *from <= gap[1] && gap[0] <= *to)
    };
    let gaps = got.windows(2).filter(whole).map(|gap| gap[1] - gap[0]);
    Duration::from_micros(gaps.max().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

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

    fn ended(lease: &str, last: Time) -> Event {
        Event::Ended {
            lease: lease.to_owned(),
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
            ended("a", 20),
            granted("b", Claim::All, 2, (5, 21)),
            held(1, (9, 15)),
            held(2, (11, 22)),
            ended("b", 30),
            granted("c", Claim::All, 5, (31, 32)),
        ];
        assert_eq!(all(&history), Violations::new());
    }

    #[test]
    fn holders_beside_each_other_are_seen() {
        let history = [
            granted("a", Claim::All, 1, (0, 10)),
            ended("a", 21),
            granted("b", Claim::OneOf(2), 2, (5, 20)),
            ended("b", 25),
        ];
        assert_eq!(all(&history).len(), 1);
        let two = |of| {
            let claim = Claim::OneOf(of);
            let mut history = vec![ended("a", 50), ended("b", 50), ended("c", 50)];
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
                ended("a", 10),
                granted("b", Claim::All, fence, (11, 12)),
            ];
            assert_eq!(!all(&history).is_empty(), wrong, "{fence}");
        }
        // Of two at the same time either may be the first.
        let history = [one, ended("a", 10), granted("b", Claim::All, 4, (9, 12))];
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
    fn a_gap_is_measured_while_the_servers_are_whole() {
        let history = [10, 20, 90, 100].map(|got| granted("a", Claim::All, 1, (got, got)));
        let gap = |outages: &[_]| longest_gap("k", &history, outages).as_micros();
        assert_eq!(gap(&[]), 70);
        assert_eq!(gap(&[(30, 40)]), 10);
    }
}
