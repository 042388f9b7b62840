//! Checks of a history, for violations: pure functions of what the clients saw.

mod blocks;
mod guarded;
mod newest;
mod order;
mod recalls;
mod risks;
mod ticks;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    time::Duration,
};

use self::{
    blocks::Blocks,
    newest::Newest,
    risks::{Risks, at_risk},
};
pub use self::{
    blocks::from_memory,
    guarded::{Guarded, guarded},
    order::{Orders, orders},
    recalls::{WAITED_FOR, recalls, recalls_heard},
    ticks::{Ticks, ticks},
};
use crate::{
    history::{Claim, Event, NO_FENCE, Time},
    work::{BURST, LIMIT, READERS, SMOOTH, WINDOW},
};

/// The kind of a violation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    Exclusion,
    Fences,
    Reads,
    Refused,
    Permits,
    /// A waiter was not granted the key in turn.
    Order,
    /// A key stayed with a process although another one waited for it.
    Recall,
    /// A tick that was done was done again, or an answer about the done tick was wrong.
    Ticks,
    /// A late write to a guarded document was accepted, or a write to it was lost.
    Guarded,
    LostWrite,
    Left,
    Unavailable,
    /// Something that was acknowledged is lost.
    Forgotten,
    /// The run does not count as a test.
    Run,
}

/// Something that must not happen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    pub kind: Kind,
    pub text: String,
}

impl Kind {
    pub fn of(self, text: impl Into<String>) -> Violation {
        Violation {
            kind: self,
            text: text.into(),
        }
    }
}

pub type Violations = Vec<Violation>;

/// A grant, and the last time at which its holder relied on it.
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

/// The answers that name holders of a key, and the blocks of fences.
type Tolds<'a> = (&'a [Told<'a>], &'a Blocks<'a>);

/// All violations that the histories of all processes show.
pub fn all_processes(processes: &[Vec<Event>]) -> Violations {
    all(&processes.concat())
}

/// All violations that a history alone shows.
pub fn all(events: &[Event]) -> Violations {
    let keys = grants(events);
    let (helds, blocks) = (helds(events), Blocks::of(events));
    let mut violations = Vec::new();
    for (key, grants) in &keys {
        let helds = helds.get(key).map_or(&[][..], |helds| &helds[..]);
        violations.extend(exclusion(key, grants));
        violations.extend(fences(key, grants, (helds, &blocks)));
        violations.extend(reads(key, grants, (helds, &blocks)));
    }
    violations.extend(released(events, &helds));
    violations.extend(permits(events));
    violations.extend(orders(events).violations);
    violations.extend(recalls(events));
    violations.extend(ticks(events).violations);
    violations.extend(guarded(events).violations);
    for event in events {
        if let Event::Refused { key, fence } = event {
            let text = format!("{key}: {fence} was refused while its holder had the lease");
            violations.push(Kind::Refused.of(text));
        }
    }
    violations
}

/// An answer to a request for a key: the fences of its holders.
struct Told<'a> {
    fences: &'a [i64],
    sent: Time,
    got: Time,
    /// Whether a server may have undone what it told, because none of its copies had it. So a refusal may tell of a grant
    /// that no client is ever given.
    is_at_risk: bool,
}

fn helds(events: &[Event]) -> BTreeMap<&str, Vec<Told<'_>>> {
    let risks = Risks::of_holders(events);
    let mut keys = BTreeMap::<&str, Vec<_>>::new();
    for event in events {
        if let Event::Held {
            key,
            fences,
            sent,
            got,
        } = event
        {
            keys.entry(key).or_default().push(Told {
                fences,
                sent: *sent,
                got: *got,
                is_at_risk: risks.contain(*got),
            });
        }
    }
    keys
}

/// The number of grants and other operations.
pub fn operations(events: &[Event]) -> u64 {
    let count = |event: &Event| match event {
        Event::Granted { .. }
        | Event::Held { .. }
        | Event::Released { .. }
        | Event::ToldDone { .. }
        | Event::Permit { .. } => 1,
        Event::Operations(count) => *count,
        _ => 0,
    };
    events.iter().map(count).sum()
}

