//! `Holding`: a lease that was granted to this process, the guards under it, and for how long it serves further tasks
//! from memory. Times come in as arguments. Until when a guard lasts, and in which mode, it asks the guard.
//!
//! Invariants:
//!
//! - The guards under a lease exclude each other as the store would have it.
//! - Fences rise in the order of the grants. Only a guard of an owner that enters again has the fence of the guard that
//!   it enters. The guards of a shared lease show its fence.
//! - A lease that does not serve any more serves nobody but an owner that enters again. It goes back when no guard is
//!   left.

use std::{ops::Range, sync::Arc, time::Duration};

use tokio::time::Instant;

use crate::{
    lease_state::{LeaseNumber, LeaseState},
    model::{Fence, Mode},
};

/// For how long after its grant an exclusive lease serves further tasks.
const TURN: Duration = Duration::from_millis(100);
/// For how long after its grant a shared lease serves further readers.
const SHARED_TURN: Duration = Duration::from_millis(30);
/// For how long, and how many tasks, an exclusive lease serves while other processes wait. A process with few tasks, each
/// of which works for a moment, would otherwise wait for many turns of one with more tasks.
const TURN_IF_AWAITED: Duration = Duration::from_millis(10);
const MOST_IF_AWAITED: u32 = 32;

/// A lease that was granted.
pub(super) struct Holding {
    pub(super) lease: Arc<LeaseState>,
    /// The guards under the lease.
    pub(super) guards: Vec<Arc<LeaseState>>,
    pub(super) serving: Serving,
    fences: Fences,
    /// When the holders of the lease cannot count on it any more, as far as it was renewed. The past if it is lost.
    pub(super) deadline: Instant,
    pub(super) at_end: AtEnd,
    pub(super) conversion: Conversion,
    /// Whether a guard was ever taken.
    pub(super) was_taken: bool,
    /// Whether it was granted to stay, so that a task looks whether it is still there, also after the stay.
    pub(super) is_looked_at: bool,
}

/// For how long the lease serves further tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Serving {
    /// Until this instant, and this many.
    Turn {
        until: Instant,
        left: u32,
    },
    /// Until another process waits, or no task has used the key for this long.
    Stays {
        idle: Duration,
        since: Instant,
    },
    Over,
}

/// What becomes of the lease when no guard is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AtEnd {
    Release,
    /// It is not released: it was given away, or detached.
    GiveAway,
    /// As [`GiveAway`](Self::GiveAway), until this instant: a guard was detached beside others, and outlives its ttl then.
    GiveAwayUntil(Instant),
}

/// Whether a conversion of the lease has begun. From then on its mode is not known here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Conversion {
    None,
    Begun,
    /// The store was asked, so the lease may have another mode than its guard says.
    Sent,
}

/// The fences for the guards under a lease, which they get one after the other.
enum Fences {
    /// Those of a block that no guard has had. The block ends before that of the lease in the store, which is the fence
    /// of a ticket, and of an upgrade.
    Block(Range<i64>),
    /// All guards have that of the lease.
    One(Fence),
}

impl Fences {
    /// The fences of a grant that took this many of them, and has the last one. Only an exclusive lease takes more than
    /// one.
    fn of_grant(last: Fence, count: u16) -> Self {
        if count <= 1 {
            return Self::One(last);
        }
        let first = last.get().saturating_sub(i64::from(count) - 1);
        Self::Block(first..last.get())
    }

    /// The next fence. `None` if all were taken.
    fn take(&mut self) -> Option<Fence> {
        match self {
            Self::One(fence) => Some(*fence),
            Self::Block(left) => left.next().map(Fence::new),
        }
    }
}

impl Serving {
    /// The turn of a lease that is granted now in this mode.
    pub(super) fn turn(mode: Mode, is_awaited: bool, now: Instant) -> Self {
        let (time, left) = match (mode == Mode::Shared, is_awaited) {
            (true, _) => (SHARED_TURN, u32::MAX),
            (false, true) => (TURN_IF_AWAITED, MOST_IF_AWAITED),
            (false, false) => (TURN, u32::MAX),
        };
        let until = now + time;
        Self::Turn { until, left }
    }
}

impl Holding {
    /// A lease whose grant took this many fences.
    pub(super) fn new(lease: Arc<LeaseState>, fences: u16, serving: Serving) -> Self {
        Self {
            guards: Vec::new(),
            serving,
            fences: Fences::of_grant(lease.fence(), fences),
            deadline: lease.deadline(),
            at_end: AtEnd::Release,
            conversion: Conversion::None,
            was_taken: false,
            is_looked_at: matches!(serving, Serving::Stays { .. }),
            lease,
        }
    }

    pub(super) fn is_live(&self, now: Instant) -> bool {
        now < self.deadline
    }

    pub(super) fn stays(&self) -> bool {
        matches!(self.serving, Serving::Stays { .. })
    }

    /// Since when no task has used a lease that stays. `None` while one does.
    pub(super) fn unused_since(&self) -> Option<Instant> {
        match self.serving {
            Serving::Stays { since, .. } if self.guards.is_empty() => Some(since),
            _ => None,
        }
    }

