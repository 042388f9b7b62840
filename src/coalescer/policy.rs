//! The rule that decides how many of the waiting acquires and releases are sent now, and whether alone or in a batch.
//! `queue.rs` decides which. The rule does no I/O and reads no clock.

use std::time::Duration;

use super::choice::SendMode;

/// How long a request keeps its slot although a later one was answered first. It is also the time without a send after
/// which the first request or batch is sent that has no slot.
pub(super) const HANGS: Duration = Duration::from_millis(200);
/// How many requests and batches may be under way before each further one takes longer than [`HANGS`]. It is more than
/// there are slots, so that requests which hang by themselves do not delay the others.
const MANY: usize = 40;
/// Fewer requests than this are not sent in a batch, unless they are a set.
pub(super) const LEAST_BATCH: usize = 8;
/// The most batches under way.
const BATCHES: usize = 3;
/// If fewer requests than this come at once, they do not wait for each other: a batch of fewer costs more than they do.
const CROWD: usize = 6;

/// How many of the waiting requests are sent now.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// None, until a request or a batch ends.
    Wait,
    /// The first of them, this many, each alone.
    Alone(usize),
    /// As many as fit in one batch, in a batch, if these are at least this many.
    Together(usize),
}

/// How much may be under way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// The most requests under way that were sent alone.
    pub(super) max_concurrent: usize,
    batches: usize,
}

impl Limits {
    /// The limits while renewals are late, because renewals go before acquires and releases.
    pub(super) const WHILE_RENEWALS_LATE: Self = Self {
        max_concurrent: 1,
        batches: 1,
    };

    /// The limits of a store that works best with this many [requests at once](crate::Store::max_concurrent).
    pub(super) fn of(max_concurrent: usize) -> Self {
        Self {
            max_concurrent,
            batches: BATCHES,
        }
    }
}

/// How many requests wait, and how many are under way.
#[derive(Clone, Copy, Debug)]
pub(super) struct LoadSnapshot {
    pub(super) waiting: usize,
    /// How many of those that wait must not go in a batch.
    pub(super) unbatchable: usize,
    /// How many batches are under way.
    pub(super) batches: usize,
    /// How many of the batches were sent so recently that they are likely to end soon.
    pub(super) recent_batches: usize,
    /// How many requests that were sent alone are under way.
    pub(super) singles: usize,
    /// How many requests and batches of a crowd were sent so recently that they are likely to end soon.
    pub(super) recent: usize,
    /// The greatest recent number of requests, under way and waiting together.
    pub(super) peak: usize,
    /// How the requests are sent if they are a crowd.
    pub(super) mode: SendMode,
    /// For how long nothing was sent; zero if nothing ever was.
    pub(super) not_sent_for: Duration,
}

impl LoadSnapshot {
    /// Which of the waiting requests are sent now. `least` requests are enough for a batch.
    pub(super) fn next(self, limits: Limits, least: usize) -> Next {
        let batchable = self.waiting - self.unbatchable;
        let are_enough = self.waiting >= self.peak / (BATCHES + 1);
        let is_grouped = self.is_grouped();
        let (least, many) = match is_grouped {
            true => (2, 2 * LEAST_BATCH),
            false => (least, least),
        };
        let is_next = match is_grouped {
            true => self.recent == 0 && self.batches < limits.batches,
            false => self.batches == 0,
        };
        let has_slot = is_next || self.batches < limits.batches && are_enough && batchable >= many;
        if batchable >= least && (has_slot || self.is_stalled()) {
            return Next::Together(least);
        }
        self.each_alone(limits)
    }

    /// Whether requests wait until what was sent before is answered, and are then sent together.
    fn is_grouped(self) -> bool {
        self.mode == SendMode::Grouped && is_crowd(self.peak)
    }

    /// Whether a request may be sent alone. While a batch is recent, requests wait for the next batch instead.
    pub(super) fn has_room(self, limits: Limits) -> bool {
        let wait = self.recent_batches > 0 || self.is_grouped() && self.recent > 0;
        !wait && self.free_slots(limits) > 0
    }

    /// How many of the requests that must not go in a batch are sent now, if the others stay or go in a batch. They
    /// have nothing to wait for but a slot: batches may follow each other without a pause, and would keep them waiting
    /// without end. If the requests go alone, they go in the order in which they came.
    pub(super) fn next_unbatchable(self, limits: Limits) -> usize {
        self.free_slots(limits).min(self.unbatchable)
    }

