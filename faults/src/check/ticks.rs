//! Checks that no tick was done twice, by what the clients saw that did the ticks or asked for them.
//!
//! Invariants:
//!
//! - A tick is known to be done from the moment at which any client was told so: by the answer to the release that
//!   wrote it, or to a request for a tick. The latter does not count if the release was never answered, and a node of a
//!   search engine may have undone it.
//! - A run counts from its beginning, when it had its lease. The times at which its lease was requested and at which it
//!   ended do not count.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::{Kind, Newest, Risks, Violations};
use crate::history::Event;

/// The result of the check of a history.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Ticks {
    /// How many ticks were acknowledged as done.
    pub done: usize,
    /// How many runs began, for any tick.
    pub runs: usize,
    pub violations: Violations,
}

/// Checks all ticks of a history.
pub fn ticks(events: &[Event]) -> Ticks {
    let mut ticks = Ticks::default();
    let mut wrong = |text| ticks.violations.push(Kind::Ticks.of(text));
    let newest = newest_done(events);
    let mut runs = HashMap::new();
    let mut acknowledged = BTreeMap::new();
    for event in events {
        match event {
            Event::Began { tick, lease, at } => {
                runs.insert(lease.as_str(), (*tick, *at));
                if let Some(done) = newest.before(*at).filter(|done| done >= tick) {
                    wrong(format!(
                        "{done} was done, and then a run of {tick} began at {at}"
                    ));
                }
            }
            Event::TickDone { tick, got } => {
                if let Some(other) = acknowledged.insert(*tick, *got) {
                    wrong(format!(
                        "{tick} was done twice, as told at {other} and {got}"
                    ));
                }
            }
            _ => {}
        }
    }
    for event in events {
        let Event::ToldDone {
            asked,
            done,
            lease,
            sent,
            got,
        } = event
        else {
            continue;
        };
        if done < asked {
            wrong(format!("{asked} was refused at {got}, and {done} is done"));
        }
        if let Some(newer) = newest.before(*sent).filter(|newer| newer > done) {
            wrong(format!("{newer} was done, and then {done} told at {got}"));
        }
        let ran = runs.get(lease.as_str());
        if ran.is_none_or(|(tick, at)| tick != done || at > got) {
            wrong(format!(
                "{done} was told at {got}, and not begun by {lease}"
            ));
        }
    }
    ticks.done = acknowledged.len();
    ticks.runs = runs.len();
    ticks
}

/// The newest tick that any client knew to be done at each time.
fn newest_done(events: &[Event]) -> Newest {
    let answered = events.iter().filter_map(|event| match event {
        Event::TickDone { tick, got } => Some((*got, *tick)),
        _ => None,
    });
    let certain: HashSet<_> = answered.clone().map(|(_, tick)| tick).collect();
    let risks = Risks::of_ticks(events);
    let told = events.iter().filter_map(|event| match event {
        Event::ToldDone { done, got, .. } => Some((*got, *done)),
        _ => None,
    });
    let told = told.filter(|(got, tick)| certain.contains(tick) || !risks.contain(*got));
    answered.chain(told).collect()
}

#[cfg(test)]
mod tests;