    /// Whether it may serve one more task, with this ttl, now or after the present guards.
    pub(super) fn serves(&self, ttl: Duration, now: Instant) -> bool {
        let left = self.deadline.saturating_duration_since(now);
        let has_time = match self.serving {
            Serving::Turn { until, left: more } => now < until && more > 0 && left >= ttl / 10 * 9,
            Serving::Stays { .. } => left >= ttl / 2,
            Serving::Over => false,
        };
        has_time && self.is_live(now) && self.conversion == Conversion::None
    }

    /// Whether a task that wants this mode can have a guard beside those that there are, and those that are offered.
    pub(super) fn has_room(&self, wants: Mode, mut offered: impl Iterator<Item = Mode>) -> bool {
        let is_shared = |mode: Mode| mode == Mode::Shared;
        if is_shared(wants) {
            self.guards.iter().all(|guard| is_shared(guard.mode())) && offered.all(is_shared)
        } else {
            self.guards.is_empty() && offered.next().is_none()
        }
    }

    /// Takes the fence of the next guard. `None` if there is none left.
    pub(super) fn take_fence(&mut self) -> Option<Fence> {
        let fence = self.fences.take()?;
        if let Serving::Turn { left, .. } = &mut self.serving {
            *left = left.saturating_sub(1);
        }
        Some(fence)
    }

    /// Adds a guard, with a fence that was taken for it, or that of the guard which its owner has entered.
    pub(super) fn push(&mut self, guard: Arc<LeaseState>) {
        self.was_taken = true;
        self.guards.push(guard);
    }

    /// The newest guard that an owner which wants this mode enters. After the turn the store is asked, beside the lease:
    /// nobody looks whether it is still there.
    pub(super) fn entered(&self, mode: Mode, now: Instant) -> Option<&Arc<LeaseState>> {
        let is_known = match self.serving {
            Serving::Turn { until, .. } => now < until,
            Serving::Stays { .. } | Serving::Over => self.is_looked_at,
        };
        if self.conversion != Conversion::None || !self.is_live(now) || !is_known {
            return None;
        }
        let newest = self.guards.iter().rev().find(|it| now < it.own_end(now))?;
        let covers = newest.mode() == Mode::Exclusive || mode == newest.mode();
        (covers && mode != Mode::Permits).then_some(newest)
    }

    /// Records that the lease of a guard that has just left is not released. `expires` is when that one outlives its ttl.
    pub(super) fn give_away(&mut self, expires: Instant) {
        self.at_end = match self.at_end {
            _ if self.guards.is_empty() => AtEnd::GiveAway,
            AtEnd::GiveAwayUntil(until) => AtEnd::GiveAwayUntil(until.max(expires)),
            AtEnd::Release | AtEnd::GiveAway => AtEnd::GiveAwayUntil(expires),
        };
    }

    /// Removes a guard. Returns when it outlives its ttl. `None` if it was not there.
    pub(super) fn leave(&mut self, number: LeaseNumber, now: Instant) -> Option<Instant> {
        let at = self.guards.iter().position(|it| it.number() == number)?;
        let guard = self.guards.remove(at);
        self.note_idle(now);
        Some(guard.own_end(now))
    }

    /// Removes the guards that have outlived their own ttl, and returns them. While the lease is live, others can have
    /// the key.
    pub(super) fn take_expired(&mut self, now: Instant) -> Vec<Arc<LeaseState>> {
        if !self.is_live(now) {
            return Vec::new();
        }
        let expired = self
            .guards
            .extract_if(.., |guard| guard.own_end(now) <= now);
        let expired: Vec<_> = expired.collect();
        if !expired.is_empty() {
            self.note_idle(now);
        }
        expired
    }

    fn note_idle(&mut self, now: Instant) {
        if let Serving::Stays { since, .. } = &mut self.serving {
            *since = now;
        }
    }

    /// When something changes by time alone, after this instant. `has_line` says whether tasks wait.
    pub(super) fn times(
        &self,
        (has_line, is_offered): (bool, bool),
        now: Instant,
    ) -> [Option<Instant>; 3] {
        let of_serving = match self.serving {
            Serving::Turn { until, .. } => has_line.then_some(until),
            Serving::Stays { idle, since } => {
                let is_idle = self.guards.is_empty() && !is_offered;
                is_idle.then(|| since + idle)
            }
            Serving::Over => None,
        };
        let of_lease = self.stays().then_some(self.deadline);
        let of_guards = self.guards.iter().map(|guard| guard.own_end(now));
        // One that is over must not hide the others.
        let of_guards = of_guards.filter(|at| *at > now);
        [of_serving, of_lease, of_guards.min()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_fence_is_taken_once_but_that_of_the_grant() {
        let mut fences = Fences::of_grant(Fence::new(10_000), 4_096);
        let mut all: Vec<_> = std::iter::from_fn(|| fences.take()).collect();
        assert_eq!(all.len(), 4_095);
        assert_eq!(all.first(), Some(&Fence::new(10_000 - 4_095)));
        assert_eq!(all.last(), Some(&Fence::new(9_999)));
        all.dedup();
        assert!(all.is_sorted() && all.len() == 4_095);
    }
}
