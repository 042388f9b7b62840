//! Checks that waiters are granted a key in the order in which they came, by their requests and the answers.
//!
//! Invariants:
//!
//! - The check uses what the document of a lock must have contained, whether or not a process lives. A place exists
//!   since the refusal of a request in turn. It counts for a time that the answer states. It ends with a grant that
//!   does not keep it, or when its process gives it up. So a killed or stopped process makes no difference.
//! - If the histories leave an order uncertain, it is not judged.

use std::{
    collections::{BTreeMap, HashMap},
    time::Duration,
};

use leasehold::rules::turn::MAX_BIND_TIME;

use super::{Kind, Violation, Violations};
use crate::history::{Answer, Claim, Event, Time};

/// How long a key that had a holder is certainly kept for the places, even if it has been free since.
const BINDS: Time = MAX_BIND_TIME
    .saturating_sub(Duration::from_millis(500))
    .as_micros() as Time;
/// How long after a server has come back another server may still answer as if nothing had happened.
const SETTLES: Time = 5_000_000;

/// The result of the check of a history.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Orders {
    /// The number of pairs of a grant and an earlier place for which it is known whether the place was served first.
    pub judged: usize,
    pub violations: Violations,
}

/// A request for a key.
#[derive(Clone, Debug)]
struct Request<'a> {
    lease: &'a str,
    waiter: Option<&'a str>,
    claim: Claim,
    overtakes: bool,
    sent: Time,
    answer: Option<(Answer, Time)>,
}

/// A process that waits for a key.
struct Waiter<'a> {
    /// The requests, in the order in which they were sent.
    requests: Vec<&'a Request<'a>>,
    /// The longest time until an answer arrived.
    slowest: Time,
    /// When the first request without an answer was sent.
    unanswered: Time,
    /// When the process asked to give up its place.
    leaves: Time,
}

/// A grant whose order is to be judged.
struct Granted<'a> {
    request: &'a Request<'a>,
    fence: i64,
    got: Time,
    /// When the first request was sent that may have given the process the place that it had at the time of the grant.
    since: Time,
}

/// A time during which a process certainly has a place.
#[derive(Clone, Copy)]
struct Stay<'a> {
    refused: &'a Request<'a>,
    got: Time,
    until: Time,
}

enum Judgement {
    Kept,
    Broken,
    Open,
}

/// Judges all orders of a history.
pub fn orders(events: &[Event]) -> Orders {
    let mut leaves = HashMap::new();
    for event in events {
        if let Event::Leaves { waiter, sent } = event {
            let first = leaves.entry(waiter.as_str()).or_insert(*sent);
            *first = (*first).min(*sent);
        }
    }
    let troubles = troubles(events);
    let mut orders = Orders::default();
    for (key, requests) in requests(events) {
        let queue = Queue::of(&requests, &leaves, &troubles);
        queue.judge(key, &mut orders);
    }
    orders
}

/// The requests for each key, in the order in which they were sent.
fn requests(events: &[Event]) -> BTreeMap<&str, Vec<Request<'_>>> {
    let mut answers = HashMap::new();
    for event in events {
        if let Event::Answered {
            request,
            answer,
            got,
        } = event
        {
            answers.insert(*request, (*answer, *got));
        }
    }
    let mut keys = BTreeMap::<&str, Vec<_>>::new();
    for event in events {
        if let Event::Asked {
            request,
            key,
            lease,
            waiter,
            claim,
            overtakes,
            sent,
            ..
        } = event
        {
            keys.entry(key).or_default().push(Request {
                lease,
                waiter: waiter.as_deref(),
                claim: *claim,
                overtakes: *overtakes,
                sent: *sent,
                answer: answers.get(request).copied(),
            });
        }
    }
    for requests in keys.values_mut() {
        requests.sort_by_key(|it| it.sent);
    }
    keys
}

/// The times in which a server may have lost data, or may not know of recent data.
pub(super) fn troubles(events: &[Event]) -> Vec<(Time, Time)> {
    let backs: Vec<_> = events
        .iter()
        .filter_map(|event| match event {
            Event::ServersAreBack { at } => Some(*at),
            _ => None,
        })
        .collect();
    let suffers = events.iter().filter_map(|event| match event {
        Event::ServerSuffers { at } => Some(*at),
        _ => None,
    });
    let end = |from: Time| backs.iter().filter(|back| **back >= from).min();
    let span = |from| (from, end(from).map_or(Time::MAX, |back| back + SETTLES));
    suffers.map(span).collect()
}

