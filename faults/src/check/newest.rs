//! The greatest number that any client had been told by a given time.

use crate::history::Time;

pub(super) struct Newest(Vec<(Time, i64)>);

impl FromIterator<(Time, i64)> for Newest {
    /// Builds this from numbers and the time at which each was told.
    fn from_iter<I: IntoIterator<Item = (Time, i64)>>(told: I) -> Self {
        let mut all: Vec<_> = told.into_iter().collect();
        all.sort_unstable();
        let mut newest = i64::MIN;
        for (_, number) in &mut all {
            newest = newest.max(*number);
            *number = newest;
        }
        Self(all)
    }
}

impl Newest {
    /// The greatest number that was told before this time; `None` if there is none.
    pub(super) fn before(&self, time: Time) -> Option<i64> {
        let before = self.0.partition_point(|(at, _)| *at < time);
        Some(self.0.get(before.checked_sub(1)?)?.1)
    }
}
