//! `OwnPlace`: the place of this process among the processes that wait for a key. The document of the key has these
//! places. This decides what a request says about the place, and when the next request is due. `place/report.rs` has
//! what telemetry is told. Pure: times come in as arguments.
//!
//! Invariant:
//!
//! - The next request reaches the store before the place of the last request expires, if its answer takes no longer
//!   than the last answer plus [`SLACK`].

mod report;

use std::{mem, num::NonZero, time::Duration};

use tokio::time::Instant;

use self::report::PlaceReport;
pub(super) use self::report::{EndedTurn, PlaceNews};
use super::pace::{self, Ahead, Pace};
use crate::{
    messages::{InTurn, KnownPlace},
    model::{Held, MAX_PLACE_TIME, MAX_PLACES, WaiterId},
    retry,
    rules::turn::{WORTH_A_WRITE, long_enough},
};

/// A place counts for at least this much longer than the pause before the next request.
const SLACK: Duration = Duration::from_millis(250);

/// The place of this process.
#[derive(Debug)]
pub(super) struct OwnPlace {
    waiter: WaiterId,
    /// What the next request says about the place. A request may have taken it, and no grant has ended it since, unless
    /// this is [`KnownPlace::None`].
    known: KnownPlace,
    /// How long a request makes the place count. [`pause`](Self::pause) sets this for the next request.
    counts_for: Duration,
    /// How many more tasks may be granted the key in this place. It is set by the grant of a shared lease that kept the
    /// place.
    tasks_left: Option<NonZero<usize>>,
    /// How many tasks may be granted the key in this place after a grant of the request that is under way.
    tasks_left_after_grant: Option<NonZero<usize>>,
    /// How fast the queue moves.
    pace: Pace,
    /// What telemetry is told about the place.
    report: PlaceReport,
}

/// A refusal, and what the pause after it depends on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Refusal<'a> {
    pub(super) held: &'a Held,
    pub(super) ahead: Ahead,
    /// The pause if no other process waits for the key.
    pub(super) otherwise: Duration,
    /// Whether the store reports freed keys.
    pub(super) reports_freed: bool,
    /// How long the answer took.
    pub(super) took: Duration,
}

impl OwnPlace {
    pub(super) fn new() -> Self {
        Self {
            waiter: WaiterId::random(),
            known: KnownPlace::None,
            counts_for: for_pause(retry::LONGEST_PAUSE),
            tasks_left: None,
            tasks_left_after_grant: None,
            pace: Pace::default(),
            report: PlaceReport::default(),
        }
    }

    /// Plans the next request, and returns what it says about the place. `beside` is how many tasks of this process
    /// wait directly behind the requesting task and can share the key with it. A grant keeps the place for them.
    ///
    /// Only tasks that waited when the first of them sent its request can use the place. Tasks that come later need
    /// another place. Otherwise a process with a constant flow of readers would keep a writer from the key for ever.
    pub(super) fn plan_request(&mut self, beside: usize) -> InTurn {
        let more = self.tasks_left.map_or(beside, |more| more.get() - 1);
        self.tasks_left_after_grant = NonZero::new(more.min(beside));
        self.in_turn(self.tasks_left_after_grant.is_some())
    }

    fn in_turn(&self, keeps_place: bool) -> InTurn {
        let mut turn = InTurn::new(self.waiter, self.counts_for);
        turn.known = self.known;
        turn.keeps_place = keeps_place;
        turn
    }

    /// Whether a request may have taken the place, and no grant has ended it since.
    fn may_be_taken(&self) -> bool {
        self.known != KnownPlace::None
    }

    /// Records that a request may have taken the place.
    pub(super) fn set_taken(&mut self) {
        if self.known == KnownPlace::None {
            self.known = KnownPlace::Taken;
        }
    }

    /// How many tasks of this process the place still lets in, after a grant that has kept it.
    pub(super) fn still_let_in(&self) -> usize {
        self.tasks_left.map_or(0, NonZero::get)
    }

    /// The place for the request of a task that is let in while others are. A grant keeps the place.
    pub(super) fn plan_request_to_be_let_in(&self) -> InTurn {
        self.in_turn(true)
    }