fn grants(events: &[Event]) -> Keys<'_> {
    let mut lasts = HashMap::new();
    for event in events {
        if let Event::Ended { lease, fence, last } = event {
            let newest = lasts.entry((lease.as_str(), *fence)).or_insert(*last);
            *newest = (*newest).max(*last);
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
                // Of a holder that was killed, it is only known that it had the lease.
                last: lasts
                    .get(&(lease.as_str(), *fence))
                    .map_or(*got, |last| *last.max(got)),
            });
        }
    }
    keys
}

/// At no time may the holders that rely on their leases exceed the capacity of the key.
fn exclusion(key: &str, grants: &[Grant]) -> Violations {
    let mut steps: Vec<(Time, bool, &Grant)> = Vec::new();
    // A holder that was seen only once may have lost its lease before the next grant.
    for grant in grants.iter().filter(|grant| grant.got < grant.last) {
        steps.push((grant.got, false, grant));
        steps.push((grant.last, true, grant));
    }
    // At the same instant, an end counts before a beginning, because it may have come first.
    steps.sort_by_key(|(time, ends, _)| (*time, !ends));
    let mut inside: Vec<&Grant> = Vec::new();
    let mut violations = Vec::new();
    for (time, ends, grant) in steps {
        if ends {
            // Grants from memory have the same lease, and different fences.
            inside.retain(|other| (other.lease, other.fence) != (grant.lease, grant.fence));
            continue;
        }
        let room = |other: &&Grant| match (other.claim, grant.claim) {
            (Claim::OneOf(there), Claim::OneOf(here)) => (there.min(here) as usize) > inside.len(),
            _ => false,
        };
        if let Some(other) = inside.iter().find(|other| !room(other)) {
            let text = format!("{key}: at {time} {grant:?} is beside {other:?}");
            violations.push(Kind::Exclusion.of(text));
        }
        inside.push(grant);
    }
    violations
}

/// All grants have different fences, except that the readers of a process may share a lease and its fence. A grant that
/// was requested after another fence was known has a greater fence. That of a reader may be under a lease that its process
/// had already, beside newer ones of other readers: it is greater than those of the exclusive grants. And if one holder
/// worked after another one, it has the greater fence.
fn fences(key: &str, grants: &[Grant], (helds, blocks): Tolds) -> Violations {
    let shows_fence = |grant: &&Grant| grant.fence != NO_FENCE;
    let mut shared = HashSet::new();
    let mut grants: Vec<Grant> = grants.iter().filter(shows_fence).cloned().collect();
    grants.sort_by_key(|grant| grant.sent);
    grants.retain(|it| it.claim == Claim::All || shared.insert((it.lease, it.fence)));
    let mut violations = Vec::new();
    let mut wrong = |text| violations.push(Kind::Fences.of(format!("{key}: {text}")));
    let mut by_fence = HashMap::new();
    for grant in &grants {
        if let Some(other) = by_fence.insert(grant.fence, grant) {
            wrong(format!("one fence, {grant:?} and {other:?}"));
        }
    }
    let mut asked: Vec<_> = grants.iter().collect();
    asked.sort_by_key(|grant| grant.sent);
    let newest = newest(key, &grants, (helds, blocks));
    let exclusive = grants.iter().filter(|grant| grant.claim == Claim::All);
    let exclusive: Newest = exclusive.map(|grant| (grant.got, grant.fence)).collect();
    for grant in asked {
        let newest = match grant.claim {
            Claim::OneOf(READERS) => &exclusive,
            Claim::All | Claim::OneOf(_) => &newest,
        };
        if let Some(before) = newest.before(grant.sent).filter(|it| *it >= grant.fence) {
            wrong(format!("{grant:?} came after {before}"));
        }
    }
    // Exclusive holders never overlap, so a holder that worked later was granted the key later.
    let alone = |grant: &&Grant| grant.claim == Claim::All && grant.got < grant.last;
    let mut worked: Vec<_> = grants.iter().filter(alone).collect();
    worked.sort_by_key(|grant| grant.got);
    for pair in worked.windows(2) {
        if pair[0].fence >= pair[1].fence {
            wrong(format!("{:?} worked after {:?}", pair[1], pair[0]));
        }
    }
    violations
}

