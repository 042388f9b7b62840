//! When a server may have told of what a fault then undid.

use std::ops::RangeInclusive;

use crate::history::{Event, Time};

/// How long before its fault a server may have acknowledged a release that the fault undoes, or told of a grant. A server
/// writes its journal to the disk every 100 ms, and the other members get a change about as fast, unless the machine is
/// busy.
const UNDONE_WITHIN: Time = 5_000_000;

/// The times at which a server may have told of what a fault then undid, because none of its copies had it.
pub(super) struct Risks(Vec<RangeInclusive<Time>>);

impl Risks {
    /// For a refusal that names holders.
    pub(super) fn of_holders(events: &[Event]) -> Self {
        Self::of(events, |event| match event {
            Event::ReadsAtRisk { from, to } | Event::ReleasesAtRisk { from, to, .. } => {
                Some((*from, *to))
            }
            _ => None,
        })
    }

    /// For a refusal that says that a tick is done.
    pub(super) fn of_ticks(events: &[Event]) -> Self {
        Self::of(events, |event| match event {
            Event::ReadsAtRisk { from, to } => Some((*from, *to)),
            _ => None,
        })
    }

    fn of(events: &[Event], risk: impl Fn(&Event) -> Option<(Time, Time)>) -> Self {
        let risks = events.iter().filter_map(risk);
        Self(risks.map(|(from, to)| at_risk(from, to)).collect())
    }

    pub(super) fn contain(&self, told: Time) -> bool {
        self.0.iter().any(|risk| risk.contains(&told))
    }
}

/// When what only one server had may have been undone by a fault between these times.
pub(super) fn at_risk(from: Time, to: Time) -> RangeInclusive<Time> {
    from.saturating_sub(UNDONE_WITHIN)..=to
}
