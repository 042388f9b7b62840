//! `Pace`: how long a process pauses between two requests for a key that other processes wait for too. Pure: times come
//! in as arguments.
//!
//! Invariants:
//!
//! - A process that sends its request after its turn has come delays the processes behind it. So a pause is bounded.
//!   While the key is held, a pause is at most [`MOST`] for each turn ahead, or the time for which the key has been
//!   held if that is longer. While the key is free, a pause is at most [`FREE`] for each turn ahead. (For this, a
//!   process that shares its turn counts as a quarter of a turn.) If pauses grew with the delays of other processes,
//!   each delay would cause the next one, and all would stay late. If the store reports freed keys, a pause may last
//!   [`LEAST_WITH_REPORTS`] for each turn, because the report ends it.
//! - A pause goes by how long the answers take, too. If a server is busy, answers take long, and requests before a
//!   turn can come keep it busy. Such a pause is no longer than the turns ahead take by the speed of the queue.
//! - No process that has a place pauses for longer than [`MAX_PAUSE`], so that each learns in time that it is the
//!   first.
//! - The first process sends a request soon after holders of a shared key have left, because the others are likely to
//!   leave soon. It sends no more of these requests than holders leave.
//! - Many processes together send hardly more requests than a few do, also if all of them share a turn. A process that
//!   is twice as far behind sends half as many, by the speed at which the queue moves. This does not hold for processes
//!   without a place, which cannot see how many they are.
//! - If the store reports freed keys, a report wakes the process that comes next. The requests after a pause are then
//!   for the case that a report is late or missed, or a process ahead has ended. So there are fewer of them.
//! - A process listens to these reports only while they save more than they cost: see [`needs_reports`].
//!
//! For example, a process with 0, 1, 2, 5, 20 or 99 turns ahead pauses for at most 1, 2, 10, 25, 100 or 495 ms on a key
//! that has been held for 3 ms, and for 1, 1, 1, 2.5, 3 or 3 s on one that has been held for a minute
//! (`who_is_further_behind_asks_less_often_and_all_ask_in_time`, in `pace/tests.rs`).

use std::time::Duration;

use tokio::time::Instant;

use crate::{
    model::{Held, Holder, MAX_PLACES, Mode},
    retry,
};

/// The pause of the first process on a key that changes hands all the time, or whose holders leave one after the other.
const FIRST: Duration = Duration::from_millis(1);
/// The shortest pause for each turn ahead.
const LEAST: Duration = Duration::from_millis(2);
/// The pause for each turn ahead, while the speed of the queue is not known.
const AT_FIRST: Duration = Duration::from_millis(5);
/// The longest pause for each turn ahead, unless the key has been held for longer.
const MOST: Duration = Duration::from_millis(10);
/// The longest pause for each turn ahead on a free key, which the first process is about to acquire.
const FREE: Duration = Duration::from_millis(5);
/// The shortest pause for each turn up to the own one, if the store reports freed keys.
const LEAST_WITH_REPORTS: Duration = Duration::from_millis(50);
/// This many processes that share their turn count as one more turn. Fewer count as none: they send their
/// requests as early as the first of them, so that all are granted the key at the same time.
const SHARING: usize = 4;
/// A process sends its next request after this share of the expected time until its turn.
const SHARE: f64 = 0.7;
/// The greatest factor by which the time for each turn may grow from one refusal to the next.
const SLOWER: f64 = 1.25;
/// The longest pause of a process that has a place.
pub(super) const MAX_PAUSE: Duration = Duration::from_secs(3);
/// The longest pause of a process that has no place, because all places were taken.
const WITHOUT_PLACE: Duration = Duration::from_secs(30);
/// If a key has been held for less than this when a process asks next, the process asks often enough by itself.
const WORTH_REPORTS: Duration = Duration::from_millis(250);
/// A process with this many turns ahead is not woken by the next reports.
const FAR: usize = 10;
/// The shortest pause before an expiry.
const SOON: Duration = Duration::from_millis(1);

