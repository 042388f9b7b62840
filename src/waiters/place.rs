//! `OwnPlace`: the place of this process among the processes that wait for a key. The document of the key has these
//! places. This decides what a request says about the place, and when the next request is due. Pure: times come in as
//! arguments.
//!
//! Invariant:
//!
//! - The next request reaches the store before the place of the last request expires, if its answer takes no longer
//!   than the last answer plus [`SLACK`].

use std::{num::NonZero, time::Duration};

use tokio::time::Instant;

use super::pace::{Ahead, Pace};
use crate::{
    messages::{KnownPlace, Turn},
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
    /// Whether a request may have taken the place, and no grant has ended it since.
    may_be_taken: bool,
    /// When a refusal took the place, and behind how many processes. `None` if no refusal has.
    taken: Option<Taken>,
    /// Set while refusals say that the key is free and kept for processes ahead.
    kept: Option<KeptForOthers>,
    /// Whether a refusal has named processes ahead. If so, the key changes hands between processes.
    had_others_ahead: bool,
    /// How fast the queue moves.
    pace: Pace,
    /// How many more tasks may be granted the key in this place. It is set by the grant of a shared lease that kept the
    /// place.
    more: Option<NonZero<usize>>,
    /// The value of `more` after a grant of the last request.
    next: Option<NonZero<usize>>,
    /// How long a request makes the place count. [`pause`](Self::pause) sets this for the next request.
    stays: Duration,
    /// Whether the pause is so long that the next request has to write the place again.
    is_due: bool,
}

#[derive(Clone, Copy, Debug)]
struct Taken {
    at: Instant,
    ahead: usize,
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

/// What a request says about the place of its process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PlaceToAsk {
    pub(crate) turn: Turn,
    pub(crate) known: KnownPlace,
    /// Whether a grant must not end the place.
    pub(crate) is_kept: bool,
}

/// A refusal, and what the pause after it depends on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Refusal<'a> {
    pub(super) held: &'a Held,
    pub(super) ahead: Ahead,
    /// The pause if no other process waits for the key.
    pub(super) otherwise: Duration,
    /// Whether the store reports freed keys.
    pub(super) is_told: bool,
    /// How long the answer took.
    pub(super) took: Duration,
}

/// What telemetry reports about a place that a grant has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct EndedTurn {
    /// How many processes were ahead when the place was taken.
    pub(super) ahead: usize,
    pub(super) waited: Duration,
    /// How many processes ahead did not acquire the key while it was kept for them, and how long it was kept.
    pub(super) passed: Option<(usize, Duration)>,
}

impl OwnPlace {
    pub(super) fn new() -> Self {
        Self {
            waiter: WaiterId::random(),
            may_be_taken: false,
            taken: None,
            kept: None,
            had_others_ahead: false,
            pace: Pace::default(),
            more: None,
            next: None,
            stays: for_pause(retry::WAITING),
            is_due: false,
        }
    }

    /// The place for the next request. `beside` is how many tasks of this process wait directly behind the requesting
    /// task and can share the key with it. A grant keeps the place for them.
    ///
    /// Only tasks that waited when the first of them sent its request can use the place. Tasks that come later need
    /// another place. Otherwise a process with a constant flow of readers would keep a writer from the key for ever.
    pub(super) fn turn(&mut self, beside: usize) -> PlaceToAsk {
        let more = self.more.map_or(beside, |more| more.get() - 1);
        self.next = NonZero::new(more.min(beside));
        PlaceToAsk {
            turn: self.in_turn(),
            known: self.known(),
            is_kept: self.next.is_some(),
        }
    }

    fn in_turn(&self) -> Turn {
        let (waiter, stays) = (self.waiter, self.stays);
        Turn::InTurn { waiter, stays }
    }

    fn known(&self) -> KnownPlace {
        match self.may_be_taken {
            false => KnownPlace::None,
            true if self.is_due => KnownPlace::Due,
            true => KnownPlace::Taken,
        }
    }

    /// How many tasks of this process the place still lets in, after a grant that has kept it.
    pub(super) fn still_let_in(&self) -> usize {
        self.more.map_or(0, NonZero::get)
    }

