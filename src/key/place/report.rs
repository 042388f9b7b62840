//! `PlaceReport`: what telemetry is told about the place of a process. Nothing else depends on it. Pure: times come in
//! as arguments.

use std::{mem, time::Duration};

use tokio::time::Instant;

use crate::model::{Held, MAX_PLACES};

/// A grant that comes this much before the end of the time for which the key was kept for others counts as one after
/// it: the time of an answer is not that of the server.
const TOLERANCE: Duration = Duration::from_millis(250);

/// What telemetry is told about a place.
#[derive(Debug, Default)]
pub(crate) struct PlaceReport {
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
    pub(crate) fn refused(&mut self, held: &Held, now: Instant) -> Option<PlaceNews> {
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

    /// Records a grant. If a refusal had taken the place, returns what telemetry reports about it.
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
