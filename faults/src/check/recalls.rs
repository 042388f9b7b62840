//! Checks that a lease which stays with its process goes back when another process waits for its key.
//!
//! Invariants:
//!
//! - A process waits as long as it certainly has a place in the document of the key. A process that is stopped, or
//!   cannot reach the servers, has a place only until its time is over.
//! - The holder keeps the key at a time if it grants it from memory then, or if it sends it back then. A process that
//!   is stopped does neither.
//! - A store that is asked whether a process waits may answer from a copy that lags behind a little.
//! - Recalls while a server has a fault are not judged.

use std::collections::{BTreeMap, HashMap};

use super::{
    Kind, Violations,
    blocks::{self, Stay},
    order::troubles,
};
use crate::history::{Answer, Event, Time};

/// How long a key may stay with a process while another one waits for it, unless the history says otherwise.
const LONGEST: Time = 8_000_000;

/// How far behind the copy may lag that tells who waits.
const LAG: Time = 2_000_000;

/// The reason for which a lease goes back if another process waits.
pub const WAITED_FOR: &str = "waited_for";

/// How many leases went back because another process waited.
pub fn recalls_heard(events: &[Event]) -> usize {
    let heard = |it: &&Event| matches!(it, Event::WentBack { reason, .. } if reason == WAITED_FOR);
    events.iter().filter(heard).count()
}

fn longest(events: &[Event]) -> Time {
    let said = events.iter().find_map(|event| match event {
        Event::RecallsTake { longest } => Some(*longest),
        _ => None,
    });
    said.unwrap_or(LONGEST)
}

/// The processes that waited while a key stayed with another one: for too long, or although the store was asked.
pub fn recalls(events: &[Event]) -> Violations {
    let (places, troubles) = (places(events), troubles(events));
    let mut violations = kept_too_long(events, &places, &troubles);
    violations.extend(not_told(events, &places, &troubles));
    violations
}

/// The places for which a store that was asked said that no process waits.
fn not_told(events: &[Event], places: &Places, troubles: &[(Time, Time)]) -> Violations {
    let mut violations = Violations::new();
    for event in events {
        let Event::Looked {
            asked,
            told,
            sent,
            got,
        } = event
        else {
            continue;
        };
        for key in asked.iter().filter(|key| !told.contains(key)) {
            let all = places.get(key.as_str()).map_or(&[][..], |all| &all[..]);
            let waits = |place: &&Place| {
                let is_trouble = |(begin, end): &(Time, Time)| begin <= got && place.from <= *end;
                place.from + LAG < *sent && place.until > *got && !troubles.iter().any(is_trouble)
            };
            if let Some(place) = all.iter().find(waits) {
                violations.push(Kind::Recall.of(format!(
                    "{key}: at {got} nobody was said to wait, and {} waited since {}",
                    place.waiter, place.from
                )));
            }
        }
    }
    violations
}

/// The keys that stayed with a process for too long while another one waited.
fn kept_too_long(events: &[Event], places: &Places, troubles: &[(Time, Time)]) -> Violations {
    let stays = blocks::stays(events);
    let longest = longest(events);
    let granted = granted(events);
    let mut violations = BTreeMap::new();
    for event in events {
        let (lease, at) = match event {
            Event::Granted { lease, sent, .. } => (lease, *sent),
            Event::WentBack { lease, at, .. } => (lease, *at),
            _ => continue,
        };
        let Some(stay) = stays.get(lease.as_str()) else {
            continue;
        };
        // The lease is lost if the key was granted again. The process may learn it late.
        let next = granted[stay.key].range(stay.fence + 1..);
        if next.map(|(_, got)| *got).min().is_some_and(|got| got <= at) {
            continue;
        }
        let all = places.get(stay.key).map_or(&[][..], |places| &places[..]);
        let waits = |place: &&Place| {
            let from = place.from.max(stay.got);
            let is_trouble = |(begin, end): &(Time, Time)| *begin <= at && from <= *end;
            place.until > at && from + longest < at && !troubles.iter().any(is_trouble)
        };
        if let Some(place) = all.iter().find(waits) {
            violations
                .entry(lease)
                .or_insert_with(|| kept(lease, stay, place, at));
        }
    }
    violations.into_values().collect()
}

