//! What is tried in a run.

use std::time::Duration;

use leasehold_tests::disguise::Disguise;

use crate::{
    broken::Wrong,
    schedule::{self, Fault, Mishap},
    tally::LEAST,
    weather::Altered,
    work::Pace,
};

/// The clocks of the clients, in minutes.
pub(crate) const CLOCKS: [i32; 4] = [0, 5, -5, 0];

/// Longer than a set needs to choose another primary.
const OUTLASTS_AN_ELECTION: Duration = Duration::from_secs(12);

/// What is tried, for how long.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// At least for this time, and until enough has happened. Where something is wrong on purpose the run
    /// ends when it was caught, or after this time.
    pub lasts: Duration,
    pub seed: u64,
    /// The servers suffer once in this time; `None` if clients and servers suffer each thing once.
    pub period: Option<Duration>,
    /// Of each client.
    pub workers: u64,
    /// One stay in so many is about as long as the ttl, or longer.
    pub dawdles: u32,
    /// Whether it is enough that the locks were used. Until all that a run shows has happened often enough slow servers
    /// take minutes.
    pub locks_only: bool,
    /// What is wrong on purpose.
    pub wrong: Wrong,
}

impl Plan {
    /// How many late writes to documents without a guard have to get through, to show that there were any. A run in which
    /// each thing happens once has few, and waits for no more.
    pub(crate) fn least_late_writes(&self) -> usize {
        match (self.locks_only, self.period) {
            (true, _) => 0,
            (false, None) => 1,
            (false, Some(_)) => LEAST as usize,
        }
    }

    pub(crate) fn mishaps(&self) -> Vec<(Duration, usize, Mishap)> {
        match self.period {
            None => schedule::each_mishap(self.seed, CLOCKS.len()),
            Some(_) => schedule::mishaps(self.seed, self.lasts, CLOCKS.len()),
        }
    }

    pub(crate) fn faults(&self, engine: &str) -> Vec<(Duration, Fault)> {
        match (self.period, self.wrong) {
            (None, _) => schedule::each_fault(self.seed, engine),
            // What one member acknowledged is lost with that member.
            (Some(period), Wrong::OneMemberAcknowledges) => schedule::cut_offs(self.lasts, period),
            (Some(period), _) => schedule::faults(self.seed, engine, self.lasts, period),
        }
    }

    pub(crate) fn altered(&self) -> Altered {
        match self.wrong {
            Wrong::OneMemberAcknowledges => Altered::MajorityToOne,
            _ => Altered::Nothing,
        }
    }

    /// What the routers of a sharded cluster look like to the clients.
    pub(crate) fn disguise(&self) -> Option<Disguise> {
        (self.wrong == Wrong::AsksRouters).then_some(Disguise::Primary)
    }

    pub(crate) fn pace(&self, measured: Pace) -> Pace {
        match self.wrong {
            Wrong::OneMemberAcknowledges => Pace {
                ttl: measured.ttl.max(OUTLASTS_AN_ELECTION),
                ..measured
            },
            _ => measured,
        }
    }
}