/// The greatest fence of a key that any client had been told by each time, but for those that a server may have undone.
fn newest(key: &str, grants: &[Grant], (helds, blocks): Tolds) -> Newest {
    let granted = grants.iter().map(|grant| (grant.got, grant.fence));
    let known: HashSet<_> = grants.iter().map(|grant| grant.fence).collect();
    let certain = |told: &Told| {
        let fences = told.fences.iter();
        let counts = |fence: &&i64| !told.is_at_risk || known.contains(*fence);
        fences
            .filter(counts)
            .map(|fence| blocks.certain(key, *fence))
            .max()
    };
    let told = helds
        .iter()
        .filter_map(|told| Some((told.got, certain(told)?)));
    granted.chain(told).collect()
}

/// Takes the lock as a register whose writes are the exclusive grants, in the order of their fences. A client that is
/// told of a holder must be told of the last write that any client knew of, or of a concurrent write.
///
/// Every write has a different number, so this order is the only possible one, and this check is a check of
/// linearizability.
fn reads(key: &str, grants: &[Grant], (helds, blocks): Tolds) -> Violations {
    if grants.iter().any(|grant| grant.claim != Claim::All) {
        return Violations::new();
    }
    let newest = newest(key, grants, (helds, blocks));
    let sent: HashMap<_, _> = grants
        .iter()
        .map(|grant| (grant.fence, grant.sent))
        .collect();
    let mut violations = Vec::new();
    for Told {
        fences,
        sent: asked,
        got,
        ..
    } in helds
    {
        let [fence] = fences[..] else { continue };
        if let Some(newer) = newest.before(*asked).filter(|newest| *newest > fence) {
            let text = format!("{key}: {newer} was known, and then {fence} read");
            violations.push(Kind::Reads.of(text));
        }
        let block = blocks.ending(key, fence).map(|block| block.sent);
        if block.or_else(|| sent.get(&fence).copied()) > Some(*got) {
            let text = format!("{key}: {fence} was read before it was asked for");
            violations.push(Kind::Reads.of(text));
        }
    }
    violations
}

/// After the answer to a release, its lease is no longer a holder, unless a server may have undone the release.
fn released(events: &[Event], helds: &BTreeMap<&str, Vec<Told>>) -> Violations {
    read_after_release(events, helds)
        .filter(|(.., undone)| !undone)
        .map(|(key, fence, _)| {
            Kind::Reads.of(format!("{key}: {fence} was released, and then read"))
        })
        .collect()
}

/// How many releases were undone by faults of servers. A release counts only if a client asked for its key before the
/// ttl was over.
pub fn undone_releases(events: &[Event]) -> usize {
    let undone: BTreeSet<_> = read_after_release(events, &helds(events))
        .filter(|(.., undone)| *undone)
        .map(|(key, fence, _)| (key.to_owned(), fence))
        .collect();
    undone.len()
}