fn kept(lease: &str, stay: &Stay, place: &Place, at: Time) -> super::Violation {
    Kind::Recall.of(format!(
        "{}: {lease} stayed until {at}, and {} waited since {}",
        stay.key, place.waiter, place.from
    ))
}

/// The fences that a store granted for each key, and when the answers arrived.
fn granted(events: &[Event]) -> HashMap<&str, BTreeMap<i64, Time>> {
    let mut keys = HashMap::<_, BTreeMap<_, _>>::new();
    for request in requests(events) {
        if let Some((Answer::Granted { fence }, got)) = request.answer {
            let first = keys.entry(request.key).or_default();
            first
                .entry(fence)
                .and_modify(|it: &mut Time| *it = got.min(*it))
                .or_insert(got);
        }
    }
    keys
}

/// A time during which a process certainly has a place.
struct Place<'a> {
    waiter: &'a str,
    from: Time,
    until: Time,
}

struct Request<'a> {
    key: &'a str,
    waiter: Option<&'a str>,
    sent: Time,
    answer: Option<(Answer, Time)>,
}

fn requests(events: &[Event]) -> Vec<Request<'_>> {
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
    let asked = events.iter().filter_map(|event| match event {
        Event::Asked {
            request,
            key,
            waiter,
            sent,
            ..
        } => Some(Request {
            key,
            waiter: waiter.as_deref(),
            sent: *sent,
            answer: answers.get(request).copied(),
        }),
        _ => None,
    });
    asked.collect()
}

type Places<'a> = HashMap<&'a str, Vec<Place<'a>>>;

/// The places of all processes, by key. A refusal that may have come after a grant to the same process proves none.
fn places(events: &[Event]) -> Places<'_> {
    let mut waiters = BTreeMap::<_, Vec<Request>>::new();
    for request in requests(events) {
        if let Some(waiter) = request.waiter {
            let of = waiters.entry((request.key, waiter)).or_default();
            of.push(request);
        }
    }
    let mut ends = HashMap::new();
    for event in events {
        if let Event::Leaves { waiter, sent } = event {
            let first = ends.entry(waiter.as_str()).or_insert(*sent);
            *first = (*first).min(*sent);
        }
    }
    let mut keys = HashMap::<_, Vec<_>>::new();
    for ((key, waiter), requests) in waiters {
        let left = ends.get(waiter).copied().unwrap_or(Time::MAX);
        keys.entry(key)
            .or_default()
            .extend(of_waiter(waiter, &requests, left));
    }
    keys
}