    /// The place for the request of a task that is let in while others are. A grant keeps the place.
    pub(super) fn turn_to_be_let_in(&self) -> PlaceToAsk {
        PlaceToAsk {
            turn: self.in_turn(),
            known: self.known(),
            is_kept: true,
        }
    }

    /// Records that such a request was granted. The place is kept for one more task at least, whose grant ends it.
    pub(super) fn has_let_in(&mut self) {
        let less = |more: NonZero<usize>| NonZero::new(more.get() - 1).unwrap_or(more);
        self.more = self.more.map(less);
    }

    /// Records that a request in turn was granted. The grant has ended the place, unless the request was to keep it. If
    /// a refusal had taken the place, returns what telemetry reports about it.
    pub(super) fn granted(&mut self, now: Instant) -> Option<EndedTurn> {
        self.may_be_taken &= self.next.is_some();
        // Others may have been let in since the request was sent. A place that is kept is kept for one task at least.
        let left = self.more.map_or(usize::MAX, |more| more.get() - 1).max(1);
        let left = NonZero::new(left);
        self.more = self.next.min(left);
        let kept = self.kept.take();
        let Taken { at, ahead } = self.taken.take()?;
        let passed = kept.and_then(|kept| {
            let time = now.saturating_duration_since(kept.since);
            // If the grant came earlier, the processes ahead gave up their places, or held the key between two requests
            // of this process.
            (time + SLACK >= kept.binds_for).then_some((kept.ahead, time))
        });
        Some(EndedTurn {
            ahead,
            waited: now.saturating_duration_since(at),
            passed,
        })
    }

    /// Records that a request in turn was refused. The refusal has taken the place, if there was room for one. If the
    /// place is new, returns how many processes are ahead.
    pub(super) fn refused(&mut self, held: &Held, now: Instant) -> Option<usize> {
        let ahead = held.ahead();
        self.kept = (held.holders().is_empty() && ahead > 0).then(|| {
            self.kept.unwrap_or(KeptForOthers {
                since: now,
                ahead,
                binds_for: held.binds_for(),
            })
        });
        if self.taken.is_some() || ahead >= MAX_PLACES {
            return None;
        }
        self.may_be_taken = true;
        self.taken = Some(Taken { at: now, ahead });
        Some(ahead)
    }

    /// Whether this process may be granted the key after the store reported that it became free. `next` are the
    /// processes that come next, if the store names them. If it does not, this process comes next if no process was
    /// `ahead` at the last refusal.
    pub(super) fn comes_next(&self, next: Option<&[WaiterId]>, ahead: usize) -> bool {
        match next {
            Some(next) => !self.may_be_taken || next.contains(&self.waiter),
            None => ahead == 0,
        }
    }

    /// Whether holders of a shared key have begun to leave: see [`Pace::holders_leave`].
    pub(super) fn holders_leave(&self) -> bool {
        self.pace.holders_leave()
    }

    /// Takes over the place of a task that has left, whose request may still take that place. Returns whether `waiter`
    /// is this place.
    pub(super) fn take_over(&mut self, waiter: WaiterId) -> bool {
        let is_same = self.waiter == waiter;
        self.may_be_taken |= is_same;
        is_same
    }

    /// Leaves the place, because no task of this process waits in turn any more. If a request may have taken the place,
    /// returns it, so that the caller gives it up. Later tasks use a place with another id, so that giving up this one
    /// does not end theirs.
    pub(super) fn leave(&mut self) -> Option<WaiterId> {
        let left = self
            .may_be_taken
            .then(|| std::mem::replace(self, Self::new()));
        left.map(|left| left.waiter)
    }

    /// The pause after this refusal. `chance` is a random number from 0 to 1.
    pub(super) fn pause(&mut self, refusal: Refusal<'_>, now: Instant, chance: f64) -> Duration {
        let Refusal {
            held,
            ahead,
            otherwise,
            is_told,
            took,
        } = refusal;
        self.had_others_ahead |= held.ahead() > 0;
        self.pace.see(held, ahead.turns, now);
        let wanted = if self.had_others_ahead {
            self.pace.pause(held, ahead, is_told, chance)
        } else if self.pace.holders_leave() && !is_told {
            otherwise.min(self.pace.until_more_leave(held))
        } else {
            otherwise
        };
        // If the place would expire before the wanted pause ends, the next request is sent earlier, and takes the place
        // for longer.
        let pause = wanted.min(long_enough(self.stays).saturating_sub(SLACK + took));
        self.stays = for_pause(wanted.max(SLACK) + took);
        self.is_due = pause >= WORTH_A_WRITE;
        pause
    }
}