/// The key and the fence of each lease that was read although its release had been answered, and whether a server may
/// have undone the release.
fn read_after_release<'a>(
    events: &[Event],
    helds: &'a BTreeMap<&str, Vec<Told>>,
) -> impl Iterator<Item = (&'a str, i64, bool)> {
    let mut releases = HashMap::new();
    let mut left = HashMap::new();
    let mut risks = Vec::new();
    let blocks = Blocks::of(events);
    for event in events {
        match event {
            // Readers of one process may be under one lease, which goes back with the last of them.
            Event::Granted { key, fence, .. } => *left.entry((key, *fence)).or_insert(0) += 1,
            // A grant from memory that had the last fence of its block was released, and the store still names that
            // fence.
            Event::Released { key, fence, .. } if blocks.ending(key, *fence).is_some() => {}
            Event::Released { key, fence, got } => {
                if let Some(left) = left.get_mut(&(key, *fence)) {
                    *left -= 1;
                }
                let last = releases.entry((key.clone(), *fence)).or_insert(*got);
                *last = (*last).max(*got);
            }
            Event::ReleasesAtRisk { from, to, ttl } => risks.push((*from, *to, *ttl)),
            _ => {}
        }
    }
    releases.retain(|(key, fence), _| left.get(&(key, *fence)).is_none_or(|left| *left <= 0));
    let tolds = helds
        .iter()
        .flat_map(|(key, helds)| helds.iter().map(move |told| (*key, told)));
    let fences = tolds.flat_map(|(key, told)| told.fences.iter().map(move |it| (key, told, *it)));
    fences.filter_map(move |(key, told, fence)| {
        let released = *releases.get(&(key.to_owned(), fence))?;
        let is_undone = |(from, to, ttl): &(Time, Time, Time)| {
            let at_risk = at_risk(*from, *to);
            // The lease was not renewed after its release, so it expires at most a ttl later.
            *from <= told.got && at_risk.contains(&released) && told.sent <= released + ttl
        };
        (released < told.sent).then(|| (key, fence, risks.iter().any(is_undone)))
    })
}

/// No limiter grants more permits than it may, in one of its windows or in several. With fixed windows, whose borders
/// may be anywhere, that is the limit times one more than the number of windows. With smooth windows, it is the burst
/// and the permits that come back in the meantime.
fn permits(events: &[Event]) -> Violations {
    let mut limiters: BTreeMap<&str, Vec<(Time, Time)>> = BTreeMap::new();
    for event in events {
        if let Event::Permit { limiter, sent, got } = event {
            limiters.entry(limiter).or_default().push((*sent, *got));
        }
    }
    let mut violations = Violations::new();
    for (limiter, mut permits) in limiters {
        permits.sort_unstable();
        for windows in [1, 2, 5, 10, 30] {
            let most = match limiter {
                SMOOTH => windows * LIMIT + BURST + 1,
                _ => (windows + 1) * LIMIT,
            };
            let span = WINDOW.as_micros() as Time * Time::from(windows);
            for (first, (from, _)) in permits.iter().enumerate() {
                let end = from + span;
                let later = permits[first..].iter().take_while(|(sent, _)| *sent <= end);
                // A permit whose answer arrived in this time was granted in it.
                let within = later.filter(|(_, got)| *got <= end).count();
                if within > most as usize {
                    let text = format!("{limiter}: {within} from {from} to {end}");
                    violations.push(Kind::Permits.of(text));
                }
            }
        }
    }
    violations
}

/// The longest time in a run in which none of these keys was granted, although a client always waits for each of them.
pub fn longest_gap(keys: &[&str], events: &[Event], run: (Time, Time)) -> Duration {
    let gap = |key: &&str| {
        let granted = events.iter().filter_map(|event| match event {
            Event::Granted { key: of, got, .. } if of == key => Some(*got),
            _ => None,
        });
        longest_between(granted, run)
    };
    keys.iter().map(gap).max().unwrap_or_default()
}

/// The longest time in a run between two of these marks, or between a mark and the beginning or the end of the run.
pub fn longest_between(marks: impl Iterator<Item = Time>, (from, to): (Time, Time)) -> Duration {
    let mut marks: Vec<_> = marks.chain([from, to]).collect();
    marks.retain(|mark| (from..=to).contains(mark));
    marks.sort_unstable();
    let gaps = marks.windows(2).map(|gap| gap[1] - gap[0]);
    Duration::from_micros(gaps.max().unwrap_or_default())
}

#[cfg(test)]
mod tests;