/// The places of one process.
fn of_waiter<'a>(waiter: &'a str, requests: &[Request], left: Time) -> Vec<Place<'a>> {
    // The times within which a place may have ended with a grant.
    let mut grants = Vec::new();
    let mut refusals = Vec::new();
    for request in requests {
        match request.answer {
            Some((Answer::Refused { until, .. }, got)) => refusals.push((request.sent, got, until)),
            Some((_, got)) => grants.push((request.sent, got)),
            None => grants.push((request.sent, Time::MAX)),
        }
    }
    refusals.sort_by_key(|(_, got, _)| *got);
    let mut places = Vec::<Place>::new();
    for (sent, got, until) in refusals {
        let overlaps = |(begin, end): &(Time, Time)| *begin <= got && sent <= *end;
        if grants.iter().any(overlaps) {
            continue;
        }
        let next = grants.iter().map(|(begin, _)| *begin);
        let next = next.filter(|begin| *begin > got).min().unwrap_or(Time::MAX);
        let until = until.min(next).min(left);
        match places.last_mut() {
            Some(place) if got <= place.until => place.until = place.until.max(until),
            _ if got < until => places.push(Place {
                waiter,
                from: got,
                until,
            }),
            _ => {}
        }
    }
    places
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::Claim;

    const SECOND: Time = 1_000_000;

    fn asked(request: u64, lease: &str, waiter: Option<&str>, fences: u16, sent: Time) -> Event {
        Event::Asked {
            request,
            key: "k".to_owned(),
            lease: lease.to_owned(),
            waiter: waiter.map(str::to_owned),
            claim: Claim::All,
            overtakes: false,
            fences,
            sent,
        }
    }

    fn granted(fence: i64, sent: Time) -> Event {
        Event::Granted {
            key: "k".to_owned(),
            lease: "stays".to_owned(),
            claim: Claim::All,
            fence,
            sent,
            got: sent + 1,
        }
    }

    /// A key that stays from the first second on, while another process waits until this second.
    fn waited(until: u64) -> Vec<Event> {
        let mut history = vec![
            asked(0, "stays", None, 100, 0),
            Event::Answered {
                request: 0,
                answer: Answer::Granted { fence: 100 },
                got: 1,
            },
            granted(1, 0),
        ];
        for second in 1..until {
            let at = second * SECOND;
            history.push(asked(second, "waits", Some("w"), 1, at));
            let (held, until) = (at, at + 2 * SECOND);
            history.push(Event::Answered {
                request: second,
                answer: Answer::Refused { held, until },
                got: at + 10,
            });
        }
        history
    }

    fn kinds(history: &[Event]) -> Vec<Kind> {
        recalls(history).iter().map(|it| it.kind).collect()
    }

    fn with(mut history: Vec<Event>, event: Event) -> Vec<Event> {
        history.push(event);
        history
    }

    #[test]
    fn a_key_that_is_granted_from_memory_although_a_process_waits_is_seen() {
        let waited = waited(20);
        assert_eq!(kinds(&waited), []);
        // It takes a while to hear of it.
        assert_eq!(kinds(&with(waited.clone(), granted(2, 8 * SECOND))), []);
        let late = granted(2, 12 * SECOND);
        assert_eq!(kinds(&with(waited.clone(), late)), [Kind::Recall]);
        let went_back = Event::WentBack {
            key: "k".to_owned(),
            lease: "stays".to_owned(),
            reason: "not_used".to_owned(),
            at: 15 * SECOND,
        };
        assert_eq!(kinds(&with(waited, went_back)), [Kind::Recall]);
    }

    #[test]
    fn a_key_that_nobody_waits_for_any_more_may_stay() {
        let late = || granted(2, 12 * SECOND);
        assert_eq!(kinds(&with(waited(5), late())), []);
        let left = Event::Leaves {
            waiter: "w".to_owned(),
            sent: 11 * SECOND,
        };
        assert_eq!(kinds(&with(with(waited(20), left), late())), []);
        let suffers = Event::ServerSuffers { at: 6 * SECOND };
        assert_eq!(kinds(&with(with(waited(20), suffers), late())), []);
        // The answer to this request is not known. It may have ended the place.
        let lost = asked(99, "waits", Some("w"), 1, 3 * SECOND);
        assert_eq!(kinds(&with(with(waited(20), lost), late())), []);
    }

    #[test]
    fn a_store_that_does_not_tell_who_waits_is_seen() {
        let looked = |told: &[&str], at: Time| Event::Looked {
            asked: vec!["k".to_owned()],
            told: told.iter().map(ToString::to_string).collect(),
            sent: at,
            got: at + 1,
        };
        let told = |keys: &[&str], at| kinds(&with(waited(20), looked(keys, at)));
        assert_eq!(told(&[], 5 * SECOND), [Kind::Recall]);
        assert_eq!(told(&["k"], 5 * SECOND), []);
        // The copy may lag behind, and no process waits any more.
        assert_eq!(told(&[], 2 * SECOND), []);
        assert_eq!(told(&[], 25 * SECOND), []);
    }

    #[test]
    fn a_pause_is_no_recall_that_was_not_heard() {
        let mut history = waited(20);
        history.push(asked(98, "other", None, 1, 9 * SECOND));
        history.push(Event::Answered {
            request: 98,
            answer: Answer::Granted { fence: 101 },
            got: 9 * SECOND,
        });
        let went_back = Event::WentBack {
            key: "k".to_owned(),
            lease: "stays".to_owned(),
            reason: "not_used".to_owned(),
            at: 15 * SECOND,
        };
        assert_eq!(kinds(&with(history, went_back)), []);
    }
}