/// For how long a place must count if the next request comes after this pause and does not write the place again.
fn for_pause(pause: Duration) -> Duration {
    (pause + SLACK * 2).min(MAX_PLACE_TIME)
}

#[cfg(test)]
mod tests {
    use chrono::{DateTime, Utc};

    use super::*;
    use crate::model::{Fence, Holder, Key, LeaseId, Mode};

    /// A refusal of a key that has been held for a time, with some processes ahead.
    fn held(millis: u64, ahead: usize) -> Held {
        let now: DateTime<Utc> = "2026-01-01T12:00:00Z".parse().unwrap();
        let since = now - Duration::from_millis(millis);
        let until = now + Duration::from_secs(600);
        let (lease, fence) = (LeaseId::random(), Fence::new(7));
        let holder = Holder::exclusive(lease, "they".into(), fence, since, until);
        Held::new(Key::new("key").unwrap(), vec![holder], now).behind(ahead, Duration::ZERO)
    }

    fn refusal(held: &Held, processes: usize, otherwise: Duration) -> Refusal<'_> {
        Refusal {
            held,
            ahead: Ahead {
                processes,
                turns: processes,
            },
            otherwise,
            is_told: false,
            took: Duration::ZERO,
        }
    }

    fn stays(place: &mut OwnPlace) -> Duration {
        match place.turn(0).turn {
            Turn::InTurn { stays, .. } => stays,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_place_counts_until_the_next_request_also_if_it_is_not_written_again() {
        let otherwise = Duration::from_millis(10);
        for chance in [0.0, 0.5, 1.0] {
            let mut place = OwnPlace::new();
            for (millis, ahead) in [
                (1, 0),
                (1, 9),
                (9_000, 9),
                (60_000, 99),
                (5, 3),
                (60_000, 0),
            ] {
                for took in [0, 0, 3_000, 3_000, 20] {
                    let took = Duration::from_millis(took);
                    let least = long_enough(stays(&mut place));
                    let held = held(millis, ahead);
                    let refusal = Refusal {
                        took,
                        ..refusal(&held, ahead, otherwise)
                    };
                    let pause = place.pause(refusal, Instant::now(), chance);
                    let is_in_time = pause + took + SLACK <= least;
                    assert!(
                        is_in_time || pause.is_zero(),
                        "{millis} {ahead}: {pause:?} of {least:?}"
                    );
                    let next = pause + took + SLACK;
                    assert!(next <= long_enough(stays(&mut place)));
                    assert!(stays(&mut place) <= MAX_PLACE_TIME);
                }
            }
        }
    }

    #[test]
    fn who_overtakes_asks_as_often_as_the_first_one() {
        for millis in [5, 60_000] {
            let pause = |behind| {
                let held = held(millis, 99);
                let mut place = OwnPlace::new();
                let refusal = refusal(&held, behind, Duration::from_secs(1));
                place.pause(refusal, Instant::now(), 1.0)
            };
            assert!(pause(0) <= pause(1), "{millis}");
        }
    }

    #[test]
    fn places_ahead_are_passed_if_they_had_the_free_key_for_their_time() {
        let start = Instant::now();
        let free = |ahead, binds_for| {
            let now = "2026-01-01T12:00:00Z".parse().unwrap();
            Held::new(Key::new("key").unwrap(), Vec::new(), now).behind(ahead, binds_for)
        };
        let (first, then) = (Duration::from_secs(2), Duration::from_secs(1));
        for (millis, passed) in [(1_500, false), (2_000, true)] {
            let granted = start + Duration::from_millis(millis);
            let mut place = OwnPlace::new();
            assert_eq!(place.refused(&held(5, 3), start), Some(3));
            assert_eq!(place.refused(&free(3, first), start), None);
            assert_eq!(place.refused(&free(1, then), start + then), None);
            let ended = place.granted(granted).unwrap();
            let time = Duration::from_millis(millis);
            assert_eq!((ended.ahead, ended.waited), (3, time));
            assert_eq!(ended.passed, passed.then_some((3, time)));
            // One of the processes ahead has acquired the key after all.
            place.refused(&free(3, first), start);
            place.refused(&held(5, 2), granted);
            assert_eq!(place.granted(granted).unwrap().passed, None);
        }
    }

    #[test]
    fn the_tasks_that_waited_at_the_first_grant_are_let_in_by_one_place() {
        let start = Instant::now();
        let mut place = OwnPlace::new();
        place.turn(0);
        place.refused(&held(5, 0), start);
        // Two tasks wait behind the one that sends the request, and later others come all the time.
        for (beside, is_kept) in [(2, true), (9, true), (9, false), (9, true)] {
            assert_eq!(place.turn(beside).is_kept, is_kept);
            // Only a grant counts.
            assert_eq!(place.turn(beside).is_kept, is_kept);
            place.granted(start);
            assert_eq!(place.may_be_taken, is_kept);
            place.may_be_taken = true;
        }
        // The tasks behind it have left meanwhile.
        assert!(!place.turn(0).is_kept);
    }

    /// A task may send its last request while others are let in, and be granted the key after them.
    #[test]
    fn no_more_tasks_are_let_in_than_waited_whatever_the_order_of_the_answers() {
        let start = Instant::now();
        let mut place = OwnPlace::new();
        place.refused(&held(5, 0), start);
        place.turn(5);
        place.granted(start);
        place.turn(4);
        for _ in 0..3 {
            assert!(place.turn_to_be_let_in().is_kept);
            place.has_let_in();
        }
        place.granted(start);
        assert_eq!(place.still_let_in(), 1);
        assert!(!place.turn(9).is_kept);
    }

    #[test]
    fn a_place_is_due_after_a_long_pause() {
        let otherwise = Duration::from_millis(10);
        let mut place = OwnPlace::new();
        let mut known = |millis| {
            let held = held(millis, 1);
            place.refused(&held, Instant::now());
            // A pause may be cut short if the place would expire before its end.
            for _ in 0..2 {
                place.pause(refusal(&held, 1, otherwise), Instant::now(), 1.0);
            }
            place.turn(0).known
        };
        assert_eq!(known(5), KnownPlace::Taken);
        assert_eq!(known(60_000), KnownPlace::Due);
        assert_eq!(OwnPlace::new().turn(0).known, KnownPlace::None);
    }

    #[test]
    fn a_full_queue_has_no_place() {
        let mut place = OwnPlace::new();
        assert_eq!(place.refused(&held(5, MAX_PLACES), Instant::now()), None);
        assert_eq!(place.granted(Instant::now()), None);
        assert_eq!(place.leave(), None);
    }

    #[test]
    fn the_only_process_that_waits_asks_soon_while_readers_leave() {
        let otherwise = Duration::from_millis(100);
        for (is_told, then) in [(false, Duration::from_millis(1)), (true, otherwise)] {
            let mut place = OwnPlace::new();
            for (readers, wanted) in [(2, otherwise), (1, then), (1, otherwise)] {
                let mut reader = held(60_000, 0).holders()[0].clone();
                reader.mode = Mode::Shared;
                let holders = vec![reader; readers];
                let now = "2026-01-01T12:00:00Z".parse().unwrap();
                let held = Held::new(Key::new("key").unwrap(), holders, now);
                let refusal = Refusal {
                    is_told,
                    ..refusal(&held, 0, otherwise)
                };
                assert_eq!(place.pause(refusal, Instant::now(), 1.0), wanted);
            }
        }
    }

    #[test]
    fn a_process_that_competes_with_no_other_asks_as_its_queue_says() {
        let mut place = OwnPlace::new();
        let otherwise = Duration::from_millis(17);
        let mut pause = |behind| {
            let held = held(60_000, behind);
            place.pause(refusal(&held, behind, otherwise), Instant::now(), 1.0)
        };
        assert_eq!(pause(0), otherwise);
        pause(1);
        assert_ne!(pause(0), otherwise);
    }
}
