//! `OwnPlace`: the place of this process among the processes that wait for a key. The document of the key has these
//! places. This decides what a request says about the place, and when the next request is due. Pure: times come in as
//! arguments.
//!
//! Invariants:
//!
//! - A place has the id of the claim that waits in it. The grant of that claim ends it, and so does its leave.
//! - The next request reaches the store before the place of the last request expires, if its answer takes no longer
//!   than the last answer plus [`SLACK`].

use std::{mem, time::Duration};

use tokio::time::Instant;

use super::pace::{self, Ahead, Pace};
use crate::{
    messages::InTurn,
    model::{Held, LeaseId, MAX_PLACE_TIME, MAX_PLACES},
    retry,
    rules::turn::{WORTH_A_WRITE, long_enough},
};

/// A place counts for at least this much longer than the pause before the next request.
const SLACK: Duration = Duration::from_millis(250);

/// A grant that comes this much before the end of the time for which the key was kept for others counts as one after
/// it: the time of an answer is not that of the server.
const TOLERANCE: Duration = Duration::from_millis(250);

/// The place of this process.
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
        } else if self.pace.holders_leave && !reports_freed {
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

/// For how long a place must count if the next request comes after this pause and does not write the place again.
fn for_pause(pause: Duration) -> Duration {
    (pause + SLACK * 2).min(MAX_PLACE_TIME)
}

/// What telemetry is told about a place. Nothing else depends on it.
#[derive(Default)]
pub(super) struct PlaceReport {
    /// When a refusal took the place, and behind how many processes. `None` if no refusal has.
    taken: Option<(Instant, usize)>,
    /// Whether a refusal has said that all places are taken.
    has_no_room: bool,
    /// Set while refusals say that the key is free and kept for processes ahead.
    kept: Option<KeptForOthers>,
}

/// What a refusal says about the place for the first time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PlaceNews {
    /// The refusal has taken it, behind this many processes.
    Taken { ahead: usize },
    /// All places are taken.
    NoRoom,
}

/// A free key that is kept for processes ahead.
#[derive(Clone, Copy, Debug)]
struct KeptForOthers {
    /// When a refusal first said so.
    since: Instant,
    ahead: usize,
    /// For how long the key was kept for all of them together.
    binds_for: Duration,
}

/// What telemetry reports about a place that a grant has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EndedTurn {
    /// How many processes were ahead when the place was taken.
    pub(crate) ahead: usize,
    pub(crate) waited: Duration,
    /// How many processes ahead did not acquire the key while it was kept for them, and how long it was kept.
    pub(crate) passed: Option<(usize, Duration)>,
}

impl PlaceReport {
    /// Records a refusal. Returns what it says about the place for the first time.
    pub(super) fn refused(&mut self, held: &Held, now: Instant) -> Option<PlaceNews> {
        let ahead = held.ahead();
        self.kept = (held.holders().is_empty() && ahead > 0).then(|| {
            self.kept.unwrap_or(KeptForOthers {
                since: now,
                ahead,
                binds_for: held.binds_for(),
            })
        });
        if ahead >= MAX_PLACES {
            // A place that this process had has expired.
            self.taken = None;
            let is_known = mem::replace(&mut self.has_no_room, true);
            return (!is_known).then_some(PlaceNews::NoRoom);
        }
        if self.taken.is_some() {
            return None;
        }
        self.taken = Some((now, ahead));
        Some(PlaceNews::Taken { ahead })
    }

    /// Records a grant, which has ended the place. If a refusal had taken it, returns what telemetry reports about it.
    pub(super) fn granted(&mut self, now: Instant) -> Option<EndedTurn> {
        let Self { taken, kept, .. } = mem::take(self);
        let (at, ahead) = taken?;
        let passed = kept.and_then(|kept| {
            let time = now.saturating_duration_since(kept.since);
            // If the grant came earlier, the processes ahead gave up their places, or held the key between two requests
            // of this process.
            (time + TOLERANCE >= kept.binds_for).then_some((kept.ahead, time))
        });
        Some(EndedTurn {
            ahead,
            waited: now.saturating_duration_since(at),
            passed,
        })
    }
}
