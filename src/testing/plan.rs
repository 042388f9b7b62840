//! What a faulty store has been told, and what that means for the next call. No function here waits or reads a clock.

use std::{collections::VecDeque, time::Duration};

use chrono::{DateTime, Utc};

use super::failure::Failure;
use crate::model::Key;

/// Which calls a fault is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Group {
    /// All of them, also those of the other groups.
    Every,
    Acquires,
    Renewals,
    Releases,
}

/// How many calls a fault is still for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Remaining {
    Next(u32),
    All,
}

impl Default for Remaining {
    fn default() -> Self {
        Self::Next(0)
    }
}

impl Remaining {
    fn is_over(self) -> bool {
        self == Self::Next(0)
    }

    /// Counts a call. Returns whether the fault is for it.
    fn take(&mut self) -> bool {
        match self {
            Self::Next(0) => return false,
            Self::Next(left) => *left -= 1,
            Self::All => {}
        }
        true
    }
}

/// How the calls of a group are answered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Answers {
    #[default]
    Normal,
    Never,
    Errors(Failure, Remaining),
}

/// What the calls of a group meet.
#[derive(Debug, Default)]
pub(super) struct Plan {
    pub(super) answers: Answers,
    pub(super) delay: Duration,
}

impl Plan {
    fn is_normal(&self) -> bool {
        let answers = match self.answers {
            Answers::Normal => true,
            Answers::Never => false,
            Answers::Errors(_, remaining) => remaining.is_over(),
        };
        answers && self.delay.is_zero()
    }

    fn take_failure(&mut self) -> Option<Failure> {
        match &mut self.answers {
            Answers::Errors(failure, remaining) => remaining.take().then_some(*failure),
            Answers::Normal | Answers::Never => None,
        }
    }
}

/// What one call meets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Fault {
    pub(super) failure: Option<Failure>,
    pub(super) delay: Duration,
}

/// Which acquires are refused.
#[derive(Debug, Default)]
pub(super) struct Refusals {
    pub(super) remaining: Remaining,
    /// Since when the other owner has every key.
    pub(super) since: DateTime<Utc>,
}

/// All that a faulty store has been told, and how many calls hang.
#[derive(Debug, Default)]
pub(super) struct Plans {
    every: Plan,
    acquires: Plan,
    renewals: Plan,
    releases: Plan,
    pub(super) refusals: Refusals,
    /// The keys to evict before the next call is carried out.
    pub(super) lost: VecDeque<Key>,
    hanging: Hanging,
}

#[derive(Debug, Default)]
struct Hanging {
    acquires: usize,
    renewals: usize,
    releases: usize,
    others: usize,
}

impl Plans {
    /// Whether no call meets a fault.
    pub(super) fn is_normal(&self) -> bool {
        let mut plans = [&self.every, &self.acquires, &self.renewals, &self.releases].into_iter();
        plans.all(Plan::is_normal) && self.refusals.remaining.is_over()
    }

    pub(super) fn of(&mut self, group: Group) -> &mut Plan {
        match group {
            Group::Every => &mut self.every,
            Group::Acquires => &mut self.acquires,
            Group::Renewals => &mut self.renewals,
            Group::Releases => &mut self.releases,
        }
    }

    /// Ends the faults of the calls of a group.
    pub(super) fn clear(&mut self, group: Group) {
        *self.of(group) = Plan::default();
        if group == Group::Every {
            self.acquires = Plan::default();
            self.renewals = Plan::default();
            self.releases = Plan::default();
        }
    }

    /// Counts a call of a group, and gives what it meets; `None` while it hangs, which counts nothing.
    pub(super) fn take(&mut self, group: Group) -> Option<Fault> {
        if self.every.answers == Answers::Never || self.of(group).answers == Answers::Never {
            return None;
        }
        let mut fault = Fault {
            failure: self.every.take_failure(),
            delay: self.every.delay,
        };
        if group != Group::Every {
            let own = self.of(group);
            fault.failure = fault.failure.or_else(|| own.take_failure());
            fault.delay = fault.delay.saturating_add(own.delay);
        }
        Some(fault)
    }

    /// Counts an acquire that would be carried out. Returns since when another owner has its key, if it is refused.
    pub(super) fn take_refusal(&mut self) -> Option<DateTime<Utc>> {
        let Refusals { remaining, since } = &mut self.refusals;
        remaining.take().then_some(*since)
    }

    /// Counts the calls of a group that hang.
    pub(super) fn hanging(&mut self, group: Group) -> &mut usize {
        match group {
            Group::Every => &mut self.hanging.others,
            Group::Acquires => &mut self.hanging.acquires,
            Group::Renewals => &mut self.hanging.renewals,
            Group::Releases => &mut self.hanging.releases,
        }
    }

    /// Whether a call hangs that is of this group, or of any for `Every`.
    pub(super) fn any_hangs(&self, group: Group) -> bool {
        let Hanging {
            acquires,
            renewals,
            releases,
            others,
        } = self.hanging;
        let number = match group {
            Group::Every => acquires + renewals + releases + others,
            Group::Acquires => acquires,
            Group::Renewals => renewals,
            Group::Releases => releases,
        };
        number > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failing(failure: Failure, remaining: Remaining) -> Answers {
        Answers::Errors(failure, remaining)
    }

    #[test]
    fn a_call_counts_for_one_fault_only() {
        let mut plans = Plans::default();
        plans.every.answers = failing(Failure::Unreachable, Remaining::Next(1));
        plans.renewals.answers = failing(Failure::Denied, Remaining::Next(1));
        let mut take = |group| plans.take(group).unwrap().failure;
        assert_eq!(take(Group::Renewals), Some(Failure::Unreachable));
        assert_eq!(take(Group::Acquires), None);
        assert_eq!(take(Group::Renewals), Some(Failure::Denied));
        assert_eq!(take(Group::Renewals), None);
        assert!(plans.is_normal());
    }

    #[test]
    fn a_call_that_hangs_counts_for_none() {
        let mut plans = Plans::default();
        plans.every.answers = failing(Failure::Unreachable, Remaining::Next(1));
        plans.releases.answers = Answers::Never;
        assert_eq!(plans.take(Group::Releases), None);
        plans.clear(Group::Releases);
        let fault = plans.take(Group::Releases).unwrap();
        assert_eq!(fault.failure, Some(Failure::Unreachable));
    }

    #[test]
    fn delays_add_up() {
        let mut plans = Plans::default();
        plans.every.delay = Duration::from_secs(1);
        plans.acquires.delay = Duration::from_secs(2);
        let delay = |plans: &mut Plans, group| plans.take(group).unwrap().delay.as_secs();
        assert_eq!(delay(&mut plans, Group::Acquires), 3);
        assert_eq!(delay(&mut plans, Group::Every), 1);
        plans.clear(Group::Every);
        assert_eq!(delay(&mut plans, Group::Acquires), 0);
        assert!(plans.is_normal());
    }
}