    /// Records that such a request was granted. The place is kept for one more task at least, whose grant ends it.
    pub(super) fn let_one_in(&mut self) {
        let less = |more: NonZero<usize>| NonZero::new(more.get() - 1).unwrap_or(more);
        self.tasks_left = self.tasks_left.map(less);
    }

    /// Records that a request in turn was granted. `ends` says whether the grant has ended the place, unless the
    /// request was to keep it. It is `false` if the grant may be the answer to an earlier request, which was to keep
    /// the place, or to a handoff that said that there was none. If a refusal had taken the place, returns what
    /// telemetry reports about it.
    pub(super) fn granted(&mut self, ends: bool, now: Instant) -> Option<EndedTurn> {
        if ends && self.tasks_left_after_grant.is_none() {
            self.known = KnownPlace::None;
        }
        // Other tasks may have been let in since the request was sent. A place that is kept is kept for one task at
        // least.
        let left = self
            .tasks_left
            .map_or(usize::MAX, |more| more.get() - 1)
            .max(1);
        let left = NonZero::new(left);
        let next = self.tasks_left_after_grant.min(left);
        let one = NonZero::<usize>::MIN;
        self.tasks_left = next.or_else(|| self.may_be_taken().then_some(one));
        self.report.granted(now)
    }

    /// Records that a request in turn was refused. The refusal has taken the place, if there was room for one.
    pub(super) fn refused(&mut self, held: &Held, now: Instant) -> Option<PlaceNews> {
        if held.ahead() < MAX_PLACES {
            self.set_taken();
        }
        self.report.refused(held, now)
    }

    /// Whether this process may be granted the key after the store reported that it became free. `next` are the
    /// processes that come next, if the store names them. If it does not, this process comes next if no process was
    /// `ahead` at the last refusal. Otherwise all processes without a place would send a request at the same moment.
    pub(super) fn comes_next(&self, next: Option<&[WaiterId]>, ahead: usize) -> bool {
        match next {
            Some(_) => self.ahead_in(next).is_some(),
            None => ahead == 0,
        }
    }

    /// How many processes come next before this one; `None` if this one does not come next.
    pub(super) fn ahead_in(&self, next: Option<&[WaiterId]>) -> Option<usize> {
        next?.iter().position(|next| *next == self.waiter)
    }

    /// Whether holders of a shared key have begun to leave: see [`Pace::holders_leave`].
    pub(super) fn holders_leave(&self) -> bool {
        self.pace.holders_leave()
    }

    /// Whether the pauses go by the speed of the queue, and not by the number of refusals.
    pub(super) fn pauses_by_pace(&self) -> bool {
        self.pace.had_others_ahead()
    }

    /// Takes over the place of a task that has left, whose request may still take that place. Returns whether `waiter`
    /// is this place.
    pub(super) fn take_over(&mut self, waiter: WaiterId) -> bool {
        let is_same = self.waiter == waiter;
        if is_same {
            self.set_taken();
        }
        is_same
    }

    /// Leaves the place, because no task of this process waits in turn any more. If a request may have taken the place,
    /// returns it, so that the caller gives it up. Later tasks use a place with another id, so that giving up this one
    /// does not end theirs.
    pub(super) fn leave(&mut self) -> Option<WaiterId> {
        if self.may_be_taken() {
            return Some(mem::replace(self, Self::new()).waiter);
        }
        self.report = PlaceReport::default();
        None
    }

    /// The pause after this refusal. `chance` is a random number from 0 to 1.
    pub(super) fn pause(&mut self, refusal: Refusal<'_>, now: Instant, chance: f64) -> Duration {
        let Refusal {
            held,
            ahead,
            otherwise,
            reports_freed,
            took,
        } = refusal;
        self.pace.see(held, ahead.turns, took, now);
        let wanted = if self.pace.had_others_ahead() {
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
        if self.may_be_taken() {
            self.known = if pause >= WORTH_A_WRITE {
                // The next request has to write the place again.
                KnownPlace::Due
            } else {
                KnownPlace::Taken
            };
        }
        pause
    }
}

/// For how long a place must count if the next request comes after this pause and does not write the place again.
fn for_pause(pause: Duration) -> Duration {
    (pause + SLACK * 2).min(MAX_PLACE_TIME)
}

#[cfg(test)]
mod tests;