/// The processes that come before a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ahead {
    pub(super) processes: usize,
    /// How many times the key changes hands until all of them have had it.
    pub(super) turns: usize,
    /// Whether the request waits in turn. Of those that do, one has nobody ahead. Of the others, many may have nobody
    /// ahead at the same time.
    pub(super) is_in_turn: bool,
}

impl Ahead {
    /// For a request that is not behind the processes that wait: it competes with them, or comes before them.
    pub(super) const NOBODY: Self = Self {
        processes: 0,
        turns: 0,
        is_in_turn: false,
    };

    /// For a request in turn that was refused with this answer.
    pub(super) fn others(held: &Held) -> Self {
        Self {
            processes: held.ahead(),
            turns: held.turns_ahead(),
            is_in_turn: true,
        }
    }

    /// Whether the request is the first of those that wait in turn.
    pub(super) fn is_first(self) -> bool {
        self.is_in_turn && self.processes == 0
    }

    /// The turns by which the pause grows. If it grew only by how often the key changes hands, the requests of many
    /// processes that share a turn would have no bound.
    fn counted(self) -> u32 {
        let sharing = self.processes.saturating_sub(self.turns) / SHARING;
        u32::try_from(self.turns.saturating_add(sharing)).unwrap_or(u32::MAX)
    }
}

/// The speed of a queue, as one process measures it.
#[derive(Default)]
pub(super) struct Pace {
    /// How long one turn takes. `None` while that is not known.
    each: Option<Duration>,
    /// The last recorded number of turns ahead, and when it was recorded.
    seen: Option<(Instant, usize)>,
    /// How many leases held the key at the last refusal.
    holders: usize,
    /// Whether holders of a shared key have released it since the refusal before, and others have not. Holders that began
    /// together end together, so the key may be free soon.
    pub(super) holders_leave: bool,
    /// Whether a refusal has named processes ahead. If so, the key changes hands between processes, and the pauses go by
    /// the speed of the queue, and not by the number of refusals.
    pub(super) had_others_ahead: bool,
    /// How long the last answer took, and the one before.
    pub(super) took: [Duration; 2],
}

impl Pace {
    /// Records a refusal, how many turns are ahead, and how long the answer took.
    pub(super) fn see(&mut self, held: &Held, ahead: usize, took: Duration, now: Instant) {
        self.took = [took, self.took[0]];
        let holders = held.holders().len();
        let is_shared = |holder: &Holder| holder.mode != Mode::Exclusive;
        let are_fewer = 0 < holders && holders < self.holders;
        self.holders_leave = are_fewer && held.holders().iter().all(is_shared);
        self.holders = holders;
        self.had_others_ahead |= held.ahead() > 0;
        let Some((since, before)) = self.seen else {
            self.seen = Some((now, ahead));
            return;
        };
        let passed = u32::try_from(before.saturating_sub(ahead)).unwrap_or(u32::MAX);
        if passed > 0 {
            let each = now.saturating_duration_since(since) / passed;
            // A single delay must not make the queue count as slow.
            let most = self.each.map_or(each, |each| each.mul_f64(SLOWER));
            self.each = Some(each.min(most));
        }
        if passed > 0 || ahead > before {
            self.seen = Some((now, ahead));
        }
    }

    /// The pause while holders leave. If many are left, the key is not free at once.
    pub(super) fn until_more_leave(&self, held: &Held) -> Duration {
        let each = FIRST.saturating_mul(u32::try_from(self.holders).unwrap_or(u32::MAX)) / 4;
        let longest = held.held_for().map_or(Duration::ZERO, |time| time / 8);
        each.min(longest).max(FIRST)
    }