    /// As [`next`](Self::next), if the requests cannot go in a batch.
    pub(super) fn each_alone(self, limits: Limits) -> Next {
        match self.free_slots(limits).min(self.waiting) {
            free if free > 0 && self.has_room(limits) => {
                Next::Alone(if self.is_grouped() { 1 } else { free })
            }
            _ if self.is_stalled() && self.waiting > 0 => Next::Alone(1),
            _ => Next::Wait,
        }
    }

    /// Whether nothing was sent for so long that either the requests under way hang or the store is slow. If [`MANY`]
    /// are under way without an answer, the store is slow. This then takes longer with each of them, so that a slow
    /// store does not get more and more requests.
    fn is_stalled(self) -> bool {
        let too_many = (self.singles + self.batches).saturating_sub(MANY);
        let more = u32::try_from(too_many).unwrap_or(u32::MAX);
        self.not_sent_for >= HANGS.saturating_mul(more.saturating_add(1))
    }

    /// How many more requests may be sent alone.
    fn free_slots(self, limits: Limits) -> usize {
        limits.max_concurrent.saturating_sub(self.singles)
    }
}

/// Whether so many requests come at once that it matters how they are sent. The argument is the greatest recent number of
/// requests, under way and waiting together.
pub(super) fn is_crowd(peak: usize) -> bool {
    peak >= CROWD
}

#[cfg(test)]
mod tests {
    use super::*;

    const IDLE: LoadSnapshot = LoadSnapshot {
        waiting: 0,
        unbatchable: 0,
        batches: 0,
        recent_batches: 0,
        recent: 0,
        singles: 0,
        peak: 0,
        mode: SendMode::AtOnce,
        not_sent_for: Duration::ZERO,
    };

    #[test]
    fn few_go_alone_and_many_together() {
        let limits = Limits::of(8);
        let next = |waiting, batches, singles, peak| {
            let load = LoadSnapshot {
                waiting,
                batches,
                recent_batches: batches,
                recent: batches + singles,
                singles,
                peak,
                ..IDLE
            };
            load.next(limits, LEAST_BATCH)
        };
        // There are slots for all of them.
        assert_eq!(next(3, 0, 0, 3), Next::Alone(3));
        assert_eq!(next(3, 0, 6, 9), Next::Alone(2));
        assert_eq!(next(LEAST_BATCH - 1, 0, 8, 15), Next::Wait);
        assert_eq!(next(LEAST_BATCH, 0, 8, 16), Next::Together(LEAST_BATCH));
        // Requests that come while a batch is under way gather for the next one.
        assert_eq!(next(LEAST_BATCH - 1, 1, 0, 15), Next::Wait);
        assert_eq!(next(LEAST_BATCH, 1, 0, 16), Next::Together(LEAST_BATCH));
        assert_eq!(next(15, 2, 0, 64), Next::Wait);
        assert_eq!(next(16, 2, 0, 64), Next::Together(LEAST_BATCH));
        assert_eq!(next(100, BATCHES, 0, 200), Next::Wait);
        // If no batch is under way, they do not wait for as many as there were at the peak.
        assert_eq!(next(LEAST_BATCH, 0, 0, 200), Next::Together(LEAST_BATCH));
        assert_eq!(next(0, 0, 0, 0), Next::Wait);
        // While renewals are late, one request and one batch are sent at a time.
        let few = LoadSnapshot {
            waiting: 100,
            peak: 100,
            ..IDLE
        };
        assert_eq!(
            few.next(Limits::WHILE_RENEWALS_LATE, LEAST_BATCH),
            Next::Together(LEAST_BATCH)
        );
        assert_eq!(few.each_alone(Limits::WHILE_RENEWALS_LATE), Next::Alone(1));
        let busy = LoadSnapshot {
            batches: 1,
            singles: 1,
            ..few
        };
        assert_eq!(
            busy.next(Limits::WHILE_RENEWALS_LATE, LEAST_BATCH),
            Next::Wait
        );
        assert_ne!(busy.next(limits, LEAST_BATCH), Next::Wait, "the control");
        // A set is sent in one batch, however small it is.
        let set = LoadSnapshot {
            waiting: 2,
            peak: 2,
            ..IDLE
        };
        assert_eq!(set.next(limits, 2), Next::Together(2));
        assert_eq!(set.next(limits, LEAST_BATCH), Next::Alone(2), "the control");
        // A batch that takes long delays no other requests.
        let load = LoadSnapshot {
            waiting: 2,
            batches: 1,
            peak: 20,
            ..IDLE
        };
        assert_eq!(load.next(limits, LEAST_BATCH), Next::Alone(2));
    }

