//! Checks that readers come before the processes that wait only in a shared turn of their process: for a moment after a
//! reader was granted the key in its turn.
//!
//! Invariants:
//!
//! - A shared turn begins with a grant in turn. So a process sends no shared request that overtakes before the answer
//!   with such a grant, and at most [`MOST`] in each shared turn.
//! - A request of one shared turn may be sent in the next one, because it may wait to be sent, or its process may be
//!   stopped.

use std::collections::{HashMap, HashSet};

use super::{Kind, Violations};
use crate::history::{Answer, Claim, Event};

/// The most requests in a shared turn.
const MOST: usize = 32;

/// The requests for a key since the last grant in turn.
#[derive(Default)]
struct SharedTurn<'a> {
    has_begun: bool,
    /// The leases of the requests that overtake.
    leases: HashSet<&'a str>,
}

/// The violations in the history of one process.
pub(super) fn shared_turns(process: &[Event]) -> Violations {
    let mut in_turn = HashMap::new();
    let mut turns = HashMap::<&str, SharedTurn>::new();
    let mut violations = Vec::new();
    for event in process {
        match event {
            Event::Asked {
                request,
                key,
                lease,
                waiter,
                claim: Claim::OneOf(_),
                overtakes,
                ..
            } => match (waiter, overtakes) {
                (Some(_), false) => drop(in_turn.insert(*request, key.as_str())),
                (None, true) => {
                    let turn = turns.entry(key).or_default();
                    turn.leases.insert(lease);
                    if !turn.has_begun {
                        let text =
                            format!("{key}: {lease} overtook, and no grant in turn came before");
                        violations.push(Kind::Order.of(text));
                    } else if turn.leases.len() == 2 * MOST + 1 {
                        let text = format!("{key}: {lease} overtook, as {} before it", 2 * MOST);
                        violations.push(Kind::Order.of(text));
                    }
                }
                _ => {}
            },
            Event::Answered {
                request,
                answer: Answer::Granted { .. },
                ..
            } => {
                if let Some(key) = in_turn.get(request) {
                    let turn = turns.entry(key).or_default();
                    turn.has_begun = true;
                    turn.leases.clear();
                }
            }
            _ => {}
        }
    }
    violations
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(request: u64, waiter: Option<&str>) -> Event {
        Event::Asked {
            request,
            key: "k".to_owned(),
            lease: request.to_string(),
            waiter: waiter.map(str::to_owned),
            claim: Claim::OneOf(1_000),
            overtakes: waiter.is_none(),
            keeps: false,
            fences: 1,
            sent: request,
        }
    }

    fn granted(request: u64) -> Event {
        Event::Answered {
            request,
            answer: Answer::Granted { fence: 1 },
            got: request,
        }
    }

    #[test]
    fn readers_overtake_only_after_a_grant_in_turn() {
        let turn = [asked(0, Some("w")), granted(0)];
        let comes_back = [asked(1, None), granted(1)];
        let right = [turn.clone(), comes_back.clone()].concat();
        assert_eq!(shared_turns(&right), Violations::new());
        let wrong = [comes_back, turn].concat();
        assert_eq!(shared_turns(&wrong)[0].kind, Kind::Order);
    }

    #[test]
    fn not_many_readers_overtake_after_one_grant() {
        let come_back = |from, many| (from..from + many).map(|number| asked(number, None));
        let turns = |many| {
            let mut history = Vec::new();
            for turn in [0, 1_000] {
                history.extend([asked(turn, Some("w")), granted(turn)]);
                history.extend(come_back(turn + 1, many));
            }
            shared_turns(&history).len()
        };
        assert_eq!([turns(32), turns(64), turns(65), turns(90)], [0, 0, 2, 2]);
    }
}
