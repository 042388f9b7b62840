//! `OwnPlace`: the place of this process among the processes that wait for a key. The document of the key has these
//! places. This decides what a request says about the place, and when the next request is due. `place/report.rs` has
//! what telemetry is told. Pure: times come in as arguments.
//!
//! Invariants:
//!
//! - A place has the id of the claim that waits in it. The grant of that claim ends it, and so does its leave.
//! - The next request reaches the store before the place of the last request expires, if its answer takes no longer
//!   than the last answer plus [`SLACK`].

mod report;

use std::time::Duration;

use tokio::time::Instant;

use self::report::PlaceReport;
pub(super) use self::report::{EndedTurn, PlaceNews};
use super::pace::{self, Ahead, Pace};
use crate::{
    messages::InTurn,
    model::{Held, LeaseId, MAX_PLACE_TIME, MAX_PLACES},
    retry,
    rules::turn::{WORTH_A_WRITE, long_enough},
};

/// A place counts for at least this much longer than the pause before the next request.
const SLACK: Duration = Duration::from_millis(250);

/// The place of this process.
#[derive(Debug)]
pub(super) struct OwnPlace {
    /// Whether a refusal is going to write the place again, because some of its time has passed.
    pub(super) is_due: bool,
    /// How long a request makes the place count. [`pause`](Self::pause) sets this for the next request.
    counts_for: Duration,
    /// How fast the queue moves.
    pub(super) pace: Pace,
    /// What telemetry is told about the place.
    pub(super) report: PlaceReport,
}

/// What wakes the first waiter when the key becomes free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wakes {
    /// Nothing: it asks again and again.
    None,
    /// The store reports freed keys.
    ByStore,
    /// A lease of this process has the key, whose end wakes it.
    Here,
}

impl OwnPlace {
    pub(super) fn new() -> Self {
        Self {
            is_due: false,
            counts_for: for_pause(retry::LONGEST_PAUSE),
            pace: Pace::default(),
            report: PlaceReport::default(),
        }
    }

    /// What the next request of this claim says about its place.
    pub(super) fn in_turn(&self, claim: LeaseId) -> InTurn {
        InTurn::new(claim, self.counts_for)
    }

    /// Records that the claim was granted, which has ended its place. If a refusal had taken the place, returns what
    /// telemetry reports about it.
    pub(super) fn granted(&mut self, now: Instant) -> Option<EndedTurn> {
        self.is_due = false;
        self.report.granted(now)
    }

    /// The pause after a refusal, which the pace [has seen](Pace::see). `otherwise` is the pause if no other process waits
    /// for the key. `chance` is a random number from 0 to 1.
    pub(super) fn pause(
        &mut self,
        (held, ahead): (&Held, Ahead),
        wakes: Wakes,
        otherwise: Duration,
        chance: f64,
    ) -> Duration {
        let [took, _] = self.pace.took;
        let reports_freed = wakes == Wakes::ByStore;
        let wanted = if wakes == Wakes::Here {
            otherwise
        } else if self.pace.had_others_ahead {
            self.pace.pause(held, ahead, reports_freed, chance)
        } else if self.pace.holders_leave() && !reports_freed {
            otherwise.min(self.pace.until_more_leave(held))
        } else {
            otherwise
        };
        let pause = if held.ahead() < MAX_PLACES {
            // If the place would expire before the wanted pause ends, the next request is sent earlier, and takes the
            // place for longer.
            wanted.min(long_enough(self.counts_for).saturating_sub(SLACK + took))
        } else {
            wanted
        };
        // The next request may be the one that takes a place, after a long pause without one. A place that counts for
        // as long would delay others if this process died.
        self.counts_for = for_pause(wanted.clamp(SLACK, pace::MAX_PAUSE) + took);
        self.is_due = pause >= WORTH_A_WRITE;
        pause
    }
}

/// What the request of an owner that may have the key says about its place. It asks once a second at least.
pub(super) fn of_owner(claim: LeaseId) -> InTurn {
    InTurn::new(claim, for_pause(retry::LONGEST_PAUSE))
}

/// For how long a place must count if the next request comes after this pause and does not write the place again.
fn for_pause(pause: Duration) -> Duration {
    (pause + SLACK * 2).min(MAX_PLACE_TIME)
}