impl Request<'_> {
    /// When the answer arrived; `Time::MAX` if there is none.
    fn got(&self) -> Time {
        self.answer.map_or(Time::MAX, |(_, got)| got)
    }

    fn granted(&self) -> Option<(i64, Time)> {
        match self.answer? {
            (Answer::Granted { fence }, got) => Some((fence, got)),
            _ => None,
        }
    }

    /// The place that the refusal of this request shows. A request that overtakes takes no place.
    fn stay(&self) -> Option<Stay<'_>> {
        match self.answer? {
            (Answer::Refused { until, .. }, got) if self.waiter.is_some() && !self.overtakes => {
                Some(Stay {
                    refused: self,
                    got,
                    until,
                })
            }
            _ => None,
        }
    }

    /// Whether the two requests certainly cannot be granted together.
    fn conflicts(&self, other: &Self) -> bool {
        self.claim == Claim::All || other.claim == Claim::All
    }
}

/// What is known of a key.
struct Queue<'a> {
    requests: &'a [Request<'a>],
    waiters: HashMap<&'a str, Waiter<'a>>,
    /// The times at which the places certainly keep the key, in order and without overlaps.
    bound: Vec<(Time, Time)>,
    troubles: &'a [(Time, Time)],
}

impl<'a> Queue<'a> {
    fn of(
        requests: &'a [Request<'a>],
        leaves: &HashMap<&str, Time>,
        troubles: &'a [(Time, Time)],
    ) -> Self {
        let mut waiters = HashMap::<_, Waiter>::new();
        for request in requests {
            let Some(name) = request.waiter else { continue };
            let waiter = waiters.entry(name).or_insert_with(|| Waiter {
                requests: Vec::new(),
                slowest: 0,
                unanswered: Time::MAX,
                leaves: leaves.get(name).copied().unwrap_or(Time::MAX),
            });
            waiter.requests.push(request);
            match request.answer {
                Some((_, got)) => waiter.slowest = waiter.slowest.max(got - request.sent),
                None => waiter.unanswered = waiter.unanswered.min(request.sent),
            }
        }
        Self {
            requests,
            waiters,
            bound: bound(requests),
            troubles,
        }
    }

    fn judge(&self, key: &str, orders: &mut Orders) {
        let mut grants = self.grants();
        grants.sort_by_key(|it| it.since);
        let mut stays: Vec<_> = self.requests.iter().filter_map(Request::stay).collect();
        stays.sort_by_key(|stay| stay.got);
        let mut stays = stays.into_iter().peekable();
        let mut places = BTreeMap::new();
        for grant in grants {
            // A process whose refusal arrived before the process of this grant began to ask had its place earlier.
            while let Some(stay) = stays.next_if(|stay| stay.got < grant.since) {
                places.insert(stay.refused.waiter, stay);
            }
            places.retain(|_, stay| stay.until > grant.since);
            for stay in places.values() {
                match self.judge_pair(stay, &grant) {
                    Judgement::Open => continue,
                    Judgement::Kept => {}
                    Judgement::Broken => orders.violations.push(broken(key, stay, &grant)),
                }
                orders.judged += 1;
            }
        }
    }

    /// The grants whose order is judged: for each lease, the first answer that contains its grant.
    fn grants(&self) -> Vec<Granted<'_>> {
        let since = self.since();
        let mut leases = HashMap::<_, (Time, bool, Option<Granted>)>::new();
        for (request, since) in self.requests.iter().zip(since) {
            let known = leases.entry(request.lease).or_insert((since, false, None));
            known.0 = known.0.min(since);
            known.1 |= request.overtakes;
            if let Some((fence, got)) = request.granted()
                && known.2.as_ref().is_none_or(|first| got < first.got)
            {
                known.2 = Some(Granted {
                    request,
                    fence,
                    got,
                    since,
                });
            }
        }
        let in_order = leases.into_values().filter(|(_, overtakes, _)| !overtakes);
        in_order
            .filter_map(|(since, _, granted)| Some(Granted { since, ..granted? }))
            .collect()
    }

    /// For each request, when the first request was sent that may have given its process its current place. A grant
    /// ends the place if it does not keep it and no other request was in flight at that time.
    fn since(&self) -> Vec<Time> {
        let mut began = HashMap::<_, (Time, Time)>::new();
        let mut ended: HashMap<_, Option<Time>> = HashMap::new();
        let since = self.requests.iter().map(|request| {
            let Some(waiter) = request.waiter else {
                return request.sent;
            };
            let end = ended.remove(waiter).flatten();
            if end.is_some_and(|end| end < request.sent) {
                began.remove(waiter);
            }
            let (since, under_way) = began.entry(waiter).or_insert((request.sent, 0));
            let alone = *under_way <= request.sent;
            *under_way = (*under_way).max(request.got());
            let end = request.granted().map(|(_, got)| got).filter(|_| alone);
            ended.insert(waiter, end);
            *since
        });
        since.collect()
    }

    /// Whether the process with this place was granted the key before this grant.
    fn judge_pair(&self, stay: &Stay, grant: &Granted) -> Judgement {
        let name = stay.refused.waiter;
        let Some(waiter) = name.and_then(|name| self.waiters.get(name)) else {
            return Judgement::Open;
        };
        let is_own = name == grant.request.waiter;
        if is_own || waiter.unanswered <= grant.got || waiter.leaves <= grant.got {
            return Judgement::Open;
        }
        let from = stay.refused.sent;
        let first = |it: &&Request| it.sent.saturating_add(waiter.slowest) < from;
        let first = waiter.requests.partition_point(first);
        let meanwhile = waiter.requests[first..]
            .iter()
            // A request that was sent at the instant of the grant may have come before it.
            .take_while(|it| it.sent <= grant.got)
            .filter(|it| it.got() >= from);
        // Different tasks may wait in one place, so the place may change what it asks for.
        if !meanwhile.clone().all(|it| it.conflicts(grant.request)) {
            return Judgement::Open;
        }
        // A smaller fence shows that the process was granted the key before.
        let before = |it: &&&Request| it.granted().is_some_and(|(fence, _)| fence < grant.fence);
        let served = meanwhile.clone().find(before);
        // The order is judged only if a violation would be visible.
        let to = served.map_or(grant.got, |it| it.sent);
        let is_trouble = |(begin, end): &(Time, Time)| *begin <= to && from <= *end;
        if self.troubles.iter().any(is_trouble) || !self.is_bound(stay.got, to) {
            return Judgement::Open;
        }
        // It is the same place as long as each answer arrived before the place could end.
        let mut until = stay.until;
        let mut stays: Vec<_> = meanwhile.filter_map(|it| it.stay()).collect();
        stays.sort_by_key(|stay| stay.got);
        for next in stays {
            if next.got <= until {
                until = until.max(next.until);
            }
        }
        match served {
            _ if until <= to => Judgement::Open,
            Some(_) => Judgement::Kept,
            None => Judgement::Broken,
        }
    }

    /// Whether the places keep the key during the whole time.
    fn is_bound(&self, from: Time, to: Time) -> bool {
        let next = self.bound.partition_point(|(begin, _)| *begin <= from);
        let span = next.checked_sub(1).and_then(|last| self.bound.get(last));
        span.is_some_and(|(_, end)| *end > to)
    }
}

/// The times at which it was certain that the key had had a holder shortly before.
fn bound(requests: &[Request]) -> Vec<(Time, Time)> {
    let mut spans: Vec<_> = requests
        .iter()
        .filter_map(|request| match request.answer? {
            (Answer::Refused { held, .. }, got) => Some((got, held + BINDS)),
            (Answer::Granted { .. }, got) => Some((got, request.sent + BINDS)),
            // This answer says nothing about the holders.
            (Answer::Done, _) => None,
        })
        .filter(|(begin, end)| begin < end)
        .collect();
    spans.sort_unstable();
    let mut apart = Vec::<(Time, Time)>::new();
    for (begin, end) in spans {
        match apart.last_mut() {
            Some(last) if begin <= last.1 => last.1 = last.1.max(end),
            _ => apart.push((begin, end)),
        }
    }
    apart
}

fn broken(key: &str, stay: &Stay, grant: &Granted) -> Violation {
    let (place, request) = (stay.refused, grant.request);
    Kind::Order.of(format!(
        "{key}: {request:?} was asked for since {} and granted at {} with the fence {}, before {place:?}",
        grant.since, grant.got, grant.fence
    ))
}

#[cfg(test)]
mod tests;