    /// The pause after the refusal of a request. `reports_freed` says whether the store reports freed keys. `chance` is
    /// a random number from 0 to 1.
    pub(super) fn pause(
        &self,
        held: &Held,
        ahead: Ahead,
        reports_freed: bool,
        chance: f64,
    ) -> Duration {
        let turns = ahead.counted();
        let pause = match held.held_for() {
            None => self.expected_wait(turns).min(FREE.saturating_mul(turns)),
            Some(time) => {
                let shares = match turns {
                    0 if self.holders_leave => self.until_more_leave(held),
                    0 => time / 8,
                    _ => (time / 4).saturating_mul(turns.saturating_add(1)).min(time),
                };
                let least = LEAST.saturating_mul(turns);
                self.expected_wait(turns).max(shares).max(least)
            }
        };
        let least = if reports_freed {
            LEAST_WITH_REPORTS.saturating_mul(turns.saturating_add(1))
        } else {
            SOON
        };
        let least = least.max(self.least_until_turn(turns));
        let pause = pause.max(least).min(longest(ahead.processes));
        let pause = if ahead.is_first() && pause >= retry::LONGEST_PAUSE {
            // Only one process is the first. It needs no jitter, and asks no more than once a second.
            pause
        } else {
            pause.mul_f64(0.75 + 0.25 * chance.clamp(0.0, 1.0))
        };
        let is_first = ahead.turns == 0;
        // The first process sends a request when a holder expires. The others send one when the places of the processes
        // ahead, for which a free key is kept, have expired.
        match held.held_for() {
            Some(_) if is_first => pause.min(held.expires_in().max(SOON)),
            None if !is_first => pause.min(held.binds_for().max(SOON)),
            _ => pause,
        }
    }

    /// The shortest pause of a process that has `ahead` turns ahead. Each of these turns takes the time of two answers,
    /// one to an acquire and one to a release. A request within a quarter of that time would be in vain, and would make
    /// the answers of a busy server take longer still. A single answer that took long does not count. If the turns pass
    /// faster, the answers to this process alone take long, and its turn must not pass meanwhile.
    fn least_until_turn(&self, ahead: u32) -> Duration {
        let [last, before] = self.took;
        let answers = last.min(before) / 2;
        let each = self.each.map_or(MOST, |each| each.mul_f64(SHARE));
        answers.min(each).saturating_mul(ahead)
    }

    /// A share of the expected time until the turn of a process that has `ahead` turns ahead.
    fn expected_wait(&self, ahead: u32) -> Duration {
        let each = self.each.map_or(AT_FIRST, |each| each.mul_f64(SHARE));
        let each = each.clamp(LEAST, MOST);
        match ahead {
            0 => FIRST,
            1 => each / 2,
            _ => each.saturating_mul(ahead),
        }
    }
}

/// Whether a process that was refused with this answer needs to hear from the store when the key is freed. Each process
/// that listens costs the server work for each change of a key.
///
/// The pause of a process that has had nobody ahead goes by the number of refusals, so it may be long although the
/// holders keep the key briefly. For such a process `pause` is its pause without reports. For any other process it is
/// zero.
///
/// Each process that waits for permits counts as a turn, but all permits that are taken may be released at the same time.
/// So a process that waits `for_permits` is not far behind if more of them are taken than turns are ahead.
pub(super) fn needs_reports(held: &Held, ahead: Ahead, pause: Duration, for_permits: bool) -> bool {
    let held_for = held.held_for().map(|time| time.saturating_add(pause));
    let is_held_long = held_for.is_some_and(|time| time >= WORTH_REPORTS);
    // A report names processes that have a place.
    let may_be_named = ahead.processes < MAX_PLACES;
    let taken = if for_permits { permits_taken(held) } else { 0 };
    is_held_long && may_be_named && ahead.turns < FAR.max(taken)
}

/// How many permits the holders have. A lease that is not of permits has all.
fn permits_taken(held: &Held) -> usize {
    let permits = held.holders().iter().map(|holder| match holder.mode {
        Mode::Permits => usize::try_from(holder.permits).unwrap_or(usize::MAX),
        Mode::Exclusive | Mode::Shared => usize::MAX,
    });
    permits.fold(0, usize::saturating_add)
}

/// The longest pause of a process that has `ahead` processes ahead.
fn longest(ahead: usize) -> Duration {
    if ahead >= MAX_PLACES {
        return WITHOUT_PLACE;
    }
    let ahead = u32::try_from(ahead).unwrap_or(u32::MAX);
    (retry::LONGEST_PAUSE.saturating_mul(ahead.max(2)) / 2).min(MAX_PAUSE)
}

#[cfg(test)]
mod tests;
