//! The plan of a run.

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

/// A time longer than a set needs to elect another primary.
const OUTLASTS_AN_ELECTION: Duration = Duration::from_secs(12);

/// What a run tests, and for how long.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// The minimum duration. The run also lasts until enough has happened. A run with a deliberate error ends when the
    /// error is caught, or after this time.
    pub lasts: Duration,
    pub seed: u64,
    /// The servers have one fault in this time; `None` if clients and servers have each fault once.
    pub period: Option<Duration>,
    /// The number of workers of each client.
    pub workers: u64,
    /// One in this many stays lasts about as long as the ttl, or longer.
    pub dawdles: u32,
    /// Whether it is enough that the locks were used. On slow servers it takes minutes until everything that a run can
    /// show has happened often enough.
    pub locks_only: bool,
    /// The deliberate error.
    pub wrong: Wrong,
}

impl Plan {
    /// Each fault happens once, and the run ends when enough has happened.
    pub const EACH_ONCE: Self = Self {
        lasts: Duration::ZERO,
        seed: 1,
        period: None,
        workers: 11,
        dawdles: 30,
        locks_only: false,
        wrong: Wrong::Nothing,
    };

    /// How many late writes to documents without a guard must be accepted, to show that there were late writes. A run
    /// with each fault once has few of them, so one is enough.
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
            // If the member is lost, writes that only this member acknowledged are lost too.
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

    /// What the routers of a sharded cluster pretend to be for the clients.
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