    #[test]
    fn a_crowd_in_groups_waits_for_what_was_sent_before() {
        let limits = Limits::of(16);
        let idle = LoadSnapshot {
            waiting: 3,
            peak: CROWD,
            mode: SendMode::Grouped,
            ..IDLE
        };
        let next = |load: LoadSnapshot| load.next(limits, LEAST_BATCH);
        assert_eq!(next(idle), Next::Together(2));
        let last = LoadSnapshot { waiting: 1, ..idle };
        assert_eq!(next(last), Next::Alone(1));
        let busy = LoadSnapshot {
            singles: 1,
            recent: 1,
            ..idle
        };
        assert_eq!(next(busy), Next::Wait);
        assert!(!busy.has_room(limits));
        let few = LoadSnapshot {
            peak: CROWD - 1,
            ..busy
        };
        assert_eq!(next(few), Next::Alone(3), "they are no crowd");
        let at_once = LoadSnapshot {
            mode: SendMode::AtOnce,
            ..busy
        };
        assert_eq!(next(at_once), Next::Alone(3), "the control");
        // A request that hangs keeps no other one waiting.
        assert_eq!(next(LoadSnapshot { recent: 0, ..busy }), Next::Together(2));
        // Two large batches overlap.
        let large = LoadSnapshot {
            waiting: 2 * LEAST_BATCH,
            batches: 1,
            recent_batches: 1,
            recent: 1,
            peak: 4 * LEAST_BATCH,
            ..idle
        };
        assert_eq!(next(large), Next::Together(2));
    }

    #[test]
    fn one_more_goes_than_there_are_places_when_nothing_could_go_for_long() {
        let limits = Limits::of(8);
        let full = LoadSnapshot {
            waiting: 100,
            batches: BATCHES,
            singles: 8,
            peak: 400,
            ..IDLE
        };
        assert_eq!(full.next(limits, LEAST_BATCH), Next::Wait);
        let stalled = LoadSnapshot {
            not_sent_for: HANGS,
            ..full
        };
        assert_eq!(
            stalled.next(limits, LEAST_BATCH),
            Next::Together(LEAST_BATCH)
        );
        assert_eq!(stalled.each_alone(limits), Next::Alone(1));
        let many = LoadSnapshot {
            singles: MANY,
            ..stalled
        };
        assert_eq!(many.next(limits, LEAST_BATCH), Next::Wait);
        let stalled_for_longer = LoadSnapshot {
            not_sent_for: HANGS * (1 + BATCHES as u32),
            ..many
        };
        assert_eq!(
            stalled_for_longer.next(limits, LEAST_BATCH),
            Next::Together(LEAST_BATCH)
        );
        // While renewals are late, too.
        assert_eq!(
            stalled.each_alone(Limits::WHILE_RENEWALS_LATE),
            Next::Alone(1)
        );
        let nobody = LoadSnapshot {
            waiting: 0,
            ..stalled
        };
        assert_eq!(nobody.next(limits, LEAST_BATCH), Next::Wait);
    }

    #[test]
    fn what_must_go_alone_waits_for_a_slot_and_for_no_batch() {
        let limits = Limits::of(8);
        let load = LoadSnapshot {
            waiting: 100,
            unbatchable: 3,
            batches: 2,
            recent_batches: 2,
            recent: 2,
            peak: 100,
            ..IDLE
        };
        assert_eq!(load.next(limits, LEAST_BATCH), Next::Together(LEAST_BATCH));
        assert_eq!(load.next_unbatchable(limits), 3);
        let nearly_full = LoadSnapshot { singles: 7, ..load };
        assert_eq!(nearly_full.next_unbatchable(limits), 1);
        let full = LoadSnapshot { singles: 8, ..load };
        assert_eq!(full.next_unbatchable(limits), 0);
        // They make no batch.
        let few = LoadSnapshot {
            waiting: LEAST_BATCH + 2,
            ..load
        };
        assert_eq!(few.next(limits, LEAST_BATCH), Next::Wait);
    }
}
